"""One HA link as the slave sees it, sans-IO. Control bytes and body counts in, effects out.

The shell reads into one of two places: control_wanted bytes for receive_control(), or, while body_wanted >
0, up to that many bytes straight into the log at its max offset, followed by body_received(). After each
input it performs next_effect() until None, in that order:

    handshake ->  Truncate, SaveEpochs, SendBytes(ack)             durable before the master counts our bytes
    transfer  ->  ResetTo, SaveEpochs ... SendBytes(ack), Confirm

Invariant: max_offset is the end of the log, and every epoch that begins at or below it is in epochs. An empty
log counts as ending at 0 until the master's first packet tells where that one's begins.
With sync_flush acks tell what is on disk (pitfall 56), and the shell says by flushed() how far that is.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from broker.ha.core import frames
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import MasterHandshake, SlaveHandshake, TransferHeader
from broker.ha.core.progress import Progress
from broker.ha.core.truncation import CommonPoint, truncation_point
from remoting.operation import RemoteProtocolError

STOPPED = "Nothing was changed, and nothing is copied: `keelmq repair` shows what can be done"

ACK_DELAY_MS = 100
"""A part of a large packet is reported this late at most."""


class SendBytes(msgspec.Struct, frozen=True, gc=False):
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut log and queues at offset, durably, then call truncated() with the end that the log has now."""

    offset: int


