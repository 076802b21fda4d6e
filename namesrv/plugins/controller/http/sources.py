"""What the controller's views and metrics read: they get these parts, never the plugin itself."""

from collections.abc import Awaitable, Callable

import msgspec

from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.remoting.telemetry import TelemetryWriter
from keelmq.remoting.write_buffers import WriteBuffers
from namesrv.plugins import Liveness, Routes
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.election.reconcile_loop import Elections
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.requests.replies import address_text
from namesrv.plugins.controller.settings import LiveConfig


class ControllerSources(msgspec.Struct, frozen=True):
    """This controller. `leader_http_address()` asks the leader for it; None: it is not known."""

    settings: LiveConfig
    machine: ControllerMachine
    replicator: Replicator
    elections: Elections
    leader_http_address: Callable[[], Awaitable[str | None]]

    @property
    def config(self) -> ControllerConfig:
        """The settings in force."""
        return self.settings.current

    @property
    def state(self) -> State:
        """The replicated state as this controller has applied it."""
        return self.machine.state

    @property
    def leader(self) -> str | None:
        """Id of the active controller, as far as this one knows; None: no leader is known."""
        replicator = self.replicator
        return replicator.self_id if replicator.is_active else replicator.leader_id

    def request_address(self, member_id: str | None) -> str | None:
        """Returns host:port; None: unknown."""
        address = self.replicator.request_addresses.get(member_id or "")
        return None if address is None else address_text(address)


class GroupSources(msgspec.Struct, frozen=True):
    """Broker groups: the replicated state, heartbeats and routes.

    `clock`: monotonic ms, also of the heartbeats. `routes` None: this process serves no routes.
    """

    controller: ControllerSources
    liveness: Liveness
    liveness_view: LivenessView
    routes: Routes | None
    clock: Callable[[], int]


class MetricSources(msgspec.Struct, frozen=True):
    """What /metrics reads. `heartbeat_count()`: heartbeats since the start. `probe_counts()`: brokers that
    were proved dead, and attempts that proved nothing, since the start. `hung_count()`: masters that were
    found hung before their timeout. `telemetry` None: disabled."""

    groups: GroupSources
    requests: RequestCounts
    write_buffers: WriteBuffers
    limits: PeerLimits
    heartbeat_count: Callable[[], int]
    probe_counts: Callable[[], tuple[int, int]]
    hung_count: Callable[[], int]
    telemetry: TelemetryWriter | None
