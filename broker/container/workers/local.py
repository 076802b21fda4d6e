"""What a worker serves: a LocalHost, configured as its supervisor is."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from broker.app.process import make_process_parts
from broker.container.config import ContainerConfig
from broker.container.host import BrokerHost, HostObserver
from broker.container.local_host import LocalHost
from broker.container.workers.messages import Begin
from keelmq.remoting.config_store import with_stored
from keelmq.runtime.config import load_config
from keelmq.runtime.quick_start import settle_collector
from keelmq.runtime.tasks import TaskSet


@asynccontextmanager
async def local_host(begin: Begin, observer: HostObserver) -> AsyncIterator[BrokerHost]:
    """Makes the host, and keeps what its brokers share up to date. Raises ConfigError."""
    path, environ = begin.config_path, os.environ
    (config,) = load_config(ContainerConfig, path=path, environ=environ, overrides=begin.overrides)
    assert isinstance(config, ContainerConfig)
    config = with_stored(config, path, environ, begin.overrides)
    process = make_process_parts(config)
    tasks = TaskSet()
    LocalHost.share_threads()
    # Before there are brokers, whose objects come and go: frozen ones would never be collected.
    settle_collector()
    try:
        tasks.start("certificates of our ports", process.tls.run)
        yield LocalHost(config, process, number=begin.number)
    finally:
        await tasks.stop()
