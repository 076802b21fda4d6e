"""Heals damaged ranges of this broker's log from the other replicas of its group.

A range is healed piece by piece: a peer is asked for its sound records (29047), evidence.py decides whether
they are accepted, and they are written in this order, so that a crash between any two steps leaves the range
either healed, or damaged and listed: the journal, durable; the log, durable; the ConsumeQueue units; the
range is removed from DamagedRanges, durable; the journal is deleted. finish() ends an interrupted healing at
the next start.

Bytes that are not confirmed or in no damaged range are never written, and no bytes while the log is
truncated. The length of the log never changes. Owned by the event loop's thread.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from broker.ha.core.epochs import Epochs
from broker.healing.evidence import (
    Here,
    Piece,
    Refusal,
    by_epoch,
    covering,
    decode_epochs,
    records_of,
    refusal_of,
    sound_end,
)
from broker.healing.journal import HealJournal
from broker.healing.units import QUEUES_AT_ONCE, give_up_units, restore_units, unit_of
from broker.store.damage import DamagedRange
from broker.store.message_store import MessageStore
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok, Unknown, in_short
from keelmq.remoting.operations.store_copies import READ_LOG, ReadLogRequest
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.tasks import finished_in_thread, wait_for_event

logger = logging.getLogger(__name__)

CALL_TIMEOUT_MS: Final = 10_000
PAUSE_S: Final = 0.05
"""Pause between two pieces, usually of at most 1 MiB: about 20 MiB a second, so most of the disk and the link
is left for messages."""
AGAIN: Final = Backoff(first_ms=1_000, max_ms=60_000)
TOLD_MAX: Final = 3
"""Verdicts that the status of the broker shows."""
IDLE_MS: Final = 60_000
SETTLE_S: Final = 0.2
"""Delay from a change of the ranges to the requests: damage is found in bursts."""

Peers = Callable[[], Awaitable[Sequence[str]]]
"""Returns the addresses of the other replicas, the master first. Empty: none is known."""

NO_PEER, NO_ANSWER, NOT_SUPPORTED, REFUSED, DAMAGED = (
    "no_peer",
    "no_answer",
    "not_supported",
    "refused",
    "damaged",
)
BUSY, CUT, DISK = "busy", "cut", "disk"


class Healer:
    """healed_ranges, healed_bytes, failures (by reason): since the start, for the metrics. lost_bytes: bytes
    that were replaced by lost records of another replica."""

    def __init__(
        self,
        store: MessageStore,
        client: RemotingClient,
        *,
        broker_name: str,
        epochs: Callable[[], Epochs],
        needs_epochs: bool,
        peers: Peers,
        pause_s: float = PAUSE_S,
    ) -> None:
        """needs_epochs: in controller mode. pause_s: between two pieces."""
        self._pause_s = pause_s
        self._store, self._client, self._broker_name = store, client, broker_name
        self._epochs, self._needs_epochs, self._peers = epochs, needs_epochs, peers
        self._journal = HealJournal(store.root)
        self._changed = asyncio.Event()
        self.healed_ranges = self.healed_bytes = self.lost_bytes = 0
        self.failures: Counter[str] = Counter()
        self.verdicts: dict[int, dict[str, str]] = {}
        """By the start of an unhealed range: peer -> why it could not help in the last attempt."""
        self._logged: dict[DamagedRange, str] = {}
        store.damage.on_change.append(self._changed.set)

    # -- the task ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Heals until it is cancelled: after each change of the ranges, and again with a back-off."""
        failures = 0
        await self.finish()
        while True:
            ranges = self.due()
            if not ranges:
                failures = 0
                await wait_for_event(self._changed, IDLE_MS)
                await asyncio.sleep(SETTLE_S)
                continue
            self._changed.clear()
            healed = await self.heal(ranges)
            failures = 0 if healed else failures + 1
            if failures:
                await wait_for_event(self._changed, max(int(AGAIN.pause_ms(failures, random.random())), 500))

    def due(self) -> list[DamagedRange]:
        """Returns the ranges that can be healed now: unconfirmed bytes may still be cut off."""
        store, end = self._store, self._store.confirm_offset
        return [
            each
            for each in store.damage.ranges
            if each.end <= end and each.start >= store.commit_log.min_offset
        ]

    async def heal(self, ranges: Sequence[DamagedRange]) -> bool:
        """Makes one attempt for each range. Returns whether anything was healed."""
        peers, before, cuts = list(await self._peers()), self.healed_bytes, self._store.cutter.cut_count
        self.verdicts = {}
        if not peers:
            self.failures[NO_PEER] += 1
        useless: dict[str, str] = {}  # peers that need not be asked again in this attempt, and why
        for damaged in ranges:
            missing, verdict = [(damaged.start, damaged.end)], dict(useless)
            self.verdicts[damaged.start] = verdict
            for peer in (each for each in peers if each not in useless):
                missing = [rest for part in missing for rest in await self._from(peer, *part, verdict)]
                if verdict.get(peer) in (NO_ANSWER, NOT_SUPPORTED):
                    useless[peer] = verdict[peer]
                if not missing or self._store.cutter.cut_count != cuts:
                    break
            if self._store.cutter.cut_count != cuts:
                break  # the ranges have changed
            if not missing:
                self.healed_ranges += 1
                del self.verdicts[damaged.start]
                logger.warning("the log at %d..%d is healed", damaged.start, damaged.end)
        self._tell(ranges)
        return self.healed_bytes > before

    def _tell(self, ranges: Sequence[DamagedRange]) -> None:
        """Logs the unhealed ranges, once for each new verdict."""
        lines = {each: self.verdict_on(each) for each in ranges if each.start in self.verdicts}
        for damaged, text in lines.items():
            if self._logged.get(damaged) != text:
                logger.error("the log at %d..%d is not healed: %s", damaged.start, damaged.end, text)
        self._logged = lines
        self._store.damage.healing = "; ".join(list(dict.fromkeys(lines.values()))[:TOLD_MAX])

    def verdict_on(self, damaged: DamagedRange) -> str:
        """Returns the result of the last attempt for this range, and the remedy."""
        verdict = self.verdicts.get(damaged.start)
        if verdict is None:
            return "not tried yet"
        if not verdict:
            return "no other replica is known"
        reasons = "; ".join(f"{peer}: {why}" for peer, why in verdict.items())
        if all(why == DAMAGED for why in verdict.values()):
            return f"{reasons}: every replica that is known has lost it: keelmq repair --mark-lost"
        if all(why == NOT_SUPPORTED for why in verdict.values()):
            return f"{reasons} (RocketMQ's brokers): keelmq repair --resync copies the log again"
        return reasons

    # -- one peer ----------------------------------------------------------------------------------------

    async def _from(self, peer: str, start: int, end: int, verdict: dict[str, str]) -> list[tuple[int, int]]:
        """Heals the parts of [start, end) that this peer has. Returns the remaining parts, and adds the
        reason to `verdict`."""
        left: list[tuple[int, int]] = []
        while start < end:
            cut_count = self._store.cutter.cut_count
            piece = await self._ask(peer, start, end)
            if isinstance(piece, str):
                self._failed(verdict, peer, piece)
                return [*left, (start, end)]
            if self._store.cutter.cut_count != cut_count or self._store.cutter.is_cutting:
                self._failed(verdict, peer, CUT)
                return [*left, (start, end)]
            if piece.start > start:
                left.append((start, min(piece.start, end)))
                self._failed(verdict, peer, DAMAGED)
            if not piece.data:
                return left
            if not start <= piece.start < piece.end <= end:
                self._failed(verdict, peer, Refusal.OUTSIDE.value)
                return [*left, (start, end)]
            for part in by_epoch(piece):
                why = await self._take(part)
                if why:
                    self._failed(verdict, peer, why)
                    left.append((part.start, part.end))
            logger.info("%d bytes of the log at %d were read from %s", len(piece.data), piece.start, peer)
            start = piece.end
            await asyncio.sleep(self._pause_s)
        return left

    def _failed(self, verdict: dict[str, str], peer: str, why: str) -> None:
        reason, _, _ = why.partition(":")
        self.failures[reason] += 1
        verdict[peer] = why

    async def _ask(self, peer: str, start: int, end: int) -> Piece | str:
        """Returns the peer's sound records, or why there are none. No data: all of it is damaged there."""
        request = ReadLogRequest(broker_name=self._broker_name, start_offset=start, end_offset=end)
        outcome = await self._client.call(peer, READ_LOG, request, timeout_ms=CALL_TIMEOUT_MS)
        if isinstance(outcome, Ok):
            try:
                pairs = decode_epochs(outcome.header.epochs)
            except ValueError:
                return f"{REFUSED}: it names epochs that cannot be read"
            return Piece(outcome.header.start_offset, bytes(outcome.body or b""), pairs)
        if isinstance(outcome, Unknown) or outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
            return NO_ANSWER
        assert isinstance(outcome, Failed)
        if outcome.code == ResponseCode.SYSTEM_BUSY:
            return BUSY
        if outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return NOT_SUPPORTED
        return f"{REFUSED}: {in_short(outcome)}"

    async def _take(self, piece: Piece) -> str:
        """Writes the piece if the evidence allows it. Returns why it was not written, or an empty string."""
        refusal = refusal_of(piece, self._here(piece))
        return await self._write(piece) if refusal is None else refusal.value

    def _here(self, piece: Piece) -> Here:
        store, log = self._store, self._store.commit_log
        return Here(
            epochs=self._epochs(),
            needs_epochs=self._needs_epochs,
            file_bytes=log.file_bytes,
            local=bytes(log.view(piece.start, len(piece.data), end=store.confirm_offset)),
            unit_of=lambda topic, queue_id, number: unit_of(store, topic, queue_id, number),
        )

    # -- writing -----------------------------------------------------------------------------------------

    async def _write(self, piece: Piece) -> str:
        """Writes the piece in the order that the module's docstring gives. Returns why it was not written, or
        an empty string."""
        damage = self._store.damage
        if damage.overlaps(piece.start, piece.end) is None:
            return CUT  # retention or a cut has removed the range
        rewrite = self._store.rewrite(piece.start, piece.data)
        try:
            await finished_in_thread(damage.save)
            await finished_in_thread(lambda: self._journal.write(piece))
            if not await finished_in_thread(rewrite.run):
                await finished_in_thread(self._journal.clear)
                return CUT
            await self._written(piece)
        except OSError as error:
            logger.error("the log at %d..%d cannot be healed: %s", piece.start, piece.end, error)
            return f"{DISK}: {error.strerror or error}"
        finally:
            rewrite.close()
        self.healed_bytes += len(piece.data)
        return ""

    async def _written(self, piece: Piece) -> None:
        """The steps after the bytes are in the log."""
        store, file_bytes = self._store, self._store.commit_log.file_bytes
        cut_count = store.cutter.cut_count
        records = list(records_of(piece.data, piece.start, file_bytes=file_bytes))
        if restore_units(store, records):
            logger.info("ConsumeQueue entries of healed records at %d were restored", piece.start)
        for record in records:
            if record.is_lost:
                await self._give_up(record.offset, record.offset + record.parsed[0])
        await finished_in_thread(store.flush)
        if store.cutter.cut_count == cut_count:
            store.damage.healed(piece.start, piece.end)
        await finished_in_thread(store.damage.save)
        await finished_in_thread(self._journal.clear)

    async def _give_up(self, start: int, end: int) -> None:
        """An operator has marked these bytes as lost at another replica: consumers pass them here, too."""
        store = self._store
        queues, count = store.queues.each(), 0
        for at in range(0, len(queues), QUEUES_AT_ONCE):
            count += give_up_units(store, queues[at : at + QUEUES_AT_ONCE], start, end)
            await asyncio.sleep(0)
        self.lost_bytes += end - start
        logger.warning("the log at %d..%d is marked as lost: %d messages are passed", start, end, count)

    async def finish(self) -> None:
        """Ends a healing that a crash has interrupted, if its bytes still belong to this log; otherwise the
        range is healed anew."""
        piece, store = await finished_in_thread(self._journal.read), self._store
        if piece is not None and self._still_belongs(piece):
            logger.warning(
                "a healing of the log at %d..%d was interrupted: it is finished", piece.start, piece.end
            )
            rewrite = store.rewrite(piece.start, piece.data)
            try:
                if await finished_in_thread(rewrite.run):
                    await self._written(piece)
                    return
            finally:
                rewrite.close()
        await finished_in_thread(self._journal.clear)

    def _still_belongs(self, piece: Piece) -> bool:
        """The log may have been cut and written again since the journal: then the epochs differ, or the bytes
        there are sound."""
        store, log = self._store, self._store.commit_log
        if store.cutter.is_cutting or not (
            log.min_offset <= piece.start and piece.end <= store.confirm_offset
        ):
            return False
        base = piece.start - piece.start % log.file_bytes
        if (
            piece.end > base + log.file_bytes
            or covering(self._epochs(), piece.start, piece.end) != piece.epochs
        ):
            return False
        if sound_end(piece.data, piece.start, file_bytes=log.file_bytes) != piece.end:
            return False
        local = bytes(log.view(piece.start, len(piece.data)))
        is_sound = sound_end(local, piece.start, file_bytes=log.file_bytes) == piece.end
        return (
            local == piece.data or not is_sound or store.damage.overlaps(piece.start, piece.end) is not None
        )
