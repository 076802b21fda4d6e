"""One HA link as the master sees it, sans-IO: bytes and now_ms in, packets to send or a reason to close out.

The shell calls receive_data() with what arrived, and next_effect() whenever it may write; it sends exactly
the log bytes that a Send names. A link never looks behind MasterLog, which the shell keeps up to date.

Invariants: position <= log.max_offset; ack_offset <= position; every packet carries the epoch that its
first byte was written in, ends where that epoch ends, and never crosses a file of the log.
"""

from dataclasses import dataclass, field

import msgspec

from broker.ha.core.epochs import EpochEntry, Epochs
from broker.ha.core.frames import (
    EPOCHS_MAX,
    Ack,
    MasterHandshake,
    SlaveHandshake,
    SlaveStreamDecoder,
    encode_transfer,
)
from broker.ha.core.progress import Progress
from broker.ha.core.throttle import Throttle
from remoting.operation import RemoteProtocolError

FAR_BYTES = 8 << 20
NEAR_BYTES = 4 << 20
"""A replica that lacks FAR_BYTES is sent runs, by a thread; the last NEAR_BYTES go packet by packet."""
RUN_BYTES = 4 << 20
RUN_BYTES_MIN = 1 << 20
"""A limit that allows less at a time is not worth a thread."""
WRITING_BYTES_PER_SECOND = 1 << 20
"""From here on the producers are said to write, and a replica far behind leaves them their share."""
BUSY_BYTES_PER_SECOND = 8 << 20
"""What it gets at least on a machine that has nothing to spare."""
CONFIRM_DELAY_MS = 100
"""An idle slave hears of a newer confirmOffset this soon (the peer: with the next heartbeat, 5 s)."""


@dataclass(slots=True)
class MasterLog:
    """What the links of one master know of its log; the shell writes it, links only read."""

    file_bytes: int
    epochs: Epochs = field(default_factory=Epochs)
    min_offset: int = 0
    max_offset: int = 0
    confirm_offset: int = 0
    growth: int = 0  # what producers write, bytes per second
    busy: bool = False  # they would write more, if this broker had more of the machine


