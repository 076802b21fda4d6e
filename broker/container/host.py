"""BrokerHost: runs brokers of a container, in this process (local_host.py) or in another one (workers/)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec
from prometheus_client.core import Metric

from broker.container.core.identity import BrokerIdentity
from keelmq.remoting.operations.container import InnerBroker, Worker

CLOSING: Final = "the container stops"
"""Why no broker is started any more."""


class InnerSetup(msgspec.Struct, frozen=True):
    """Arguments of a broker's start: the rest is in the file and in the container's configuration, which
    every process of the container reads itself."""

    identity: BrokerIdentity
    config_path: Path


class BrokerRefused(Exception):
    """A broker cannot be started, or not be stopped; the text is for the operator who asked."""


class HostObserver(Protocol):
    """Receives events that no request of a host caused."""

    def broker_failed(self, identity: BrokerIdentity, reason: str) -> None:
        """A broker has stopped serving, and its parts are gone: its process died, or its loop's supervisor
        gave it up."""

    def broker_restarted(self, identity: BrokerIdentity) -> None:
        """A broker that failed serves again."""


class BrokerHost(Protocol):
    """All methods are called in the event loop's thread."""

    async def start(self, setup: InnerSetup) -> None:
        """Returns when the broker's ports are open. Raises BrokerRefused, and leaves nothing behind then."""

    async def stop(self, identity: BrokerIdentity, *, hand_over: bool) -> None:
        """Stops the broker and returns when its ports and files are closed. hand_over: a master hands its
        mastership over first (bounded by shutdownHandOverTimeout). Raises BrokerRefused if the stop left
        something behind."""

    async def brokers(self) -> list[InnerBroker]:
        """Returns the brokers that are starting, serving or stopping here."""

    async def worker(self) -> Worker:
        """Returns the process."""

    async def metrics(self) -> Iterable[Metric]:
        """Returns the metric families of all brokers here."""

    async def change(self, settings: Mapping[str, str]) -> None:
        """Applies changed keys of the container (ContainerConfig.AT_RUN_TIME), now and in every process that
        follows this one. Raises BrokerRefused: the present process did not apply them."""

    async def restart(self) -> None:
        """Stops the brokers, slaves first and masters after their hand-over, and starts them in a new
        process. Raises BrokerRefused: this host is not a separate process."""

    async def leave(self) -> None:
        """Before close(): all masters hand over, and clients with the old route are served until they have
        read the new one. Bounded; may be cancelled."""

    async def close(self) -> None:
        """Stops everything, slaves first. Raises StopError: something could not be stopped."""
