"""One HA link as the slave sees it, sans-IO: control bytes and body counts in, effects out.

The shell reads into one of two places: control_wanted bytes for receive_control(), or, while body_wanted > 0,
up to that many bytes straight into the log at its maxOffset, followed by body_received(). After each input it
performs next_effect() until None, in that order:

    handshake ->  Truncate, SaveEpochs, SendBytes(ack)             durable before the first ack
    transfer  ->  ResetTo, SaveEpochs ... SendBytes(ack), Confirm

Invariant: max_offset is the end of the log, and every epoch that begins at or below it is in `epochs`. An
empty log ends at 0 until the master's first packet names the offset at which the master's log begins.

With sync_flush, acks cover only bytes on disk (pitfall 56), which the shell reports by flushed().
"""

from collections import deque

import msgspec

from broker.core.report_lease import HEARD_MS
from broker.ha.core import frames
from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import MasterHandshake, SlaveHandshake, TransferHeader
from broker.ha.core.progress import ReplicationProgress
from broker.ha.core.truncation import CommonPoint, truncation_point
from keelmq.remoting.operation import RemoteProtocolError

STOPPED = "Nothing was changed, and nothing is copied: `keelmq repair` shows what can be done"

ACK_DELAY_MS = 100
"""A part of a large packet is acknowledged after this time at the latest."""


class SendBytes(msgspec.Struct, frozen=True, gc=False):
    """Write `data` to the master."""

    data: bytes


class Truncate(msgspec.Struct, frozen=True):
    """Truncate log and queues at `offset`, durably, then call truncated() with the log's new end."""

    offset: int


class SaveEpochs(msgspec.Struct, frozen=True):
    """Save the epochs durably, before any later effect."""

    epochs: Epochs


class ResetTo(msgspec.Struct, frozen=True):
    """Delete the log and begin it at `offset`. All of it is older than the master's log."""

    offset: int


class Confirm(msgspec.Struct, frozen=True, gc=False):
    """Records that end at or below `offset` may be read by consumers."""

    offset: int


class Close(msgspec.Struct, frozen=True):
    """Close the connection. fatal: another attempt would end the same way, and an operator must act."""

    reason: str
    fatal: bool = False


Effect = SendBytes | Truncate | SaveEpochs | ResetTo | Confirm | Close


class SlaveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """As in HaSettings. file_bytes: mappedFileSizeCommitLog. pulls_metadata: it asks for metadata (29001).
    silent_interval_ms: of reports while the master is silent; these may count for its lease although no byte
    of it arrives here (broker/core/report_lease.py); None: the usual interval."""

    file_bytes: int
    send_heartbeat_interval_ms: int
    housekeeping_interval_ms: int
    sync_from_last_file: bool
    async_learner: bool
    sync_flush: bool
    pulls_metadata: bool
    silent_interval_ms: int | None = None


