"""Handlers of backups of the store (29041 to 29043), and of the comparison of replicas (29044 to 29046,
29049)."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from msgspec.structs import asdict

from broker.backup.checksums import StoreChecksums
from broker.backup.manifest import BackupError
from broker.backup.service import Progress, StoreBackups
from broker.config.broker_config import BrokerConfig
from broker.ha.core.epochs import Epochs
from broker.metadata.service import Metadata
from broker.metadata.store import data_version
from broker.store.log_checksums import ChecksumError
from broker.store.message_store import MessageStore
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.store_copies import (
    CANCEL_STORE_BACKUP,
    CHECK_LOG_RECORDS,
    GET_LOG_CHECKSUMS,
    GET_QUEUE_CHECKSUMS,
    GET_REPLICA_DIGEST,
    GET_STORE_BACKUP,
    START_STORE_BACKUP,
    CheckLogRecordsRequest,
    EpochStart,
    LogChecksumsRequest,
    LogRange,
    QueueChecksumsRequest,
    ReplicaDigest,
    StartStoreBackupRequest,
    StoreBackup,
)

T = TypeVar("T")


class StoreCopyHandlers:
    """identity: the broker's id, and whether it is the master. epochs: of the log, now."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        metadata: Metadata,
        backups: StoreBackups,
        *,
        identity: Callable[[], tuple[int, bool]],
        epochs: Callable[[], Epochs],
    ) -> None:
        self._config, self._store, self._metadata, self._backups = config, store, metadata, backups
        self._identity, self._epochs = identity, epochs
        self._checksums = StoreChecksums(store)

    def bind(self, table: OperationTable) -> None:
        """Binds 29041 to 29046, and 29049."""
        table.bind(START_STORE_BACKUP, self.start_backup)
        table.bind(GET_STORE_BACKUP, self.get_backup)
        table.bind(CANCEL_STORE_BACKUP, self.cancel_backup)
        table.bind(GET_REPLICA_DIGEST, self.get_digest)
        table.bind(GET_LOG_CHECKSUMS, self.get_log_checksums)
        table.bind(GET_QUEUE_CHECKSUMS, self.get_queue_checksums)
        table.bind(CHECK_LOG_RECORDS, self.check_log_records)

    async def start_backup(self, header: StartStoreBackupRequest, call: Call) -> Reply:
        """Begins a backup (29041). Raises CommandError: it cannot be begun."""
        try:
            progress = await self._backups.start(header.backup_name, header.bytes_per_second)
        except BackupError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        call.changes["backup"] = None, progress.path
        return Reply(body=_answer(progress))

    async def get_backup(self, header: Empty, call: Call) -> Reply:
        """Returns the progress of the backup, or the outcome of the last one (29042)."""
        return Reply(body=_answer(self._backups.progress))

    async def cancel_backup(self, header: Empty, call: Call) -> Reply:
        """Ends the backup in progress and deletes its files (29043)."""
        before = self._backups.cancel()
        if before.state == "copying":
            call.changes["backup"] = before.path, None
        return Reply(body=_answer(before))

    async def get_digest(self, header: Empty, call: Call) -> Reply:
        """Returns offsets, epochs and versions of the metadata (29044)."""
        store, (broker_id, is_master) = self._store, self._identity()
        return Reply(
            body=ReplicaDigest(
                cluster=self._config.broker_cluster_name,
                broker_name=self._config.broker_name,
                broker_id=broker_id,
                is_master=is_master,
                min_offset=store.commit_log.min_offset,
                max_offset=store.commit_log.max_offset,
                confirm_offset=store.confirm_offset,
                dispatch_offset=store.dispatch_offset,
                cut_count=store.cutter.cut_count,
                epochs=[EpochStart(epoch=epoch, start_offset=at) for epoch, at in self._epochs().pairs],
                tables={
                    name: data_version(each.table.version) for name, each in self._metadata.stores.items()
                },
                damaged=[
                    LogRange(start_offset=each.start, end_offset=each.end) for each in store.damage.ranges
                ],
            )
        )

    async def get_log_checksums(self, header: LogChecksumsRequest, call: Call) -> Reply:
        """Returns checksums of a range of the log (29045). Raises CommandError."""
        return Reply(body=await self._one_at_a_time(lambda: self._checksums.of_log(header)))

    async def get_queue_checksums(self, header: QueueChecksumsRequest, call: Call) -> Reply:
        """Returns checksums of queues (29046). Raises CommandError."""
        return Reply(body=await self._one_at_a_time(lambda: self._checksums.of_queues(header)))

    async def check_log_records(self, header: CheckLogRecordsRequest, call: Call) -> Reply:
        """Returns which records of a range of the log are damaged (29049). Raises CommandError."""
        return Reply(body=await self._one_at_a_time(lambda: self._checksums.of_records(header)))

    async def _one_at_a_time(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._checksums.is_busy:
            raise CommandError(ResponseCode.SYSTEM_BUSY, "checksums are being computed already: repeat it")
        self._checksums.is_busy = True
        try:
            return await work()
        except ChecksumError as error:
            raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        finally:
            self._checksums.is_busy = False


def _answer(progress: Progress) -> StoreBackup:
    return StoreBackup.model_validate(asdict(progress))
