"""Recovers the epochs of this replica's log when its epoch file is damaged or lost, by comparing the log with
the master's.

Checksums of 1 MiB each are compared (29045); where they differ, the records are compared (29047), because a
damaged record is no different history: it is added to the damaged ranges, and healed later. There is no other
change: the HA service cuts the log and writes the file. Owned by the event loop's thread.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from broker.ha.core.epochs import Epochs
from broker.ha.ports import FoundEpochs
from broker.healing.epoch_evidence import LogHere, MasterLog, compared_range, found_epochs
from broker.healing.evidence import records_of
from broker.store.log_checksums import ChecksumError, log_crcs
from broker.store.message_store import MessageStore
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire, in_short
from keelmq.remoting.operations.store_copies import (
    CHECKSUM_BYTES_MAX,
    GET_LOG_CHECKSUMS,
    GET_REPLICA_DIGEST,
    READ_LOG,
    LogChecksumsRequest,
    ReadLogRequest,
    ReplicaDigest,
)

CALL_TIMEOUT_MS: Final = 30_000
"""A master reads CHECKSUM_BYTES_MAX of its log for one answer."""
PIECE_BYTES: Final = 1 << 20

Peers = Callable[[], Awaitable[Sequence[str]]]
"""Returns the addresses of the other replicas, the master first."""


class NotComparedError(Exception):
    """The logs cannot be compared now. The text is the reason."""


class EpochFinder:
    """The search of one replica. Call it to make an attempt."""

    def __init__(
        self, store: MessageStore, client: RemotingClient, *, broker_name: str, peers: Peers
    ) -> None:
        self._store, self._client, self._broker_name, self._peers = store, client, broker_name, peers

    async def __call__(self, epoch: int) -> FoundEpochs | str:
        """Returns the epochs of the log, or why they are not known yet. epoch: of the master, as the
        controllers know it."""
        log = self._store.commit_log
        here = LogHere(log.min_offset, log.max_offset, self._store.confirm_offset)
        if here.is_empty:  # also if the master's log begins later, or is RocketMQ's
            return FoundEpochs(Epochs(), here.end)
        peers = await self._peers()
        if not peers:
            return "no master is known"
        try:
            master = await self._master_log(peers[0])
            span = compared_range(here, master, epoch=epoch)
            if isinstance(span, str):
                return f"{peers[0]}: {span}"
            same_end = await self._same_end(peers[0], *span, master)
        except (NotComparedError, ChecksumError) as error:
            return f"{peers[0]}: {error}"
        return found_epochs(here, master, same_end=same_end)

    async def _ask(self, peer: str, operation: Operation[Any, Any], request: Wire) -> Any:
        outcome = await self._client.call(peer, operation, request, timeout_ms=CALL_TIMEOUT_MS)
        if isinstance(outcome, Ok):
            return outcome
        if isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise NotComparedError("a broker of RocketMQ: keelmq repair --resync copies the log again")
        raise NotComparedError(in_short(outcome))

    async def _master_log(self, peer: str) -> MasterLog:
        digest: ReplicaDigest = (await self._ask(peer, GET_REPLICA_DIGEST, Empty())).body
        if digest.broker_name != self._broker_name:
            raise NotComparedError(f"it is of group {digest.broker_name}")
        return MasterLog(
            is_master=digest.is_master,
            min_offset=digest.min_offset,
            max_offset=digest.max_offset,
            confirm_offset=digest.confirm_offset,
            epochs=tuple((each.epoch, each.start_offset) for each in digest.epochs),
            is_damaged=bool(digest.damaged),
        )

    async def _same_end(self, peer: str, start: int, end: int, master: MasterLog) -> int:
        """Returns the end of the last record up to which both logs are equal, damaged records here aside."""
        low = start
        while low < end:
            high = min(low + CHECKSUM_BYTES_MAX, end)
            request = LogChecksumsRequest(start_offset=low, end_offset=high, piece_bytes=PIECE_BYTES)
            theirs = (await self._ask(peer, GET_LOG_CHECKSUMS, request)).body.crcs
            ours = await log_crcs(self._store, low, high, PIECE_BYTES)
            if len(theirs) != len(ours):
                raise NotComparedError(f"{len(theirs)} checksums were sent, {len(ours)} are due")
            for at, mine, other in zip(range(low, high, PIECE_BYTES), ours, theirs, strict=True):
                if mine != other:
                    differs = await self._difference(peer, at, min(at + PIECE_BYTES, high), master)
                    if differs is not None:
                        return differs
            low = high
        return end

    async def _difference(self, peer: str, low: int, high: int, master: MasterLog) -> int | None:
        """Returns the start of the first record that is different in the two logs; None: all differences in
        front of `high` are damage here."""
        log = self._store.commit_log
        while low < high:
            file_start = low - low % log.file_bytes
            around = self._store.log_check.record_around(low)
            at = max(file_start, log.min_offset, master.min_offset) if around is None else around.start
            file_end = min(file_start + log.file_bytes, master.confirm_offset)
            while at < min(high, file_end):
                request = ReadLogRequest(broker_name=self._broker_name, start_offset=at, end_offset=file_end)
                answer = await self._ask(peer, READ_LOG, request)
                data = bytes(answer.body or b"")
                if answer.header.start_offset != at or not data:
                    raise NotComparedError(f"its log is damaged at {at}")
                for record in records_of(data, at, file_bytes=log.file_bytes):
                    if self._is_another(data[record.offset - at :][: record.parsed[0]], record.offset):
                        return record.offset
                at += len(data)
            low = file_end
        return None

    def _is_another(self, theirs: bytes, offset: int) -> bool:
        """Whether this log has a sound record that differs from theirs. Records a damaged one."""
        log = self._store.commit_log
        mine = bytes(log.view(offset, len(theirs)))
        if mine == theirs:
            return False
        whole = bytes(log.view(offset, log.file_bytes))
        if next(records_of(whole, offset, file_bytes=log.file_bytes), None) is not None:
            return True
        if mine and not self._store.log_check.is_damaged(offset, offset + len(mine)):
            self._store.damage.add(offset, offset + len(mine), "it differs from the master's record")
        return False
