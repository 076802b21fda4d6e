"""904, the request that every broker sends to every controller each second: the controller's data path.

Decoded in one step to what is needed, no task, no coroutine: ten thousand of them a second are a part of a
core. Headers that the typed decoder refuses (binary ones, numbers that are not quite) go the lenient way, to
the same handler.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from namesrv.core.liveness import BrokerKey
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.settings import LiveConfig
from namesrv.plugins.controller.watch import Heard
from remoting.codes import RequestCode, ResponseCode
from remoting.command import FLAG_ONEWAY, parse_header, response_frame
from remoting.operation import CommandError, Hot, OperationTable, Peer
from remoting.operations.route import BrokerHeartbeatRequest

KEYS_MAX = 300_000
"""In the whole table, a name server's registrations included; more brokers than that somebody made up."""

Text = Annotated[str, msgspec.Meta(min_length=1)]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Fields(msgspec.Struct, gc=False, rename="camel"):
    """extFields, as BrokerHeartbeatRequest has them."""

    cluster_name: Text
    broker_addr: Text
    broker_name: Text
    broker_id: Int64 | None = None
    epoch: Int64 = -1
    max_offset: Int64 = -1
    confirm_offset: Int64 = -1
    heartbeat_timeout_mills: Int64 | None = None
    election_priority: Int64 = 2147483647
    hands_over: bool = False
    min_in_sync_replicas: Int32 | None = None


class Heartbeat(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    opaque: Int32
    ext: Fields
    flag: Int32 = 0


class HeartbeatHandler:
    """`came_back`: told of each broker that was not active before, or perhaps dead: an election may wait for
    it."""

    def __init__(
        self,
        config: LiveConfig,
        liveness: Liveness,
        clock: Callable[[], int],
        came_back: Callable[[BrokerKey], None],
    ) -> None:
        self._config, self._liveness, self._clock, self._came_back = config, liveness, clock, came_back
        self.beats = 0  # taken since the start

    def bind(self, table: OperationTable) -> None:
        table.bind_hot(RequestCode.BROKER_HEARTBEAT, Hot(Heartbeat, _lenient, self.beat))

    def beat(self, command: Heartbeat, body: bytes, peer: Peer) -> bytes | None:
        """At every controller, active or not. Bound to its connection at every beat."""
        ext = command.ext
        if ext.broker_id is None:
            raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        if peer.is_closing():
            return None  # its close was seen already: this beat would outlive its connection
        self.beats += 1
        config, timeout_ms, now_ms = self._config.current, ext.heartbeat_timeout_mills or 0, self._clock()
        key = BrokerKey(ext.cluster_name, ext.broker_name, ext.broker_id)
        live = LiveInfo(ext.broker_addr, ext.epoch, ext.max_offset, ext.confirm_offset, ext.election_priority)
        was_sure = self._liveness.is_active(key, now_ms) and not self._liveness.is_doubtful(key, now_ms)
        is_new = self._liveness.beat(
            key,
            connection_id=peer.connection_id,
            incarnation=ext.broker_addr,
            timeout_ms=timeout_ms if timeout_ms > 0 else config.controller_heart_beat_timeout_default_ms,
            now_ms=now_ms,
            info=Heard(live, peer, ext.hands_over, ext.min_in_sync_replicas),
            grace_ms=config.controller_connection_loss_grace_ms,
        )
        if is_new and self._liveness.count > KEYS_MAX:
            self._liveness.forget(key)
            raise CommandError(ResponseCode.SYSTEM_BUSY, f"heartbeats of {KEYS_MAX} brokers are known")
        if not was_sure:
            self._came_back(key)
        if command.flag & FLAG_ONEWAY:
            return None
        return response_frame(command.opaque, ResponseCode.SUCCESS, "Heart beat success")


def _lenient(code: int, opaque: int, flag: int, ext_fields: Mapping[str, str]) -> Heartbeat:
    """By the rules of every other request."""
    return Heartbeat(opaque, Fields(**dict(parse_header(BrokerHeartbeatRequest, ext_fields))), flag)