@dataclass(frozen=True, slots=True)
class SaveEpochs:
    """Durably, before anything after it."""

    epochs: Epochs


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The log is empty, and begins at offset. What it had is older than all that the master has."""

    offset: int


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """Records that end at or below offset are safe to read."""

    offset: int


@dataclass(frozen=True, slots=True)
class Close:
    """fatal: another try would end the same way, an operator must act."""

    reason: str
    fatal: bool = False


Effect = SendBytes | Truncate | SaveEpochs | ResetTo | Confirm | Close


@dataclass(frozen=True, slots=True)
class SlaveSettings:
    file_bytes: int
    send_heartbeat_interval_ms: int = 5_000
    housekeeping_interval_ms: int = 20_000
    sync_from_last_file: bool = False
    async_learner: bool = False
    sync_flush: bool = False
    pulls_metadata: bool = False


class SlaveLink:
    """One connection to a master; a new connection gets a new link, so nothing is remembered wrongly."""

    def __init__(
        self,
        broker_id: int,
        settings: SlaveSettings,
        *,
        epochs: Epochs,
        min_offset: int,
        max_offset: int,
        now_ms: int,
    ) -> None:
        self.epochs = epochs
        self.max_offset = max_offset
        self.body_wanted = 0
        self.control_wanted = frames.MASTER_HANDSHAKE_BYTES
        self.master_max_offset = 0
        self.received_bytes = 0
        self.transferring = False
        self.closed = False
        self.progress = Progress()
        self._settings = settings
        self._log_is_empty = min_offset >= max_offset
        self._empty_at = max_offset  # where an empty log stands, as long as we do not know where to begin
        self._effects: deque[Effect] = deque()
        self._control = bytearray()
        self._master_epochs = Epochs()
        self._header: TransferHeader | None = None
        self._had_packet = False
        self._confirm_offset = -1
        self._reported = self._durable = -1
        self.read_ms = self.sent_ms = now_ms
        handshake = SlaveHandshake(
            broker_id, settings.sync_from_last_file, settings.async_learner, settings.pulls_metadata
        )
        self._effects.append(SendBytes(handshake.encode()))

    # -- output ------------------------------------------------------------------------------------------

    def next_effect(self, now_ms: int) -> Effect | None:
        if self._effects:
            return self._effects.popleft()
        if self.body_wanted or self.closed or not self.transferring:
            return None
        return self._report(now_ms) if self._is_news else None

    @property
    def wants_flush(self) -> bool:
        """Bytes that the master waits for are not known to be on disk."""
        return self._settings.sync_flush and self.transferring and self._durable < self.max_offset

    @property
    def _ack(self) -> int:
        return min(self._durable, self.max_offset) if self._settings.sync_flush else self.max_offset

    @property
    def _is_news(self) -> bool:
        """The first ack says where our log ends, so it waits for all of it."""
        return self._ack > self._reported and (self._reported >= 0 or self._ack == self.max_offset)

    def flushed(self, offset: int) -> None:
        """The log is on disk up to here."""
        self._durable = max(self._durable, offset)

    def tick(self, now_ms: int) -> None:
        """At least every 100 ms: reports and time-outs that no input triggers."""
        if now_ms - self.read_ms > self._settings.housekeeping_interval_ms:
            self._close(f"the master was silent for {now_ms - self.read_ms} ms")
        if self.closed or not self.transferring or self._effects:
            return
        if not self._log_is_empty:
            self.progress.read(now_ms, has=self.max_offset, of=self.master_max_offset)
        late_ms = now_ms - self.sent_ms
        part = self._is_news and late_ms >= ACK_DELAY_MS
        idle = self._reported >= 0 and late_ms >= self._settings.send_heartbeat_interval_ms
        if part or idle:
            self._effects.append(self._report(now_ms))

    def _report(self, now_ms: int) -> SendBytes:
        self.sent_ms, self._reported = now_ms, self._ack
        return SendBytes(frames.encode_ack(self._reported))

    def _close(self, reason: str, *, fatal: bool = False) -> None:
        if not self.closed:
            self.closed = True
            self._effects.append(Close(reason, fatal))

    # -- input -------------------------------------------------------------------------------------------

    def receive_control(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """At most control_wanted bytes."""
        assert len(data) <= self.control_wanted and not self.body_wanted
        self.read_ms = now_ms
        self.control_wanted -= len(data)
        if self._control or self.control_wanted or not self.transferring:
            self._control += data
            data = self._control
        if self.control_wanted or self.closed:
            return
        try:
            if self.transferring:
                self._receive_header(data, now_ms)
            else:
                self._receive_handshake()
        except RemoteProtocolError as error:
            self._close(str(error))

    def body_received(self, count: int, now_ms: int) -> None:
        """count bytes of the body are in the log."""
        assert 0 < count <= self.body_wanted
        self.read_ms = now_ms
        self.body_wanted -= count
        self.max_offset += count
        self.received_bytes += count
        if not self.body_wanted and self._header is not None:
            self._packet_done(self._header, now_ms)

    # -- handshake ---------------------------------------------------------------------------------------

    def _receive_handshake(self) -> None:
        body_bytes = frames.master_handshake_body_bytes(self._control[: frames.MASTER_HANDSHAKE_BYTES])
        self.control_wanted = frames.MASTER_HANDSHAKE_BYTES + body_bytes - len(self._control)
        if self.control_wanted:
            return
        handshake = frames.parse_master_handshake(self._control)
        self._expect_header()
        self._follow(handshake)

    def _follow(self, handshake: MasterHandshake) -> None:
        """Cut what this master does not have; then it sends from our end on."""
        self._master_epochs = Epochs.of(handshake.epochs)
        self.master_max_offset = handshake.max_offset
        point = truncation_point(
            self.epochs,
            slave_max=self.max_offset,
            master=self._master_epochs,
            master_max=handshake.max_offset,
        )
        if self._log_is_empty and (point is None or self.max_offset):
            point = CommonPoint(0, Epochs())  # nothing to lose: the master says where the log begins
            self.max_offset = 0
        if point is None:
            self._close(
                f"no common epoch: this log has {_text(self.epochs)} up to {self.max_offset}, the master has"
                f" {_text(self._master_epochs)} up to {handshake.max_offset}. {STOPPED}",
                fatal=True,
            )
            return
        if point.offset < self.max_offset:
            self._effects.append(Truncate(point.offset))
            self.max_offset = point.offset
        if point.epochs != self.epochs:
            self.epochs = point.epochs
            self._effects.append(SaveEpochs(point.epochs))
        self.transferring = True

    def not_a_boundary(self, offset: int) -> None:
        """Truncate asked for a cut inside a record of this log, and nothing was cut."""
        self._effects.clear()
        self._close(
            f"the logs differ although their epochs agree: a cut at {offset} would go through a record of"
            f" this log ({_text(self.epochs)}). {STOPPED}",
            fatal=True,
        )

    def truncated(self, max_offset: int) -> None:
        """The cut is durable; the log may end before it, if the cut was inside a message."""
        self.max_offset = min(max_offset, self.max_offset)
        self._durable = min(self._durable, self.max_offset)

    # -- transfer ----------------------------------------------------------------------------------------

    def _expect_header(self) -> None:
        self._control.clear()
        self.control_wanted = frames.TRANSFER_BYTES

    def _receive_header(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        header = frames.parse_transfer_header(data)
        self._expect_header()
        reset = self._check_place(header)
        self._had_packet = True
        if self.closed:
            return
        if reset:
            self.max_offset = self._empty_at = header.offset
            self._durable = min(self._durable, header.offset)
            self.epochs = Epochs()  # of bytes that go; the ones of the bytes that come are learned below
            self._effects.append(ResetTo(header.offset))
        self._learn_epochs(header)
        if self.closed:
            return
        self._header = header
        if header.body_bytes:
            self._log_is_empty = False
            self.body_wanted = header.body_bytes
        else:
            self._packet_done(header, now_ms)

    def _check_place(self, header: TransferHeader) -> bool:
        """The packet must continue our log. True: our log is empty and begins where the packet does."""
        file_bytes = self._settings.file_bytes
        if header.offset != self.max_offset:
            if self._master_begins_at(header):
                self._log_is_empty = True
            elif not self._log_is_empty:
                self._close(f"packet at offset {header.offset}, but this log ends at {self.max_offset}")
            elif not header.body_bytes:
                return False  # a heartbeat of a master that has not found our place, perhaps at -1
            elif header.offset < 0:
                self._close(f"packet at offset {header.offset}")
            return header.offset != self.max_offset and not self.closed
        if header.body_bytes and header.offset % file_bytes + header.body_bytes > file_bytes:
            self._mismatch(f"packet {header.offset}+{header.body_bytes} crosses the end of a file of ours")
        return self._log_is_empty and self._empty_at != header.offset and not self.closed

    def _master_begins_at(self, header: TransferHeader) -> bool:
        """A KeelMQ master answers so when it has deleted what follows our end: its log begins there."""
        if self._log_is_empty or self._had_packet or header.body_bytes:
            return False
        return self.max_offset < header.offset <= self.master_max_offset

    def _mismatch(self, what: str) -> None:
        self._close(
            f"{what}: mappedFileSizeCommitLog must be the same on all replicas (here"
            f" {self._settings.file_bytes}). {STOPPED}",
            fatal=True,
        )

    def _learn_epochs(self, header: TransferHeader) -> None:
        """Record, before its bytes arrive, each epoch that the log will touch.

        A Java master labels the last piece of an epoch with the next one, whose start lies behind the packet;
        the epoch of those bytes then stands in the handshake's list.
        """
        if self._log_is_empty and not header.body_bytes and header.offset != self.max_offset:
            return
        if max(header.epoch, self._master_epochs.last_epoch) <= self.epochs.last_epoch:
            return  # nothing is newer than what is known
        end = header.offset + header.body_bytes
        known = [
            (entry.epoch, entry.start_offset)
            for entry in self._master_epochs.entries
            if entry.end_offset > header.offset or entry.start_offset == header.offset
        ]
        epochs = self.epochs
        for epoch, start in [*known, (header.epoch, header.epoch_start_offset)]:
            if epoch <= epochs.last_epoch or (start > header.offset and start >= end):
                continue
            if start < epochs.last_start_offset:
                self._close(f"epoch {epoch}@{start} of the master contradicts this log's {_text(epochs)}")
                return
            epochs = epochs.append(epoch, start)
        if epochs is not self.epochs:
            self.epochs = epochs
            self._effects.append(SaveEpochs(epochs))

    def _packet_done(self, header: TransferHeader, now_ms: int) -> None:
        self._header = None
        self.master_max_offset = max(self.master_max_offset, self.max_offset, header.confirm_offset)
        if header.body_bytes and self._is_news:
            self._effects.append(self._report(now_ms))
        confirm = min(header.confirm_offset, self.max_offset)
        if confirm > self._confirm_offset:
            self._confirm_offset = confirm
            self._effects.append(Confirm(confirm))


def _text(epochs: Epochs) -> str:
    return ", ".join(f"{epoch}@{start}" for epoch, start in epochs.pairs) or "no epochs"
