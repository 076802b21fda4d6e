"""Checks that can refuse a start, before anything is opened for writing: ports in use, an identity of another
broker, files that do not parse or do not fit, a full disk, missing permissions.

A start that is refused here has changed nothing. `keelmq doctor` calls the same functions.
"""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

from broker.app.assembly import make_gate, make_metadata, make_store, make_topics, unusable
from broker.config.broker_config import BrokerConfig
from broker.config.metrics_settings import PROM
from broker.controller_mode.broker_meta_file import BrokerMetaError, MetaFiles
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError
from broker.metadata.service import Metadata
from broker.store.log.file_sizes import sized_files
from broker.store.log.mapped_file import StoreError, is_locked
from broker.store.store_check import check_directory, check_store
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.listening import create_server
from keelmq.runtime.config import ConfigError, why_refused

logger = logging.getLogger(__name__)


async def check_ports(config: BrokerConfig, own_host: str) -> None:
    """Raises ConfigError if a port of the configuration cannot be listened on now. own_host: as announced to
    clients."""
    for key, host, port in _fixed_ports(config, own_host):
        try:
            server = await create_server(asyncio.Protocol, host, port, backlog=1, start_serving=False)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"{key}: cannot listen on {host}:{port}: {why_refused(error)}") from error
        server.close()
        await server.wait_closed()


def _fixed_ports(config: BrokerConfig, own_host: str) -> Iterator[tuple[str, str, int]]:
    """Yields (key, host, port) without ports that the system chooses, or without which a broker starts."""
    host = config.bind_address
    if config.listen_port:
        yield "listenPort", host, config.listen_port
    for name, at in config.further_listeners.items():
        yield f"listener {name}", *at
    if config.fast_listen_port > 0:
        yield "fastListenPort", host, config.fast_listen_port
    if config.has_ha_port and config.ha_port:
        yield "haListenPort", host, config.ha_port
    listen = config.listen_port
    if http_port := http_listen_port(config.http_port, listen_port=listen, bound_port=listen):
        yield "http", config.http_bind_address or host, http_port
    if config.metrics_exporter_type == PROM and config.metrics_prom_exporter_port:
        yield "http", config.metrics_prom_exporter_host or own_host, config.metrics_prom_exporter_port


def load_settings(config: BrokerConfig, metadata: Metadata) -> Epochs:
    """Loads the metadata, and reads the other files that a start needs, except the store: its load() checks
    the rest the same way. Returns the epochs of the log; none without controllers, or if their file cannot be
    trusted. Raises BrokerMetaError, StoreError; ConfigError: a file or directory cannot be used."""
    try:
        check_directory(config.store_path_root_dir)
        MetaFiles(
            config.store_path_root_dir,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
        ).load()  # without controller mode, too: a store keeps its broker's name
        _report_lost_tables(config.store_path_root_dir)
        metadata.load()
        return _read_epochs(config.epoch_path) if config.enable_controller_mode else Epochs()
    except OSError as error:
        raise unusable(config, error) from error


def start_refusal(config: BrokerConfig) -> str | None:
    """Returns why the files refuse the start of a broker with this configuration; None: they do not, or a
    broker uses them now."""
    topics = make_topics(config, on_change=_no_op)
    store = make_store(config, topics, on_queue=_no_queue, on_sync_fault=_no_fault)
    try:
        if not is_locked(config.store_path_root_dir):
            load_settings(config, make_metadata(config, topics, make_gate(config), store))
            check_store(store.config)
    except (BrokerMetaError, StoreError, ConfigError) as error:
        return str(error)
    except OSError as error:
        return str(unusable(config, error))
    return None


def _no_op() -> None:
    """No name server must be informed."""


def _no_queue(topic: str, queue_id: int) -> None:
    """The log is not read."""


def _no_fault(fault: str) -> None:
    """Nothing is written."""


def _report_lost_tables(root: Path) -> None:
    if sized_files(root / "commitlog") and not any((root / "config").glob("*.json*")):
        logger.error(
            "%s has messages, and %s has no table: topics, groups and consumer offsets are empty. If the "
            "directory is lost, stop the broker, and restore it from a backup or from a replica, before this "
            "broker becomes master",
            root / "commitlog", root / "config",
        )  # fmt: skip


def _read_epochs(path: Path) -> Epochs:
    try:
        return EpochFile(path).load()
    except EpochFileError:
        return Epochs()  # such a broker starts and reports it: operators inspect it with mqadmin