class SlaveLink:
    """One connection to a master. A new connection gets a new link, so no state is carried over."""

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
        self.progress = ReplicationProgress()
        self._settings = settings
        self._log_is_empty = min_offset >= max_offset
        self._empty_at = max_offset  # offset of an empty log until the master names the first one
        self._effects: deque[Effect] = deque()
        self._control = bytearray()
        self._master_epochs = Epochs()
        self._header: TransferHeader | None = None
        self._had_transfer = False
        self._confirm_offset = -1
        self._acked_offset = self._durable = -1
        self.read_ms = self.sent_ms = now_ms
        handshake = SlaveHandshake(
            broker_id, settings.sync_from_last_file, settings.async_learner, settings.pulls_metadata
        )
        self._effects.append(SendBytes(handshake.encode()))

    def configure(self, settings: SlaveSettings) -> None:
        """Applies changed settings. Bytes that were acknowledged before sync_flush stay acknowledged: an ack
        never goes back."""
        self._settings = settings
        self._durable = max(self._durable, self._acked_offset)

    # -- output ------------------------------------------------------------------------------------------

    def next_effect(self, now_ms: int) -> Effect | None:
        """Returns the next effect; None: there is none before the next input or tick."""
        if self._effects:
            return self._effects.popleft()
        if self.body_wanted or self.closed or not self.transferring:
            return None
        return self._new_ack(now_ms) if self._ack_is_due else None

    @property
    def wants_flush(self) -> bool:
        """Whether the master waits for bytes that are not known to be on disk."""
        return self._settings.sync_flush and self.transferring and self._durable < self.max_offset

    @property
    def _ack(self) -> int:
        return min(self._durable, self.max_offset) if self._settings.sync_flush else self.max_offset

    @property
    def _ack_is_due(self) -> bool:
        """Whether there is something to acknowledge. The first ack is the end of our log, so it waits until
        all of the log may be acknowledged."""
        return self._ack > self._acked_offset and (self._acked_offset >= 0 or self._ack == self.max_offset)

    def flushed(self, offset: int) -> None:
        """Called when the log is on disk up to `offset`."""
        self._durable = max(self._durable, offset)

    def tick(self, now_ms: int) -> None:
        """Called at least every 100 ms: sends the acks and detects the time-outs that no input triggers."""
        if now_ms - self.read_ms > self._settings.housekeeping_interval_ms:
            self._close(f"the master was silent for {now_ms - self.read_ms} ms")
        if self.closed or not self.transferring or self._effects:
            return
        if not self._log_is_empty:
            self.progress.read(now_ms, has=self.max_offset, of=self.master_max_offset)
        late_ms = now_ms - self.sent_ms
        part = self._ack_is_due and late_ms >= ACK_DELAY_MS
        idle = self._acked_offset >= 0 and late_ms >= self._report_interval_ms(now_ms)
        if part or idle:
            self._effects.append(self._new_ack(now_ms))

    def _report_interval_ms(self, now_ms: int) -> int:
        settings = self._settings
        if settings.silent_interval_ms is not None and now_ms - self.read_ms > HEARD_MS:
            return settings.silent_interval_ms
        return settings.send_heartbeat_interval_ms

    def _new_ack(self, now_ms: int) -> SendBytes:
        self.sent_ms, self._acked_offset = now_ms, self._ack
        return SendBytes(self._report(self._acked_offset))

    def _report(self, offset: int) -> bytes:
        """Returns the packet that acknowledges the bytes below `offset`."""
        return frames.encode_ack(offset)

    def _close(self, reason: str, *, fatal: bool = False) -> None:
        if not self.closed:
            self.closed = True
            self._effects.append(Close(reason, fatal))

    # -- input -------------------------------------------------------------------------------------------

    def receive_control(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        """Handles header bytes, at most control_wanted of them."""
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
        """Called when `count` further bytes of the body are in the log."""
        assert 0 < count <= self.body_wanted
        self.read_ms = now_ms
        self.body_wanted -= count
        self.max_offset += count
        self.received_bytes += count
        if not self.body_wanted and self._header is not None:
            self._transfer_received(self._header, now_ms)

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
        """Truncates the log to the part shared with this master, which then sends from our end on."""
        self._master_epochs = Epochs.of(handshake.epochs)
        self.master_max_offset = handshake.max_offset
        point = truncation_point(
            self.epochs,
            slave_max=self.max_offset,
            master=self._master_epochs,
            master_max=handshake.max_offset,
        )
        if self._log_is_empty and (point is None or self.max_offset):
            point = CommonPoint(0, Epochs())  # nothing can be lost: the master names the first offset
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

    def not_a_record_start(self, offset: int) -> None:
        """Called instead of truncated() when the truncation point is inside a record of this log. The log was
        not changed."""
        self._effects.clear()
        self._close(
            f"the logs differ although their epochs agree: truncation at {offset} would split a record of"
            f" this log ({_text(self.epochs)}). {STOPPED}",
            fatal=True,
        )

    def truncated(self, max_offset: int) -> None:
        """Called when the truncation is durable. The log may end before the wanted offset, at the end of a
        whole record."""
        self.max_offset = min(max_offset, self.max_offset)
        self._durable = min(self._durable, self.max_offset)

    # -- transfer ----------------------------------------------------------------------------------------

    def _expect_header(self) -> None:
        self._control.clear()
        self.control_wanted = frames.TRANSFER_BYTES

    def _receive_header(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        header = frames.parse_transfer_header(data)
        self._expect_header()
        reset = self._check_offset(header)
        self._had_transfer = True
        if self.closed:
            return
        if reset:
            self.max_offset = self._empty_at = header.offset
            self._durable = min(self._durable, header.offset)
            self.epochs = Epochs()  # the old ones are deleted with their bytes; new ones are added below
            self._effects.append(ResetTo(header.offset))
        self._learn_epochs(header)
        if self.closed:
            return
        self._header = header
        if header.body_bytes:
            self._log_is_empty = False
            self.body_wanted = header.body_bytes
        else:
            self._transfer_received(header, now_ms)

    def _check_offset(self, header: TransferHeader) -> bool:
        """Closes the link unless the packet continues our log. Returns True if our log is empty and begins at
        the packet's offset."""
        file_bytes = self._settings.file_bytes
        if header.offset != self.max_offset:
            if self._is_log_start_of_master(header):
                self._log_is_empty = True
            elif not self._log_is_empty:
                self._close(f"packet at offset {header.offset}, but this log ends at {self.max_offset}")
            elif not header.body_bytes:
                return False  # a heartbeat of a master that does not know our offset yet; Java sends -1
            elif header.offset < 0:
                self._close(f"packet at offset {header.offset}")
            return header.offset != self.max_offset and not self.closed
        if header.body_bytes and header.offset % file_bytes + header.body_bytes > file_bytes:
            self._file_size_mismatch(
                f"packet {header.offset}+{header.body_bytes} crosses the end of a file here"
            )
        return self._log_is_empty and self._empty_at != header.offset and not self.closed

    def _is_log_start_of_master(self, header: TransferHeader) -> bool:
        """Returns whether a KeelMQ master reports that it has deleted the bytes behind our end: its log
        begins at this offset."""
        if self._log_is_empty or self._had_transfer or header.body_bytes:
            return False
        return self.max_offset < header.offset <= self.master_max_offset

    def _file_size_mismatch(self, what: str) -> None:
        self._close(
            f"{what}: mappedFileSizeCommitLog must be the same on all replicas (here"
            f" {self._settings.file_bytes}). {STOPPED}",
            fatal=True,
        )

    def _learn_epochs(self, header: TransferHeader) -> None:
        """Records each epoch that the packet touches, before its bytes arrive.

        A Java master labels the last piece of an epoch with the next one, whose start lies behind the packet;
        the epoch of those bytes is in the handshake's list then.
        """
        if self._log_is_empty and not header.body_bytes and header.offset != self.max_offset:
            return
        if max(header.epoch, self._master_epochs.last_epoch) <= self.epochs.last_epoch:
            return  # the master names no newer epoch
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

    def _transfer_received(self, header: TransferHeader, now_ms: int) -> None:
        self._header = None
        self.master_max_offset = max(self.master_max_offset, self.max_offset, header.confirm_offset)
        if header.body_bytes and self._ack_is_due:
            self._effects.append(self._new_ack(now_ms))
        confirm = min(header.confirm_offset, self.max_offset)
        if confirm > self._confirm_offset:
            self._confirm_offset = confirm
            self._effects.append(Confirm(confirm))


def _text(epochs: Epochs) -> str:
    return ", ".join(f"{epoch}@{start}" for epoch, start in epochs.pairs) or "no epochs"
