"""One HA link as the master sees it, sans-IO: bytes and now_ms in; packets to send, or a reason to close,
out.

The shell calls receive_data() with the bytes that arrived, and next_effect() whenever it may write; it sends
exactly the log bytes that a Send names. A link sees the log only as MasterLog, which the shell updates.

Invariants: position <= log.max_offset; no byte from sendable_end on is sent; ack_offset <= position; every
packet carries the epoch in which its first byte was written, does not extend past the end of that epoch, and
never crosses a file of the log.
"""

import sys

import msgspec

from broker.core.report_lease import REPORT_MS
from broker.ha.core.epochs import EpochEntry, Epochs
from broker.ha.core.frames import (
    EPOCHS_MAX,
    Ack,
    MasterHandshake,
    SlaveHandshake,
    SlaveStreamDecoder,
    encode_transfer,
)
from broker.ha.core.progress import ReplicationProgress
from broker.ha.core.throttle import Throttle
from keelmq.remoting.operation import RemoteProtocolError

FAR_BYTES = 8 << 20
NEAR_BYTES = 4 << 20
"""A thread sends batches to a slave that lacks FAR_BYTES; the loop sends the last NEAR_BYTES packet by
packet."""
SENDFILE_BYTES = 4 << 20
SENDFILE_BYTES_MIN = 1 << 20
"""If a rate limit allows less than this at a time, no thread is used."""
WRITING_BYTES_PER_SECOND = 1 << 20
"""Producers that write less than this do not slow down a slave that is far behind."""
BUSY_BYTES_PER_SECOND = 8 << 20
"""The least rate for a slave that is far behind, on a machine that has no CPU to spare."""
NEVER = sys.maxsize
WATCHED_MS = 80
"""A watched slave gets a heartbeat after this idle time: with each tick, so every 100 ms."""
CONFIRM_DELAY_MS = 100
"""An idle slave gets a newer confirmOffset after this time (RocketMQ: with the next heartbeat, 5 s)."""


class MasterLog(msgspec.Struct):
    """The log of one master as its links see it. The shell writes it, the links only read."""

    file_bytes: int
    epochs: Epochs = msgspec.field(default_factory=Epochs)
    min_offset: int = 0
    max_offset: int = 0
    confirm_offset: int = 0
    append_rate: int = 0  # bytes per second that producers write
    is_busy: bool = False  # the event loop has no CPU to spare: producers might write more


class LinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As in HaSettings, for one link."""

    batch_bytes: int
    send_heartbeat_interval_ms: int
    housekeeping_interval_ms: int
    bytes_per_second: int  # 0: no limit
    far_bytes_per_second: int  # to a slave that is far behind, while producers write; 0: no limit
    is_watched: bool = False  # slaves report the silence of this link: it is never silent for long


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write `header`, then `body_bytes` of the log from `offset`, without anything in between."""

    header: bytes
    offset: int = 0
    body_bytes: int = 0


class Close(msgspec.Struct, frozen=True):
    """Close the connection, and log the reason."""

    reason: str


