"""One HA link without controllers, as the slave sees it: a SlaveLink with RocketMQ's classic packets.

The link begins with a report. Effects are SendBytes, ResetTo, Confirm and Close. A log is never truncated:
log_check.py decides before the link whether it continues the master's, and after that only a packet at the
log's end is accepted. Consumers may read all bytes that have arrived. Source: RocketMQ 5.3.3 DefaultHAClient.
"""

from typing import Final

from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import TransferHeader
from broker.ha.core.slave_link import ResetTo, SlaveLink, SlaveSettings
from broker.plain_ha.core.frames import HEADER_BYTES, REPORT, parse_header

NO_EPOCHS: Final = Epochs()


class PlainSlaveLink(SlaveLink):
    """One connection to a master."""

    def __init__(self, settings: SlaveSettings, *, min_offset: int, max_offset: int, now_ms: int) -> None:
        """An empty log, whose min_offset is max_offset, begins where the master's first bytes are."""
        is_empty = min_offset >= max_offset
        super().__init__(
            0,
            settings,
            epochs=NO_EPOCHS,
            min_offset=min_offset,
            max_offset=0 if is_empty else max_offset,
            now_ms=now_ms,
        )
        self._empty_at = max_offset
        self._effects.clear()  # there is no handshake
        self.transferring = True
        self.control_wanted = HEADER_BYTES

    def _report(self, offset: int) -> bytes:
        return REPORT.pack(offset)

    def _receive_header(self, data: bytes | bytearray | memoryview, now_ms: int) -> None:
        offset, body_bytes = parse_header(data)
        self._control.clear()
        self.control_wanted = HEADER_BYTES
        if self._log_is_empty:
            if not body_bytes:
                return  # the master has no bytes for us yet
            self._begin_log(offset)
        elif offset != self.max_offset:
            self._close(f"packet at offset {offset}, but this log ends at {self.max_offset}")
        file_bytes = self._settings.file_bytes
        if not self.closed and offset % file_bytes + body_bytes > file_bytes:
            self._file_size_mismatch(f"packet {offset}+{body_bytes} crosses the end of a file here")
        if self.closed:
            return
        end = offset + body_bytes
        header = TransferHeader(body_bytes, offset, epoch=0, epoch_start_offset=0, confirm_offset=end)
        self._header = header
        if body_bytes:
            self.body_wanted = body_bytes
        else:
            self._transfer_received(header, now_ms)

    def _begin_log(self, offset: int) -> None:
        if offset % self._settings.file_bytes:
            self._file_size_mismatch(f"the master's file begins at {offset}")
            return
        self._log_is_empty = False
        if offset != self._empty_at:
            self._effects.append(ResetTo(offset))
        self.max_offset = offset
        self._durable = min(self._durable, offset)
