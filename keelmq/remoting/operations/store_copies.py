"""KeelMQ's own requests about the copies of a broker's log: backups of it, checksums to compare replicas, and
records to heal a damaged replica.

RocketMQ's brokers do not know them.
"""

from typing import Literal

from pydantic import Field

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Operation, Wire
from keelmq.remoting.operations.route import DataVersion

CHECKSUM_BYTES_MAX = 64 << 20
"""Bytes of the log of one request for checksums."""
PIECES_MAX = 4_096
PIECE_BYTES_MIN = 64
"""To find a difference; it hides nothing. A sender of such requests can find out what the bytes are."""
QUEUES_MAX = 500
READ_LOG_BYTES = 1 << 20
"""Most bytes of a response to 29047, unless its first record is larger."""
CHECKED_BYTES_MAX = 1 << 20
"""Bytes of the log of one request that checks records."""
DAMAGED_PARTS_MAX = 1_000


class StartStoreBackupRequest(Wire):
    """Header of 29041. backup_name: of the directory below backupPath. bytes_per_second: 0: no limit."""

    backup_name: str
    bytes_per_second: int = Field(64 << 20, ge=0)


class StoreBackup(Wire):
    """Response body of 29041 to 29043: the backup that is in progress, or the last one. The log of the backup
    is [min_offset, end_offset). error: why it failed."""

    state: Literal["none", "copying", "done", "failed", "cancelled"] = "none"
    name: str = ""
    path: str = ""
    bytes_done: int = 0
    bytes_total: int = 0
    min_offset: int = 0
    end_offset: int = 0
    error: str = ""


class EpochStart(Wire):
    """A masterEpoch of the log, and the offset of its first byte."""

    epoch: int
    start_offset: int


class LogRange(Wire):
    """Bytes of a log, end exclusive."""

    start_offset: int
    end_offset: int


class ReplicaDigest(Wire):
    """Response body of 29044. broker_id: of the controllers, or as configured. dispatch_offset: queues have
    all records in front of it. cut_count: how often this log was truncated since the broker's start. tables:
    the versions of the metadata; users and ACLs are among them. damaged: ranges that are known to fail their
    checksums and are not healed yet."""

    cluster: str
    broker_name: str
    broker_id: int
    is_master: bool
    min_offset: int
    max_offset: int
    confirm_offset: int
    dispatch_offset: int
    cut_count: int
    epochs: list[EpochStart] = Field(default_factory=list)
    tables: dict[str, DataVersion] = Field(default_factory=dict)
    damaged: list[LogRange] = Field(default_factory=list)


class LogChecksumsRequest(Wire):
    """Header of 29045: checksums of [start_offset, end_offset), one for each piece_bytes, the last piece may
    be shorter. At most CHECKSUM_BYTES_MAX bytes and PIECES_MAX pieces."""

    start_offset: int = Field(ge=0)
    end_offset: int = Field(ge=0)
    piece_bytes: int = Field(1 << 20, ge=PIECE_BYTES_MIN)


class LogChecksums(Wire):
    """Response body of 29045: CRC-32 of each piece."""

    crcs: list[int] = Field(default_factory=list)


class QueueChecksumsRequest(Wire):
    """Header of 29046: queues behind (after_topic, after_queue_id), sorted; of each the entries whose records
    are in the log's [start_offset, end_offset)."""

    start_offset: int = Field(ge=0)
    end_offset: int = Field(ge=0)
    after_topic: str = ""
    after_queue_id: int = -1


class QueueChecksum(Wire):
    """A queue in the body of 29046: the first queue offset of the range, how many entries, and the CRC-32 of
    them."""

    topic: str
    queue_id: int
    first_offset: int
    entries: int
    crc: int


class QueueChecksums(Wire):
    """Response body of 29046. Queues without entries in the range are left out. is_last: there are no more
    queues."""

    queues: list[QueueChecksum] = Field(default_factory=list)
    last_topic: str = ""
    last_queue_id: int = -1
    is_last: bool = True


class ReadLogRequest(Wire):
    """Header of 29047: whole sound records of [start_offset, end_offset), both record boundaries.
    only_checks: the response has no body."""

    broker_name: str
    start_offset: int = Field(ge=0)
    end_offset: int = Field(ge=0)
    only_checks: bool = False


class ReadLogResponse(Wire):
    """Response header of 29047. The body is the log's [start_offset, end_offset): start_offset is above the
    request's if the replica's own copy is damaged there, and both are the request's end_offset if all of it
    is damaged. epochs: "epoch@startOffset" of each masterEpoch with a byte of the body, separated by
    commas."""

    start_offset: int
    end_offset: int
    epochs: str = ""


class CheckLogRecordsRequest(Wire):
    """Header of 29049: checks the records that overlap the log's [start_offset, end_offset), which are
    confirmed bytes, CHECKED_BYTES_MAX at most.

    29047 with only_checks cannot replace it, nor the other way round: keelmq verify asks for a range whose
    bounds are no record boundaries, and needs all damage in it; 29047 is for somebody who knows the
    boundaries, names the epochs, ends at the first damage, and refuses a range that other records cross."""

    start_offset: int = Field(ge=0)
    end_offset: int = Field(ge=0)


class DamagedLogPart(Wire):
    """A part of the log, end exclusive, that is no whole record: reason says what is wrong with it."""

    start_offset: int
    end_offset: int
    reason: str


class LogRecordCheck(Wire):
    """Response body of 29049. damaged: ascending, the first DAMAGED_PARTS_MAX of them; they may begin in
    front of the range and end behind it. records: how many whole records overlap the range."""

    damaged: list[DamagedLogPart] = Field(default_factory=list)
    records: int = 0


START_STORE_BACKUP = Operation(
    RequestCode.KEELMQ_START_STORE_BACKUP,
    "startStoreBackup",
    StartStoreBackupRequest,
    response_body=StoreBackup,
)
GET_STORE_BACKUP = Operation(RequestCode.KEELMQ_GET_STORE_BACKUP, "getStoreBackup", response_body=StoreBackup)
CANCEL_STORE_BACKUP = Operation(
    RequestCode.KEELMQ_CANCEL_STORE_BACKUP, "cancelStoreBackup", response_body=StoreBackup
)
GET_REPLICA_DIGEST = Operation(
    RequestCode.KEELMQ_GET_REPLICA_DIGEST, "getReplicaDigest", response_body=ReplicaDigest
)
GET_LOG_CHECKSUMS = Operation(
    RequestCode.KEELMQ_GET_LOG_CHECKSUMS, "getLogChecksums", LogChecksumsRequest, response_body=LogChecksums
)
GET_QUEUE_CHECKSUMS = Operation(
    RequestCode.KEELMQ_GET_QUEUE_CHECKSUMS,
    "getQueueChecksums",
    QueueChecksumsRequest,
    response_body=QueueChecksums,
)
READ_LOG = Operation(
    RequestCode.KEELMQ_READ_LOG, "readLog", ReadLogRequest, ReadLogResponse, response_body=bytes
)
CHECK_LOG_RECORDS = Operation(
    RequestCode.KEELMQ_CHECK_LOG_RECORDS,
    "checkLogRecords",
    CheckLogRecordsRequest,
    response_body=LogRecordCheck,
)
