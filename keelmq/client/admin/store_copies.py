"""AdminClient's requests about copies of a broker's store: backups, checksums of replicas. KeelMQ's own."""

from keelmq.client.admin.transport import AdminTransport, body_of
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.store_copies import (
    CANCEL_STORE_BACKUP,
    CHECK_LOG_RECORDS,
    GET_LOG_CHECKSUMS,
    GET_QUEUE_CHECKSUMS,
    GET_REPLICA_DIGEST,
    GET_STORE_BACKUP,
    READ_LOG,
    START_STORE_BACKUP,
    CheckLogRecordsRequest,
    LogChecksums,
    LogChecksumsRequest,
    LogRecordCheck,
    QueueChecksums,
    QueueChecksumsRequest,
    ReadLogRequest,
    ReadLogResponse,
    ReplicaDigest,
    StartStoreBackupRequest,
    StoreBackup,
)

CHECKSUMS_TIMEOUT_MS = 60_000
"""A busy disk reads the bytes of one request within this time."""
BACKUP_BYTES_PER_SECOND = 64 << 20


class StoreCopyAdmin(AdminTransport):
    """All methods raise AdminError, with code 3 from RocketMQ's brokers, which do not know these requests."""

    async def start_store_backup(
        self, broker_addr: str, name: str, *, bytes_per_second: int = BACKUP_BYTES_PER_SECOND
    ) -> StoreBackup:
        """Begins a backup of the broker's store below its backupPath (START_STORE_BACKUP, 29041).
        bytes_per_second: 0: no limit."""
        header = StartStoreBackupRequest(backup_name=name, bytes_per_second=bytes_per_second)
        answer = await self.ask(broker_addr, START_STORE_BACKUP, header)
        return body_of(answer, StoreBackup, START_STORE_BACKUP, broker_addr)

    async def store_backup(self, broker_addr: str) -> StoreBackup:
        """Returns the backup in progress, or how the last one has ended (GET_STORE_BACKUP, 29042)."""
        answer = await self.ask(broker_addr, GET_STORE_BACKUP, Empty())
        return body_of(answer, StoreBackup, GET_STORE_BACKUP, broker_addr)

    async def cancel_store_backup(self, broker_addr: str) -> StoreBackup:
        """Ends the backup in progress (CANCEL_STORE_BACKUP, 29043)."""
        answer = await self.ask(broker_addr, CANCEL_STORE_BACKUP, Empty())
        return body_of(answer, StoreBackup, CANCEL_STORE_BACKUP, broker_addr)

    async def replica_digest(self, broker_addr: str) -> ReplicaDigest:
        """Returns offsets, epochs and versions of the metadata (GET_REPLICA_DIGEST, 29044)."""
        answer = await self.ask(broker_addr, GET_REPLICA_DIGEST, Empty())
        return body_of(answer, ReplicaDigest, GET_REPLICA_DIGEST, broker_addr)

    async def log_checksums(
        self, broker_addr: str, start_offset: int, end_offset: int, piece_bytes: int
    ) -> list[int]:
        """Returns the CRC-32 of each piece of a range of the log (GET_LOG_CHECKSUMS, 29045)."""
        header = LogChecksumsRequest(
            start_offset=start_offset, end_offset=end_offset, piece_bytes=piece_bytes
        )
        answer = await self.ask(broker_addr, GET_LOG_CHECKSUMS, header, timeout_ms=CHECKSUMS_TIMEOUT_MS)
        return body_of(answer, LogChecksums, GET_LOG_CHECKSUMS, broker_addr).crcs

    async def check_log_records(self, broker_addr: str, start_offset: int, end_offset: int) -> LogRecordCheck:
        """Returns which records of a range of the log are damaged (CHECK_LOG_RECORDS, 29049)."""
        header = CheckLogRecordsRequest(start_offset=start_offset, end_offset=end_offset)
        answer = await self.ask(broker_addr, CHECK_LOG_RECORDS, header, timeout_ms=CHECKSUMS_TIMEOUT_MS)
        return body_of(answer, LogRecordCheck, CHECK_LOG_RECORDS, broker_addr)

    async def queue_checksums(self, broker_addr: str, request: QueueChecksumsRequest) -> QueueChecksums:
        """Returns checksums of the next queues (GET_QUEUE_CHECKSUMS, 29046)."""
        answer = await self.ask(broker_addr, GET_QUEUE_CHECKSUMS, request, timeout_ms=CHECKSUMS_TIMEOUT_MS)
        return body_of(answer, QueueChecksums, GET_QUEUE_CHECKSUMS, broker_addr)

    async def check_log(
        self, broker_addr: str, broker_name: str, start_offset: int, end_offset: int
    ) -> ReadLogResponse:
        """Returns which sound records the broker has at the begin of a range (READ_LOG, 29047, without the
        records)."""
        header = ReadLogRequest(
            broker_name=broker_name, start_offset=start_offset, end_offset=end_offset, only_checks=True
        )
        answer = await self.ask(broker_addr, READ_LOG, header, timeout_ms=CHECKSUMS_TIMEOUT_MS)
        return answer.header
