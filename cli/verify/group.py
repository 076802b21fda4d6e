"""Compares the replicas of one group while it serves: epochs, log, queues, metadata."""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from cli.mqadmin.shell import explain
from cli.verify.core.compare import (
    Difference,
    common_range,
    differing_runs,
    epoch_at,
    epoch_difference,
    epoch_verdict,
    log_difference,
    newest_tables,
    queue_differences,
    table_differences,
)
from cli.verify.core.verdict import Divergence, Member, Step, Verdict, judge, log_steps
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.store_copies import (
    CHECKSUM_BYTES_MAX,
    PIECE_BYTES_MIN,
    DamagedLogPart,
    QueueChecksum,
    QueueChecksumsRequest,
    ReplicaDigest,
)

PIECE_BYTES: Final = (1 << 20, 4_096, PIECE_BYTES_MIN)
"""A piece that differs is read again in smaller ones."""
DIVERGENCES_MAX: Final = 100
"""Divergences of the log that are examined. With more, the report advises overwriting nothing."""
STEP_BYTES: Final = 16 << 20
BUSY_S, BUSY_TRIES = 0.2, 300
SETTLE_S, SETTLE_TRIES = 0.5, 10
TABLES_OF_ALL: Final = ("topics", "groups")
"""Metadata is replicated some tenths of a second after it was committed."""

T = TypeVar("T")
Tell = Callable[[str, int, int], None]


