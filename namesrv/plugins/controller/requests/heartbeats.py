"""BROKER_HEARTBEAT (904): every broker sends one to every controller each second.

A fast path: the header is decoded in one step to the fields that are needed, without a task or coroutine, so
that ten thousand heartbeats a second need only a part of a core. Headers that the typed decoder refuses (the
binary encoding, unusual number formats) are parsed like any other request and reach the same handler.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec

from keelmq.health.silence import Silence
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import FLAG_ONEWAY, parse_header, response_frame
from keelmq.remoting.operation import CommandError, FastPath, OperationTable, Peer
from keelmq.remoting.operations.route import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from keelmq.runtime.clock import wall_ms
from namesrv.core.liveness import BrokerKey
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.clock_offsets import ClockOffsets
from namesrv.plugins.controller.core.elect import LiveInfo
from namesrv.plugins.controller.core.hang import HEARTBEAT_SILENCE_MIN_MS, SELDOM_SILENCE_MIN_MS
from namesrv.plugins.controller.core.rules import TEXT_BYTES_MAX, check_registered_address
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.election.hung_masters import HungMasters
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from namesrv.plugins.controller.settings import LiveConfig

KEYS_MAX = 300_000
"""Maximum for the whole table, including a name server's registrations. More are an attack or an error, and
only registered brokers are still heard."""

SEND_OFTEN = BrokerHeartbeatResponse(finds_hung_masters=True)

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_BYTES_MAX)]
"""Kept until the broker is inactive, for up to KEYS_MAX brokers."""
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
    send_time_millis: Int64 | None = None
    all_ack_in_sync_state_set: bool = False
    silent_master_epoch: Int64 | None = None
    damaged_bytes: Int64 | None = None
    disk_full: bool | None = None
    unfit_broker_id: Int64 | None = None
    refused_master_epoch: Int64 | None = None


class HeartbeatCommand(msgspec.Struct, gc=False, rename={"ext": "extFields"}):
    """The header of a heartbeat, as far as it is needed."""

    opaque: Int32
    ext: Fields
    flag: Int32 = 0


class HeartbeatHandler:
    """`became_active(key)` is called for a broker that was inactive or doubtful before its heartbeat, or has
    begun or ceased to refuse to be master: the group may need an election.
    `group_of(key)`: the group of the replicated state that has this broker; None: it is not registered.
    `hung_masters` is notified of each slave whose master is silent. `clock_offsets` None: clocks are not
    compared."""

    def __init__(
        self,
        config: LiveConfig,
        liveness: Liveness,
        clock: Callable[[], int],
        became_active: Callable[[BrokerKey], None],
        group_of: Callable[[BrokerKey], BrokerSet | None],
        hung_masters: HungMasters,
        clock_offsets: ClockOffsets | None = None,
    ) -> None:
        self._config, self._liveness, self._clock, self._became_active = (
            config,
            liveness,
            clock,
            became_active,
        )
        self._group_of, self._hung_masters = group_of, hung_masters
        self._clock_offsets = clock_offsets
        self.received = 0  # heartbeats since the start

    def bind(self, table: OperationTable) -> None:
        """Binds BROKER_HEARTBEAT (904) as a fast path."""
        table.bind_fast_path(
            RequestCode.BROKER_HEARTBEAT, FastPath(HeartbeatCommand, _lenient, self.heartbeat)
        )

    def heartbeat(self, command: HeartbeatCommand, body: bytes, peer: Peer) -> bytes | None:
        """Records the heartbeat and binds it to its connection, even if this controller is not active.

        Returns the response frame; None: oneway, or the connection is closed. Raises CommandError.
        """
        ext = command.ext
        broker_id = ext.unfit_broker_id if ext.broker_id is None else ext.broker_id
        if broker_id is None:
            raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        if peer.is_closing():
            return None  # the connection is closed: nothing would ever remove this heartbeat
        self.received += 1
        config, timeout_ms, now_ms = self._config.current, ext.heartbeat_timeout_mills or 0, self._clock()
        key = BrokerKey(ext.cluster_name, ext.broker_name, broker_id)
        live = LiveInfo(
            ext.broker_addr,
            ext.epoch,
            ext.max_offset,
            ext.confirm_offset,
            ext.election_priority,
            peer.connection_id,
            max(ext.damaged_bytes or 0, 0),
            ext.disk_full is True,
            ext.broker_id is None,
            -1 if ext.refused_master_epoch is None else ext.refused_master_epoch,
        )
        was_sure = self._liveness.is_active(key, now_ms) and not self._liveness.is_doubtful(key, now_ms)
        if was_sure:
            self._check_owner(key, live)
        is_changed = _refuses(self._liveness.info(key)) != _refuses(live)
        often = ext.all_ack_in_sync_state_set and self._hung_masters.finds_any
        heartbeats = (
            self._all_ack_heartbeats(key, now_ms, often=often) if ext.all_ack_in_sync_state_set else None
        )
        is_new = self._liveness.record_heartbeat(
            key,
            connection_id=peer.connection_id,
            incarnation=ext.broker_addr,
            timeout_ms=timeout_ms if timeout_ms > 0 else config.controller_heart_beat_timeout_default_ms,
            now_ms=now_ms,
            info=Heartbeat(
                live,
                peer,
                ext.hands_over,
                ext.min_in_sync_replicas,
                heartbeats,
                ext.silent_master_epoch,
                often,
            ),
            grace_ms=config.controller_connection_loss_grace_ms,
        )
        if is_new and self._liveness.count > KEYS_MAX and self._group_of(key) is None:
            self._liveness.forget(key)
            raise CommandError(ResponseCode.SYSTEM_BUSY, f"the maximum of {KEYS_MAX} brokers send heartbeats")
        if not was_sure or is_changed:
            self._became_active(key)
        if self._clock_offsets is not None and ext.send_time_millis is not None:
            self._clock_offsets.add(key, sent_ms=ext.send_time_millis, received_ms=wall_ms())
        if ext.silent_master_epoch is not None:
            self._hung_masters.check(ext.broker_name)
        if command.flag & FLAG_ONEWAY:
            return None
        header = SEND_OFTEN if often else None
        return response_frame(command.opaque, ResponseCode.SUCCESS, "Heart beat success", header)

    def _check_owner(self, key: BrokerKey, live: LiveInfo) -> None:
        """Raises CommandError: the broker with this id works at its recorded address, and this heartbeat is
        of another process. That process was paused, and has been replaced. Over a newer connection it would
        displace the present one here, and its registration (1003) would be accepted."""
        before = self._liveness.info(key)
        if not isinstance(before, Heartbeat) or before.live.broker_address == live.broker_address:
            return
        group = self._group_of(key)
        if group is None or before.live.connection_id == live.connection_id:
            return  # over the same connection: the broker has moved
        if check_registered_address(group, key.broker_id, before.live.broker_address) is not None:
            return
        if refused := check_registered_address(group, key.broker_id, live.broker_address):
            raise CommandError(refused.code, refused.remark)

    def _all_ack_heartbeats(self, key: BrokerKey, now_ms: int, *, often: bool) -> Silence:
        """Returns the gaps of this master's heartbeats, with the one before this heartbeat. They begin anew
        with the heartbeat whose answer asks for more of them, and when no more are asked for."""
        before = self._liveness.info(key)
        if (
            not isinstance(before, Heartbeat)
            or before.all_ack_heartbeats is None
            or before.asked_often is not often
        ):
            return Silence(HEARTBEAT_SILENCE_MIN_MS if often else SELDOM_SILENCE_MIN_MS, now_ms)
        before.all_ack_heartbeats.heard(now_ms)
        return before.all_ack_heartbeats


def _refuses(known: object) -> int | None:
    """Returns the refused masterEpoch of a replica that refuses to be master; None: it does not."""
    live = known.live if isinstance(known, Heartbeat) else known
    return live.refused_epoch if isinstance(live, LiveInfo) and live.is_unfit else None


def _lenient(code: int, opaque: int, flag: int, ext_fields: Mapping[str, str]) -> HeartbeatCommand:
    """Parses the header fields by the rules of every other request."""
    fields = Fields(**dict(parse_header(BrokerHeartbeatRequest, ext_fields)))
    if max(map(len, (fields.cluster_name, fields.broker_addr, fields.broker_name))) > TEXT_BYTES_MAX:
        raise ValueError(f"a name or the address has more than {TEXT_BYTES_MAX} characters")
    return HeartbeatCommand(opaque, fields, flag)
