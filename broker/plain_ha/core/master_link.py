"""One HA link without controllers, as the master sees it: a MasterLink with RocketMQ's classic packets.

The protocol has no handshake, so a slave has no broker id here unless its hello has proved one; the number of
its connection, below 0, replaces it. The log is one epoch, and no packet names it. Source: RocketMQ 5.3.3
DefaultHAConnection.
"""

from typing import Final

from broker.ha.core.epochs import EpochEntry, Epochs
from broker.ha.core.master_link import LinkSettings, MasterLink, MasterLog
from broker.plain_ha.core.frames import HEADER, REPORT, REPORT_BYTES

WHOLE_LOG: Final = Epochs((EpochEntry(0, 0),))
"""MasterLog.epochs of a master without controllers."""


class PlainMasterLink(MasterLink):
    """The connection of one slave. slave_id is None until its first report has arrived."""

    def __init__(self, log: MasterLog, settings: LinkSettings, *, number: int, now_ms: int) -> None:
        """number: of this connection, below 0."""
        assert number < 0
        super().__init__(log, settings, now_ms=now_ms)
        self._number = number
        self._reports = bytearray()

    def receive_data(self, data: bytes, now_ms: int) -> None:
        self.read_ms = now_ms
        self._reports += data
        whole = len(self._reports) - len(self._reports) % REPORT_BYTES
        offsets = [offset for (offset,) in REPORT.iter_unpack(bytes(self._reports[:whole]))]
        del self._reports[:whole]
        for offset in offsets:
            if self.close_reason is None:
                self._receive_report(offset, now_ms)

    def _receive_report(self, offset: int, now_ms: int) -> None:
        if self.slave_id is None:
            self.slave_id = self._number if self.proven_id is None else self.proven_id
        self._receive_ack(offset, now_ms)

    def _receive_request(self, offset: int) -> None:
        """Handles the first report, the end of the slave's log. 0: the log is empty, and the slave gets the
        last file, as in RocketMQ. A slave with a longer log than this master is refused: RocketMQ sends it
        heartbeats until this log is longer, and then continues another history."""
        log = self._log
        start = offset
        if offset == 0:
            start = max(log.min_offset, log.max_offset - log.max_offset % log.file_bytes)
        if start > log.max_offset:
            self.close(
                f"the slave has {start} bytes, and this log ends at {log.max_offset}: their histories differ"
                " (or the slave is in controller mode)"
            )
        elif start < log.min_offset:
            self.close(
                f"the slave asks for offset {offset}, but this log begins at {log.min_offset}: its store"
                " must be emptied"
            )
        else:
            self.position = self.began_at = start
            self._sent_all = start == log.max_offset
            self.ack_offset = offset

    def _header(self, entry: EpochEntry, position: int, body_bytes: int) -> bytes:
        return HEADER.pack(position, body_bytes)

    def _heartbeat_due(self, entry: EpochEntry, now_ms: int) -> bool:
        return now_ms - self._sent_ms >= self._settings.send_heartbeat_interval_ms