@dataclass
class GroupReport:
    """The compared data, and the differences. silent: address -> why it could not be compared. incomparable:
    of them, those that do not know the request: RocketMQ's brokers. start, end: the range of the log."""

    name: str
    compared: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    incomparable: list[str] = field(default_factory=list)
    master: str | None = None
    start: int = 0
    end: int = 0
    queues: int = 0
    entries: int = 0
    differences: list[Difference] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    """Of the epochs and of the log."""
    members: list[Member] = field(default_factory=list)
    is_examined: bool = True
    """Whether `verdicts` has every difference of the log."""

    @property
    def is_equal(self) -> bool:
        """Whether two replicas or more were compared, and do not differ."""
        return len(self.compared) > 1 and not self.differences

    @property
    def is_well(self) -> bool:
        """Whether the replicas are equal, and none has failed to answer; RocketMQ's, which can never be
        compared, do not count. One replica alone is not well: nothing was compared."""
        return self.is_equal and self.silent.keys() <= set(self.incomparable)

    def log_steps(self) -> list[Step]:
        """Returns what to do about differences of the log and of the epochs; empty if there are none."""
        if not self.verdicts:
            return []
        return log_steps(self.name, self.verdicts, self.members, is_complete=self.is_examined)

    def value(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return {
            "brokerName": self.name,
            "compared": self.compared,
            "master": self.master,
            "notCompared": self.silent,
            "log": {"startOffset": self.start, "endOffset": self.end},
            "queues": self.queues,
            "entries": self.entries,
            "differences": [
                {
                    "kind": each.kind,
                    "brokers": list(each.brokers),
                    "isDecided": each.is_decided,
                    "offset": each.offset,
                    "text": each.text,
                }
                for each in self.differences
            ],
            "next": [each.text for each in self.log_steps()],
        }


class GroupComparison:
    """One group. bytes_per_second: of each replica's disk; 0: no limit. tell: gets the kind of data, the
    progress, and the total."""

    def __init__(self, admin: AdminClient, name: str, *, bytes_per_second: float, tell: Tell) -> None:
        self._admin, self._rate, self._tell = admin, bytes_per_second, tell
        self.report = GroupReport(name)
        self._asked: list[str] = []
        self._digests: dict[str, ReplicaDigest] = {}  # of those that have answered everything so far

    async def run(self, addresses: list[str]) -> GroupReport:
        """Returns the report. Never raises AdminError: a replica that fails is in `silent`."""
        await self._take_digests(addresses)
        report = self.report
        if len(self._digests) > 1:
            report.start, report.end = common_range(list(self._digests.values()))
            report.members = [
                Member(
                    address,
                    each.broker_id,
                    is_master=address == report.master,
                    is_controlled=bool(each.epochs),
                    min_offset=each.min_offset,
                    end_offset=each.confirm_offset,
                )
                for address, each in sorted(self._digests.items())
            ]
            of_epochs = epoch_verdict(self._digests, report.start, report.end)
            if of_epochs is not None:
                report.verdicts.append(of_epochs)
                report.differences.append(epoch_difference(of_epochs, self._digests, report.start))
            await self._compare_log()
        if len(self._digests) > 1:
            await self._compare_queues()
            await self._compare_tables()
        report.compared = sorted(self._digests)
        return report

    async def _take_digests(self, addresses: list[str]) -> None:
        self._asked = list(addresses)
        self._digests = await self._each(self._admin.store_copies.replica_digest)
        masters = [address for address, each in self._digests.items() if each.is_master]
        self.report.master = masters[0] if len(masters) == 1 else None

    async def _each(self, ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
        """Asks all replicas at once. Those that fail are not asked again."""

        async def one(address: str) -> T | None:
            try:
                return await self._not_busy(lambda: ask(address))
            except AdminError as error:
                self._failed(address, error)
                return None

        asked = list(self._asked)
        answers = await asyncio.gather(*(one(address) for address in asked))
        return {address: each for address, each in zip(asked, answers, strict=True) if each is not None}

    @staticmethod
    async def _not_busy(ask: Callable[[], Awaitable[T]]) -> T:
        """Repeats a request while another one for checksums is served there."""
        for _ in range(BUSY_TRIES):
            try:
                return await ask()
            except AdminError as error:
                if error.code != ResponseCode.SYSTEM_BUSY:
                    raise
            await asyncio.sleep(BUSY_S)
        return await ask()

    def _failed(self, address: str, error: AdminError) -> None:
        self._asked.remove(address)
        self._digests.pop(address, None)
        if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self.report.incomparable.append(address)
            self.report.silent[address] = (
                "cannot be compared: it does not know the request (is it RocketMQ's?)"
            )
        else:
            self.report.silent[address] = explain(error)

    # -- the log -----------------------------------------------------------------------------------------

    async def _compare_log(self) -> None:
        report, began = self.report, time.monotonic()
        at = report.start
        while at < report.end and len(self._digests) > 1:
            digests = await self._each(self._admin.store_copies.replica_digest)
            # retention may have deleted files since the begin
            at = min(max([at, *(each.min_offset for each in digests.values())]), report.end)
            end = min(at + STEP_BYTES - at % PIECE_BYTES[0], report.end)
            await self._examine(at, end)
            at = end
            self._tell("log", at - report.start, report.end - report.start)
            if not report.is_examined:
                return
            if self._rate:
                due = (at - report.start) / self._rate
                await asyncio.sleep(max(due - (time.monotonic() - began), 0))

    async def _examine(self, start: int, end: int) -> None:
        """Adds a verdict and a difference for each divergence."""
        for low, high in await self._runs(start, end, PIECE_BYTES[0]):
            for first in range(low, high, PIECE_BYTES[0]):
                for begin, stop in await self._runs(first, min(first + PIECE_BYTES[0], high), PIECE_BYTES[1]):
                    for divergence in await self._divergences(*await self._narrowed(begin, stop)):
                        if len(self.report.verdicts) >= DIVERGENCES_MAX:
                            self.report.is_examined = False
                            return
                        verdict = judge(divergence)
                        self.report.verdicts.append(verdict)
                        self.report.differences.append(log_difference(verdict))

    async def _runs(self, start: int, end: int, size: int) -> list[tuple[int, int]]:
        """Returns the ranges that differ, in pieces of `size`. Empty if fewer than two replicas answer: their
        log was truncated, or retention has deleted it, or they are down."""
        assert end - start <= CHECKSUM_BYTES_MAX
        answers = await self._each(
            lambda each: self._admin.store_copies.log_checksums(each, start, end, size)
        )
        if len(answers) < 2:
            return []
        return [(start + low * size, min(start + high * size, end)) for low, high in differing_runs(answers)]

    async def _narrowed(self, start: int, end: int) -> tuple[int, int]:
        """Returns the range without equal bytes at its begin and its end, to 64 bytes."""
        size = PIECE_BYTES[1]
        first = await self._runs(start, min(start + size, end), PIECE_BYTES[2])
        tail = start + (end - start - 1) // size * size
        last = await self._runs(tail, end, PIECE_BYTES[2])
        return (first[0][0] if first else start), (last[-1][1] if last else end)

    async def _divergences(self, start: int, end: int) -> list[Divergence]:
        """Returns the divergences of a range: its damaged records, and what differs between them."""
        unchecked: dict[str, str] = {}
        checked = await self._checked(start, end, unchecked)
        units = list[tuple[int, int]]()
        for part in sorted(
            (each.start_offset, each.end_offset) for parts in checked.values() for each in parts
        ):
            low, high = max(part[0], self.report.start), min(part[1], self.report.end)
            if units and low < units[-1][1]:
                units[-1] = units[-1][0], max(units[-1][1], high)
            elif low < high:
                units.append((low, high))
        outer = {each for each in (start, end) if not any(low < each < high for low, high in units)}
        edges = sorted(outer | {edge for unit in units for edge in unit})
        found = []
        for low, high in itertools.pairwise(edges):
            answers = await self._each(
                lambda each, low=low, high=high: self._admin.store_copies.log_checksums(  # type: ignore[misc]
                    each, low, high, max(high - low, PIECE_BYTES_MIN)
                )
            )
            damaged = {
                address: part.reason
                for address, parts in checked.items()
                for part in parts
                if part.start_offset < high and low < part.end_offset and address in answers
            }
            crcs = {address: each[0] for address, each in answers.items()}
            if len(crcs) > 1 and (len(set(crcs.values())) > 1 or damaged):
                epochs = {address: epoch_at(self._digests[address], low) for address in crcs}
                found.append(Divergence(low, high, crcs, damaged, unchecked, epochs))
        return found

    async def _checked(
        self, start: int, end: int, unchecked: dict[str, str]
    ) -> dict[str, list[DamagedLogPart]]:
        """Returns the damaged records of each replica; fills `unchecked` with those that do not check
        them."""

        async def one(address: str) -> list[DamagedLogPart]:
            try:
                answer = await self._not_busy(
                    lambda: self._admin.store_copies.check_log_records(address, start, end)
                )
            except AdminError as error:
                is_old = error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                unchecked[address] = "its version cannot check records" if is_old else explain(error)
                return []
            return answer.damaged

        return await self._each(one)

    # -- queues ------------------------------------------------------------------------------------------

    async def _compare_queues(self) -> None:
        """Only entries of records that every replica has dispatched."""
        self._tell("queues", 0, 0)
        digests = await self._each(self._admin.store_copies.replica_digest)
        if len(digests) < 2:
            return
        start = max(each.min_offset for each in digests.values())
        end = min(self.report.end, *(each.dispatch_offset for each in digests.values()))
        if start >= end:
            return
        answers = await self._each(lambda each: self._queues_of(each, start, end))
        after = await self._each(self._admin.store_copies.replica_digest)
        if len(answers) < 2 or max((each.min_offset for each in after.values()), default=start) > start:
            return  # retention has deleted files meanwhile: the log was compared, which is sufficient
        if any(each.cut_count != digests[address].cut_count for address, each in after.items()):
            return  # a log was truncated, so its queues were not read as a whole
        self.report.differences += queue_differences(answers)
        self.report.queues = max(len(queues) for queues in answers.values())
        self.report.entries = max(
            sum(each.entries for each in queues.values()) for queues in answers.values()
        )

    async def _queues_of(self, address: str, start: int, end: int) -> Mapping[tuple[str, int], QueueChecksum]:
        found: dict[tuple[str, int], QueueChecksum] = {}
        after = ("", -1)
        while True:
            request = QueueChecksumsRequest(
                start_offset=start, end_offset=end, after_topic=after[0], after_queue_id=after[1]
            )
            answer = await self._not_busy(lambda: self._admin.store_copies.queue_checksums(address, request))  # noqa: B023
            found |= {(each.topic, each.queue_id): each for each in answer.queues}
            after = answer.last_topic, answer.last_queue_id
            if answer.is_last:
                return found

    # -- metadata ----------------------------------------------------------------------------------------

    async def _compare_tables(self) -> None:
        """The master's present metadata must be at every replica soon."""
        self._tell("metadata", 0, 0)
        digests = await self._each(self._admin.store_copies.replica_digest)
        wanted = newest_tables(digests, self.report.master)
        if not any(each.epochs for each in digests.values()):  # without controllers, slaves poll some of them
            wanted = {name: wanted[name] for name in TABLES_OF_ALL if name in wanted}
        left = table_differences(digests, wanted)
        for _ in range(SETTLE_TRIES):
            if not left:
                return
            await asyncio.sleep(SETTLE_S)
            digests = await self._each(self._admin.store_copies.replica_digest)
            left = table_differences(digests, wanted)
        self.report.differences += left