@dataclass(frozen=True, slots=True)
class LinkSettings:
    batch_bytes: int = 131_072
    send_heartbeat_interval_ms: int = 5_000
    housekeeping_interval_ms: int = 20_000
    bytes_per_second: int = 0  # of one link; 0: as fast as it goes
    far_bytes_per_second: int = 0  # of one that is far behind, while producers write


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write header, then body_bytes of the log from offset, in one piece."""

    header: bytes
    offset: int = 0
    body_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    reason: str


class MasterLink:
    """A connection of one slave. slave_id is None until its handshake came."""

    def __init__(self, log: MasterLog, settings: LinkSettings, *, now_ms: int) -> None:
        self.slave_id: int | None = None
        self.read_ms = self._sent_ms = now_ms  # read: when the last byte came
        self.learner = False
        self.pulls_metadata = False
        self.ack_offset = -1
        self.position = -1  # first byte not yet sent; -1: the slave has not said where to begin
        self.sent_bytes = 0
        self.close_reason: str | None = None
        self.began_at = -1  # offset of the first byte that was sent, or will be
        self.restarted_from: int | None = None  # where the slave's log ended, if ours begins behind that
        self.progress = Progress()
        self._log = log
        self._settings = settings
        self._decoder = SlaveStreamDecoder()
        self._from_last_file = False
        self._handshake_due = False
        self._told_confirm = self._told_epoch = -1
        self._entry: EpochEntry | None = None
        self._entry_of: Epochs | None = None
        self._caught_up_ms = now_ms
        self._mark_offset, self._mark_ms = log.max_offset, now_ms
        self._throttle = Throttle(settings.bytes_per_second, now_ms=now_ms)
        packet_bytes_max = self._throttle.packet_bytes_max or settings.batch_bytes
        self._batch_bytes = min(settings.batch_bytes, packet_bytes_max)
        self._restart_due = False
        self._sent_all = False  # nothing of the log was left when the last packet went

    # -- what the keeper of the SyncStateSet asks ----------------------------------------------------------

    def caught_up_ms(self, now_ms: int) -> int:
        """The last instant at which the slave is known to have had all that we had."""
        if 0 <= self._log.max_offset <= self.ack_offset:
            return now_ms
        return self._caught_up_ms

    def read_progress(self, now_ms: int) -> None:
        """From time to time. A slave that begins has nothing of the log yet: that is no pace."""
        if self.ack_offset >= self._log.min_offset and self.position >= 0:
            self.progress.read(now_ms, has=self.ack_offset, of=self._log.max_offset)

    # -- input -------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ms: int) -> None:
        self.read_ms = now_ms
        decoder = self._decoder
        try:
            if self.close_reason is None and (ack := decoder.lone_ack(data)) is not None:
                self._receive_ack(ack, now_ms)
                return
            decoder.receive_data(data)
            while self.close_reason is None and (packet := decoder.next_packet()) is not None:
                if isinstance(packet, Ack):
                    self._receive_ack(packet.offset, now_ms)
                else:
                    self._receive_handshake(packet)
        except RemoteProtocolError as error:
            self.close(str(error))

    def close(self, reason: str) -> None:
        """The first reason stays."""
        if self.close_reason is None:
            self.close_reason = reason

    def _receive_handshake(self, handshake: SlaveHandshake) -> None:
        if self.slave_id is not None:
            if handshake.slave_id != self.slave_id:
                self.close(f"slave {self.slave_id} calls itself {handshake.slave_id} in mid-stream")
            return  # a Java slave repeats itself when the answer is slow: one answer is enough
        if handshake.slave_id <= 0:
            self.close(f"handshake with the broker id {handshake.slave_id}")
            return
        self.slave_id = handshake.slave_id
        self.learner = handshake.async_learner
        self.pulls_metadata = handshake.pulls_metadata
        self._from_last_file = handshake.sync_from_last_file
        self._handshake_due = True

    def _receive_ack(self, offset: int, now_ms: int) -> None:
        if self.slave_id is None:
            self.close("an ack before the handshake")
        elif self.position < 0:
            self._receive_request(offset)
        elif offset < self.ack_offset:
            self.close(f"ack {offset} after ack {self.ack_offset}")
        elif offset > self.position:
            self.close(f"ack {offset}, but only {self.position} was sent")
        else:
            self.ack_offset = offset
        if self.close_reason is None:
            self._note_progress(now_ms)

    def _receive_request(self, offset: int) -> None:
        """The first ack says where the slave's log ends. 0: it is empty, we say where it begins.

        Below our minimum: what it lacks is deleted here. A packet without bytes tells it where our log
        begins; a KeelMQ slave starts over there, a RocketMQ slave closes (and needs its store emptied).
        """
        log = self._log
        start = offset
        if 0 <= offset < log.min_offset or offset == 0:
            last_file = log.max_offset - log.max_offset % log.file_bytes
            start = max(log.min_offset, last_file) if self._from_last_file else log.min_offset
        if 0 < offset < log.min_offset:
            self._restart_due, self.restarted_from = True, offset
        if not log.min_offset <= start <= log.max_offset:
            self.close(
                f"slave {self.slave_id} asks for offset {offset}, but the log is"
                f" {log.min_offset}..{log.max_offset}"
            )
            return
        self.position = self.began_at = start
        self._sent_all = start == log.max_offset
        self.ack_offset = offset

    def _note_progress(self, now_ms: int) -> None:
        """Kafka's rule: at _mark_ms the log ended at _mark_offset, and now the slave has all of that."""
        if self.ack_offset >= self._log.max_offset:
            self._caught_up_ms = now_ms
        elif self.ack_offset >= self._mark_offset:
            self._caught_up_ms = max(self._caught_up_ms, self._mark_ms)
        else:
            return
        self._mark_offset, self._mark_ms = self._log.max_offset, now_ms

    # -- output ------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """next_effect() has log bytes to send now."""
        return 0 <= self.position < self._log.max_offset

    @property
    def is_settled(self) -> bool:
        """An ack gives nothing to do: the link neither begins nor ends, and has only heartbeats to send."""
        sent_all = self.position >= self._log.max_offset
        return sent_all and self._told_epoch >= 0 and self.close_reason is None

    def next_effect(self, now_ms: int) -> Send | Close | None:
        """What to do now; None: nothing before more bytes, more log, or the next tick."""
        if (close := self.check(now_ms)) is not None:
            return close
        if self._handshake_due:
            self._handshake_due = False
            self._sent_ms = now_ms
            return Send(MasterHandshake(self._log.max_offset, self._log.epochs.pairs[-EPOCHS_MAX:]).encode())
        if self.position < 0:
            return None
        return self._next_packet(now_ms)

    def check(self, now_ms: int) -> Close | None:
        """Also while a packet is on its way that the slave does not take."""
        if self.close_reason is None and now_ms - self.read_ms > self._settings.housekeeping_interval_ms:
            self.close(f"slave {self.slave_id} was silent for {now_ms - self.read_ms} ms")
        return Close(self.close_reason) if self.close_reason is not None else None

    @property
    def is_far(self) -> bool:
        """next_run() may have something."""
        log = self._log
        return self.position >= 0 and min(log.max_offset, log.confirm_offset) - self.position >= FAR_BYTES

    def next_run(self, now_ms: int) -> list[Send]:
        """Packets that a thread may send while the loop goes on; empty: ask next_effect(). Of confirmed bytes
        only: no change of the master takes these away while they are on their way."""
        self._set_pace(now_ms)
        run_bytes = min(RUN_BYTES, self._throttle.packet_bytes_max or RUN_BYTES)
        if not self.is_far or self._handshake_due or self._restart_due or run_bytes < RUN_BYTES_MIN:
            return []
        if self.check(now_ms) is not None or not self._throttle.is_open(now_ms):
            return []
        end = min(self.position + run_bytes, self._log.max_offset - NEAR_BYTES)
        packets = []
        while self.position < end and (place := self._place()) is not None:
            entry, body_bytes = place
            packets.append(self._packet(entry, body_bytes, now_ms))
        return packets

    def _set_pace(self, now_ms: int) -> None:
        """More than producers write in any case, or a busy group would never be whole again: twice that, and
        on a busy machine half as much again. There a copied byte, which costs the replica most, is taken from
        the producers."""
        settings, growth, pace = self._settings, self._log.growth, 0
        if settings.bytes_per_second or not settings.far_bytes_per_second:
            return
        if growth >= WRITING_BYTES_PER_SECOND and self.is_far:
            if self._log.busy:
                spare, least = BUSY_BYTES_PER_SECOND, growth * 3 // 2
            else:
                spare, least = settings.far_bytes_per_second, 2 * growth
            pace = max(min(spare, settings.far_bytes_per_second), least)
        if pace != self._throttle.bytes_per_second:
            self._throttle.limit(pace, now_ms)

    def _place(self) -> tuple[EpochEntry, int] | None:
        """Epoch and length of the next packet. None: its place is not in the log any more, the link ends."""
        log = self._log
        entry = self._epoch_at(self.position)
        if entry is None or self.position < log.min_offset:
            self.close(f"offset {self.position} of slave {self.slave_id} is no longer in the log")
            return None
        end = min(log.max_offset, entry.end_offset, self._file_end())
        return entry, min(end - self.position, self._batch_bytes)

    def _next_packet(self, now_ms: int) -> Send | Close | None:
        log, place = self._log, self._place()
        if place is None:
            return Close(self.close_reason or "")
        entry, body_bytes = place
        if self._throttle.bytes_per_second or body_bytes == self._batch_bytes:
            self._set_pace(now_ms)
        if body_bytes <= 0 or self._restart_due:
            body_bytes = 0
            if not self._restart_due and not self._heartbeat_due(entry, now_ms):
                return None
            self._restart_due = False
        elif not self._throttle.is_open(now_ms):
            return None  # until the next tick
        elif self._sent_all and self.ack_offset == self.position:
            self._caught_up_ms = now_ms  # it had everything until these bytes came
            self._mark_offset, self._mark_ms = log.max_offset, now_ms
        return self._packet(entry, body_bytes, now_ms)

    def _packet(self, entry: EpochEntry, body_bytes: int, now_ms: int) -> Send:
        log = self._log
        position, confirm_offset = self.position, log.confirm_offset
        header = encode_transfer(body_bytes, position, entry.epoch, entry.start_offset, confirm_offset)
        send = Send(header, position, body_bytes)
        self.position = position + body_bytes
        self.sent_bytes += body_bytes
        self._sent_all = self.position >= log.max_offset
        self._throttle.spend(body_bytes)
        self._sent_ms, self._told_epoch, self._told_confirm = now_ms, entry.epoch, confirm_offset
        return send

    def _file_end(self) -> int:
        return self.position - self.position % self._log.file_bytes + self._log.file_bytes

    def _heartbeat_due(self, entry: EpochEntry, now_ms: int) -> bool:
        """At once for an epoch that the slave has not heard of: without data this is its only mark."""
        idle_ms = now_ms - self._sent_ms
        if self._told_confirm != self._log.confirm_offset and idle_ms >= CONFIRM_DELAY_MS:
            return True
        return self._told_epoch != entry.epoch or idle_ms >= self._settings.send_heartbeat_interval_ms

    def _epoch_at(self, offset: int) -> EpochEntry | None:
        """Looked up again whenever the log got a new epoch, so a label can never be a stale one."""
        entry = self._entry
        if self._entry_of is not self._log.epochs or entry is None or offset >= entry.end_offset:
            self._entry_of = self._log.epochs
            self._entry = entry = self._log.epochs.find(offset)
        return entry