class MasterLink:
    """The connection of one slave. slave_id is None until its handshake has arrived."""

    def __init__(self, log: MasterLog, settings: LinkSettings, *, now_ms: int) -> None:
        self.slave_id: int | None = None
        self.proven_id: int | None = None  # the broker id that its hello has proved; None: there was none
        self.read_ms = self._sent_ms = now_ms  # read_ms: when the last byte arrived
        self.heard_ms = (
            now_ms  # for the lease: as read_ms, less if it was sent before this process was stopped
        )
        self.learner = False
        self.pulls_metadata = False
        self.ack_offset = -1
        self.ack_count = 0  # acks that have arrived
        self.position = -1  # first byte not sent yet; -1: the slave has not asked for an offset yet
        self.sent_bytes = 0
        self.sendable_end = NEVER  # the bytes behind it were not checked yet, or are damaged
        self.close_reason: str | None = None
        self.began_at = -1  # offset of the first byte sent over this link
        self.restarted_from: int | None = None  # end of the slave's log, if it is below our minOffset
        self.progress = ReplicationProgress()
        self._log = log
        self._settings = settings
        self._heartbeat_ms = settings.send_heartbeat_interval_ms
        self._decoder = SlaveStreamDecoder()
        self._from_last_file = False
        self._handshake_due = False
        self._sent_confirm_offset = self._sent_epoch = -1
        self._entry: EpochEntry | None = None
        self._entry_of: Epochs | None = None
        self._caught_up_ms = now_ms
        self._mark_offset, self._mark_ms = log.max_offset, now_ms
        self._throttle = Throttle(settings.bytes_per_second, now_ms=now_ms)
        self._batch_bytes = self._packet_bytes()
        self._restart_due = False
        self._sent_all = False  # the last packet that was sent reached the end of the log

    def configure(self, settings: LinkSettings, now_ms: int) -> None:
        """Applies changed settings from the next packet on."""
        self._settings = settings
        self._set_heartbeat_interval()
        self._throttle.limit(settings.bytes_per_second, now_ms)
        self._batch_bytes = self._packet_bytes()

    def _set_heartbeat_interval(self) -> None:
        self._heartbeat_ms = self._settings.send_heartbeat_interval_ms
        if self.pulls_metadata:  # slaves of RocketMQ answer nothing
            often_ms = WATCHED_MS if self._settings.is_watched else REPORT_MS
            self._heartbeat_ms = min(self._heartbeat_ms, often_ms)

    def _packet_bytes(self) -> int:
        limit = self._settings.batch_bytes
        return min(limit, self._throttle.packet_bytes_max or limit)

    # -- for the SyncStateSet ------------------------------------------------------------------------------

    def caught_up_ms(self, now_ms: int) -> int:
        """Returns the last time at which the slave is known to have had the whole log."""
        if 0 <= self._log.max_offset <= self.ack_offset:
            return now_ms
        return self._caught_up_ms

    def read_progress(self, now_ms: int) -> None:
        """Adds a reading to `progress`, if the slave has bytes of our log."""
        if self.ack_offset >= self._log.min_offset and self.position >= 0:
            self.progress.read(now_ms, has=self.ack_offset, of=self._log.max_offset)

    # -- input -------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ms: int) -> None:
        """Handles bytes from the slave. An invalid stream closes the link."""
        self.read_ms = self.heard_ms = now_ms
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
        """Marks the link as closed. The first reason stays."""
        if self.close_reason is None:
            self.close_reason = reason

    def _receive_handshake(self, handshake: SlaveHandshake) -> None:
        if self.slave_id is not None:
            if handshake.slave_id != self.slave_id:
                self.close(f"slave {self.slave_id} calls itself {handshake.slave_id} in mid-stream")
            return  # a Java slave repeats its handshake if the answer is slow: one answer is enough
        if handshake.slave_id <= 0:
            self.close(f"handshake with the broker id {handshake.slave_id}")
            return
        if self.proven_id not in (None, handshake.slave_id):
            self.close(f"slave {self.proven_id} calls itself {handshake.slave_id} in its handshake")
            return
        self.slave_id = handshake.slave_id
        self.learner = handshake.async_learner
        self.pulls_metadata = handshake.pulls_metadata
        self._set_heartbeat_interval()
        self._from_last_file = handshake.sync_from_last_file
        self._handshake_due = True

    def _receive_ack(self, offset: int, now_ms: int) -> None:
        self.ack_count += 1
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
            self._update_caught_up(now_ms)

    def _receive_request(self, offset: int) -> None:
        """Handles the first ack, the end of the slave's log. 0: it is empty, and we choose its start.

        If it is below our minOffset, the bytes that the slave lacks are deleted here. A packet without bytes
        announces where our log begins; a KeelMQ slave starts over there, a RocketMQ slave closes the link
        (and its store must be emptied).
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

    def _update_caught_up(self, now_ms: int) -> None:
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
        """Whether next_effect() has log bytes to send."""
        return 0 <= self.position < min(self._log.max_offset, self.sendable_end)

    @property
    def is_settled(self) -> bool:
        """Whether an ack triggers no further packet: the whole log is sent, and the link is open."""
        sent_all = self.position >= self._log.max_offset
        return sent_all and self._sent_epoch >= 0 and self.close_reason is None

    def next_effect(self, now_ms: int) -> Send | Close | None:
        """Returns the next effect; None: there is none before more input, more log, or the next tick."""
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
        """Returns a Close if the link has failed or timed out. Also called while a packet is stuck in the
        socket."""
        if self.close_reason is None and now_ms - self.read_ms > self._settings.housekeeping_interval_ms:
            self.close(f"slave {self.slave_id} was silent for {now_ms - self.read_ms} ms")
        return Close(self.close_reason) if self.close_reason is not None else None

    @property
    def is_far_behind(self) -> bool:
        """Whether next_sendfile_batch() may have packets."""
        log = self._log
        return self.position >= 0 and min(log.max_offset, log.confirm_offset) - self.position >= FAR_BYTES

    def next_sendfile_batch(self, now_ms: int) -> list[Send]:
        """Returns packets that a thread may send while the loop continues; empty: use next_effect().

        They hold confirmed bytes only, which no change of the master truncates while they are being sent.
        """
        self._set_transfer_rate(now_ms)
        batch_bytes_max = min(SENDFILE_BYTES, self._throttle.packet_bytes_max or SENDFILE_BYTES)
        if (
            not self.is_far_behind
            or self._handshake_due
            or self._restart_due
            or batch_bytes_max < SENDFILE_BYTES_MIN
        ):
            return []
        if self.check(now_ms) is not None or not self._throttle.is_open(now_ms):
            return []
        end = min(self.position + batch_bytes_max, self._log.max_offset - NEAR_BYTES, self.sendable_end)
        packets = []
        while self.position < end and (extent := self._next_extent()) is not None:
            entry, body_bytes = extent
            packets.append(self._packet(entry, body_bytes, now_ms))
        return packets

    def _set_transfer_rate(self, now_ms: int) -> None:
        """Sets the rate for a slave that is far behind. It is always above the rate of the producers, or the
        slave would never catch up: twice that rate, or one and a half times on a busy machine, where the CPU
        for each copied byte is taken from the producers."""
        settings, append_rate, pace = self._settings, self._log.append_rate, 0
        if settings.bytes_per_second or not settings.far_bytes_per_second:
            return
        if append_rate >= WRITING_BYTES_PER_SECOND and self.is_far_behind:
            if self._log.is_busy:
                spare, least = BUSY_BYTES_PER_SECOND, append_rate * 3 // 2
            else:
                spare, least = settings.far_bytes_per_second, 2 * append_rate
            pace = max(min(spare, settings.far_bytes_per_second), least)
        if pace != self._throttle.bytes_per_second:
            self._throttle.limit(pace, now_ms)

    def _next_extent(self) -> tuple[EpochEntry, int] | None:
        """Returns epoch and length of the next packet. None: its offset is no longer in the log, and the link
        ends."""
        log = self._log
        entry = self._epoch_at(self.position)
        if entry is None or self.position < log.min_offset:
            self.close(f"offset {self.position} of slave {self.slave_id} is no longer in the log")
            return None
        end = min(log.max_offset, entry.end_offset, self._file_end(), self.sendable_end)
        return entry, min(end - self.position, self._batch_bytes)

    def _next_packet(self, now_ms: int) -> Send | Close | None:
        log, extent = self._log, self._next_extent()
        if extent is None:
            return Close(self.close_reason or "")
        entry, body_bytes = extent
        if self._throttle.bytes_per_second or body_bytes == self._batch_bytes:
            self._set_transfer_rate(now_ms)
        if body_bytes <= 0 or self._restart_due:
            body_bytes = 0
            if not self._restart_due and not self._heartbeat_due(entry, now_ms):
                return None
            self._restart_due = False
        elif not self._throttle.is_open(now_ms):
            return None  # the limit is used up until the next tick
        elif self._sent_all and self.ack_offset == self.position:
            self._caught_up_ms = now_ms  # the slave had the whole log until these bytes were written
            self._mark_offset, self._mark_ms = log.max_offset, now_ms
        return self._packet(entry, body_bytes, now_ms)

    def _packet(self, entry: EpochEntry, body_bytes: int, now_ms: int) -> Send:
        log = self._log
        position, confirm_offset = self.position, log.confirm_offset
        send = Send(self._header(entry, position, body_bytes), position, body_bytes)
        self.position = position + body_bytes
        self.sent_bytes += body_bytes
        self._sent_all = self.position >= log.max_offset
        self._throttle.spend(body_bytes)
        self._sent_ms, self._sent_epoch, self._sent_confirm_offset = now_ms, entry.epoch, confirm_offset
        return send

    def _header(self, entry: EpochEntry, position: int, body_bytes: int) -> bytes:
        """Returns the header of a packet."""
        confirm_offset = self._log.confirm_offset
        return encode_transfer(body_bytes, position, entry.epoch, entry.start_offset, confirm_offset)

    def _file_end(self) -> int:
        return self.position - self.position % self._log.file_bytes + self._log.file_bytes

    def _heartbeat_due(self, entry: EpochEntry, now_ms: int) -> bool:
        """Returns whether a heartbeat is due: at once for an epoch that the slave does not know, because an
        epoch without data is in no other packet."""
        idle_ms = now_ms - self._sent_ms
        if self._sent_confirm_offset != self._log.confirm_offset and idle_ms >= CONFIRM_DELAY_MS:
            return True
        return self._sent_epoch != entry.epoch or idle_ms >= self._heartbeat_ms

    def _epoch_at(self, offset: int) -> EpochEntry | None:
        """Returns the epoch of an offset. It is looked up again when the log gets a new epoch, so a packet
        never carries a stale one."""
        entry = self._entry
        if self._entry_of is not self._log.epochs or entry is None or offset >= entry.end_offset:
            self._entry_of = self._log.epochs
            self._entry = entry = self._log.epochs.find(offset)
        return entry
