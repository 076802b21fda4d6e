"""One queue's worker with a scripted broker: its lock, where it reads, and what moves it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keelmq.client import (
    DamagedMessageError,
    DamagedPolicy,
    DamagedRecord,
    Limits,
    MessageExt,
    PullError,
    PullErrorKind,
    PullStatus,
)
from keelmq.client.cluster.queue_reader import PullResult
from keelmq.client.consumer.damage import DamageReports
from keelmq.client.consumer.process_queue import LOCK_VALID_MS, ProcessQueue, ProcessQueueContext
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.subscription import Subscription
from keelmq.runtime.backoff import Backoff


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("keelmq.client.consumer.process_queue.now_ms", clock)
    return clock


def worker(*, needs_lock: bool = True) -> ProcessQueue:
    nothing: Any = None
    settings = ConsumerSettings()
    parts = ProcessQueueContext(
        nothing, nothing, settings, Limits(), asyncio.Event(), lambda _: None, DamageReports(settings)
    )
    return ProcessQueue(MessageQueue("T", "b", 0), Subscription("T"), parts, needs_lock=needs_lock)


async def test_a_lock_counts_from_when_it_was_asked_for(clock: Clock) -> None:
    held = worker()
    assert not held.is_locked
    waits = asyncio.create_task(held.until_locked())
    await asyncio.sleep(0)
    held.grant(clock.ms)
    await waits
    clock.ms += LOCK_VALID_MS - 1
    assert held.is_locked
    clock.ms += 1
    assert not held.is_locked


async def test_a_renewed_lock_keeps_what_is_held_and_a_lost_one_does_not(clock: Clock) -> None:
    held = worker()
    held.grant(clock.ms)
    held.seek(7)
    window = held.window
    clock.ms += LOCK_VALID_MS - 1
    held.grant(clock.ms)
    assert held.window is window and held.commit_offset == 7
    clock.ms += LOCK_VALID_MS
    held.grant(clock.ms)
    assert held.window is None and held.is_locked, (
        "somebody else may have had it: the offset is asked for anew"
    )
    held.seek(9)
    held.revoke()
    assert held.window is None and not held.is_locked and held.commit_offset is None


async def test_without_locks_nobody_waits(clock: Clock) -> None:
    free = worker(needs_lock=False)
    await free.until_locked()
    assert free.is_locked


class Reads:
    """A reader and an offset store. `answers`: of the pulls, in order; a pull beyond them waits."""

    def __init__(self, *answers: PullResult | PullError, start: int = 0) -> None:
        self.answers, self.start = list(answers), start
        self.reports = DamageReports(ConsumerSettings())
        self.pulls: list[tuple[int, str]] = []
        self.loads = 0
        self.loading = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waits = asyncio.Event()

    async def load(self, queue: MessageQueue) -> int:
        self.loads += 1
        self.loading.set()
        found = self.start
        await self.gate.wait()
        return found

    async def pull(
        self, queue: MessageQueue, offset: int, nums: int, subscription: Subscription, *, suspend_ms: int
    ) -> PullResult:
        self.pulls.append((offset, subscription.expression))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, PullError):
                raise answer
            return answer
        self.waits.set()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    async def pulled_again(self) -> int:
        """Where the next pull that waits begins."""
        self.waits.clear()
        async with asyncio.timeout(5):
            await self.waits.wait()
        return self.pulls[-1][0]


@asynccontextmanager
async def reading(
    reads: Reads,
    *,
    needs_lock: bool = False,
    limits: Limits | None = None,
    settings: ConsumerSettings | None = None,
) -> AsyncIterator[tuple[ProcessQueue, asyncio.Event]]:
    """The worker, and what is cleared to pause it."""
    running = asyncio.Event()
    running.set()
    fake: Any = reads
    settings = settings or ConsumerSettings()
    reports = reads.reports = DamageReports(settings)
    parts = ProcessQueueContext(fake, fake, settings, limits or Limits(), running, lambda _: None, reports)
    found = ProcessQueue(MessageQueue("T", "b", 0), Subscription("T", "a"), parts, needs_lock=needs_lock)
    found.start()
    try:
        yield found, running
    finally:
        await found.tasks.stop()


def stored(*offsets: int) -> tuple[MessageExt, ...]:
    return tuple(MessageExt("T", b"", {}, 0, each, 0, 0, 0, 0, "", 0, "", 0, 9) for each in offsets)


def found(*offsets: int) -> PullResult:
    return PullResult(PullStatus.FOUND, stored(*offsets), offsets[-1] + 1, 0, 1_000)


def illegal(begin: int, *, low: int, high: int) -> PullResult:
    return PullResult(PullStatus.OFFSET_ILLEGAL, (), begin, low, high)


async def test_a_queue_is_moved_while_its_offset_is_asked_for() -> None:
    reads = Reads(start=500)
    reads.gate.clear()
    async with reading(reads) as (mine, _):
        await reads.loading.wait()
        mine.seek(7)
        reads.gate.set()
        assert await reads.pulled_again() == 7
        assert mine.commit_offset == 7 and mine.positioned.is_set()


@pytest.mark.parametrize("back_before_the_answer", [False, True])
async def test_an_offset_that_was_asked_for_under_an_earlier_lock_is_asked_for_again(
    clock: Clock, back_before_the_answer: bool
) -> None:
    """Somebody else had the queue meanwhile, and went on."""
    reads = Reads(start=500)
    reads.gate.clear()
    async with reading(reads, needs_lock=True) as (mine, _):
        mine.grant(clock.ms)
        await reads.loading.wait()
        mine.revoke()
        reads.start = 600
        if back_before_the_answer:
            mine.grant(clock.ms)
        reads.gate.set()
        if not back_before_the_answer:
            for _ in range(5):
                await asyncio.sleep(0)  # the answer comes, nobody has the lock
            assert mine.window is None
            mine.grant(clock.ms)
        assert await reads.pulled_again() == 600
        assert reads.loads == 2


async def test_a_window_without_a_lock_does_not_survive_the_next_one(clock: Clock) -> None:
    held = worker()
    held.grant(clock.ms)
    held.revoke()
    held.seek(7)
    held.revoke()
    assert held.window is None
    held.seek(7)
    held.grant(clock.ms)
    assert held.window is None


async def test_a_full_queue_that_is_moved_is_read_at_its_new_place_at_once() -> None:
    reads = Reads(found(0, 1))
    async with reading(reads, limits=Limits(messages_max=2)) as (mine, _):
        async with asyncio.timeout(5):
            await mine.messages_there.wait()
        assert reads.pulls == [(0, "a")]
        mine.seek(50)
        assert await reads.pulled_again() == 50
        assert reads.pulls == [(0, "a"), (50, "a")]


async def test_a_paused_queue_that_is_moved_is_read_at_its_new_place_at_once() -> None:
    reads = Reads()
    async with reading(reads) as (mine, running):
        running.clear()
        mine.seek(0)
        for _ in range(5):
            await asyncio.sleep(0)
        assert mine.waits_paused
        mine.seek(50)
        running.set()
        assert await reads.pulled_again() == 50
        assert reads.pulls == [(50, "a")]


async def test_another_expression_ends_the_pull_that_waits() -> None:
    reads = Reads()
    async with reading(reads) as (mine, _):
        await reads.pulled_again()
        mine.want(Subscription("T", "a", version=2))
        for _ in range(5):
            await asyncio.sleep(0)
        assert reads.pulls == [(0, "a")], "it wants the same: only its version is another one"
        mine.want(Subscription("T", "b", version=3))
        await reads.pulled_again()
        assert reads.pulls == [(0, "a"), (0, "b")]


# -- offsets that the queue does not have ------------------------------------------------------------------


async def test_what_is_held_is_not_skipped_when_the_queue_begins_later() -> None:
    """Retention was faster: what was pulled before is nowhere else any more."""
    reads = Reads(found(0, 1, 2), illegal(500, low=500, high=900))
    async with reading(reads) as (mine, _):
        assert await reads.pulled_again() == 500
        assert mine.commit_offset == 0
        window, held = mine.take(9)
        assert window is not None and [each.queue_offset for each in held] == [0, 1, 2]
        mine.finish(window, held)
        assert mine.commit_offset == 500


async def test_what_is_held_comes_again_when_the_queue_was_cut() -> None:
    """A fail-over without all acknowledgements: the end is lower, what is not finished is read once more."""
    reads = Reads(found(1, 2, 3), illegal(3, low=0, high=3), start=1)
    async with reading(reads) as (mine, _):
        assert await reads.pulled_again() == 1
        assert mine.commit_offset == 1


async def test_a_queue_that_was_cut_below_what_is_held_goes_on_at_its_end() -> None:
    reads = Reads(found(7, 8), illegal(3, low=0, high=3), start=7)
    async with reading(reads) as (mine, _):
        assert await reads.pulled_again() == 3
        assert mine.commit_offset == 3


@pytest.mark.parametrize("begin", [0, 2, 40, 100])
async def test_an_operator_skips_and_repeats_what_he_likes(begin: int) -> None:
    """No offset of his is changed: neither to keep what is held nor to read it again."""
    reads = Reads(found(1, 2, 3), illegal(begin, low=0, high=100))
    async with reading(reads) as (mine, _):
        assert await reads.pulled_again() == begin
        assert mine.commit_offset == begin


# -- damaged messages --------------------------------------------------------------------------------------


Told = list[tuple[MessageQueue, DamagedRecord]]


def damaged(offset: int, end: int | None = None, *, at: int | None = 5_000) -> DamagedRecord:
    return DamagedRecord(offset, offset + 1 if end is None else end, at, "its checksum does not match")


def refused(offset: int, *, at: int = 5_000) -> PullError:
    return PullError(PullErrorKind.REFUSED, "damaged", 1, damaged=damaged(offset, at=at))


def listening(told: Told, **settings: Any) -> ConsumerSettings:
    return ConsumerSettings(damaged_listener=lambda queue, record: told.append((queue, record)), **settings)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keelmq.client.consumer.process_queue.PULL_AGAIN", Backoff(first_ms=1, max_ms=1))


async def test_a_damaged_message_is_reported_and_the_good_ones_are_delivered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: Told = []
    answer = PullResult(PullStatus.FOUND, stored(0, 1, 3), 4, 0, 4, damaged=(damaged(2),))
    reads = Reads(answer)
    async with reading(reads, settings=listening(told)) as (mine, _):
        assert await reads.pulled_again() == 4
        window, messages = mine.take(9)
        assert [each.queue_offset for each in messages] == [0, 1, 3]
        assert window is not None
        mine.finish(window, messages)
        assert mine.commit_offset == 4 and reads.reports.skipped == 1
    assert told == [(MessageQueue("T", "b", 0), damaged(2))]
    (line,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "topic T, broker b, queue 0, offset 2, CommitLog offset 5000" in line.getMessage()


async def test_a_queue_stops_at_a_damaged_message_if_the_settings_say_so(no_pause: None) -> None:
    told: Told = []
    answer = PullResult(PullStatus.FOUND, stored(0, 1, 3), 4, 0, 4, damaged=(damaged(2),))
    again = PullResult(PullStatus.FOUND, stored(3), 4, 0, 4, damaged=(damaged(2),))
    reads = Reads(answer, again, again, refused(2))
    async with reading(reads, settings=listening(told, on_damaged=DamagedPolicy.STOP)) as (mine, _):
        assert await reads.pulled_again() == 2, "pulled again until it is healed"
        window, messages = mine.take(9)
        assert [each.queue_offset for each in messages] == [0, 1] and window is not None
        mine.finish(window, messages)
        assert mine.commit_offset == 2 and reads.reports.skipped == 0
        with pytest.raises(DamagedMessageError, match="offset 2"):
            mine.damage.check()
        assert [record for _, record in told] == [damaged(2)], "told once"


async def test_a_healed_message_ends_the_stop(no_pause: None) -> None:
    reads = Reads(refused(0), found(0, 1))
    async with reading(reads, settings=ConsumerSettings(on_damaged=DamagedPolicy.STOP)) as (mine, _):
        assert await reads.pulled_again() == 2
        mine.damage.check()
        assert [each.queue_offset for each in mine.take(9)[1]] == [0, 1]


async def test_a_stopped_queue_can_be_moved_by_the_application(no_pause: None) -> None:
    reads = Reads(refused(0))
    async with reading(reads, settings=ConsumerSettings(on_damaged=DamagedPolicy.STOP)) as (mine, _):
        await reads.pulled_again()
        with pytest.raises(DamagedMessageError):
            mine.damage.check()
        mine.seek(1)
        mine.damage.check()
        assert await reads.pulled_again() == 1


async def test_a_message_that_the_broker_may_heal_is_waited_for(clock: Clock, no_pause: None) -> None:
    """All records of one damaged part of the log are waited for once, and each is reported."""
    told: Told = []
    reads = Reads(refused(0), refused(0))
    async with reading(reads, settings=listening(told, damaged_wait_ms=1_000)) as (mine, _):
        assert await reads.pulled_again() == 0 and told == []
        clock.ms += 1_000
        reads.answers += [refused(0), refused(1), refused(7, at=9_000), found(2, 7)]
        mine.want(Subscription("T", "b"))  # ends the pull that waits
        assert await reads.pulled_again() == 8
        assert [record.queue_offset for _, record in told] == [0, 1] and reads.reports.skipped == 2
        assert [each.queue_offset for each in mine.take(9)[1]] == [2, 7]


async def test_a_queue_that_was_moved_back_skips_nothing_in_front_of_a_damaged_message() -> None:
    """The refusal came in the turn of the loop in which an operator has reset the offset."""
    reads = Reads(refused(100), found(0, 1), start=100)
    async with reading(reads, settings=ConsumerSettings(damaged_wait_ms=0)) as (mine, _):
        pull = reads.pull

        async def moved(*asked: Any, **options: Any) -> PullResult:
            if not reads.pulls:
                mine.seek(0)
            return await pull(*asked, **options)

        reads.pull = moved  # type: ignore[method-assign]
        assert await reads.pulled_again() == 2
        assert mine.commit_offset == 0 and reads.reports.skipped == 0


async def test_the_pause_ends_when_the_wait_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "keelmq.client.consumer.process_queue.PULL_AGAIN", Backoff(first_ms=600_000, max_ms=600_000)
    )
    monkeypatch.setattr("keelmq.client.consumer.process_queue.random.random", lambda: 1.0)
    reads = Reads(refused(0), refused(0), refused(0), refused(0))
    async with reading(reads, settings=ConsumerSettings(damaged_wait_ms=20)):
        assert await reads.pulled_again() == 1


async def test_a_listener_that_fails_does_not_stop_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    def fail(queue: MessageQueue, record: DamagedRecord) -> None:
        raise ValueError("no")

    reads = Reads(PullResult(PullStatus.FOUND, (), 3, 0, 3, damaged=(damaged(0, 3, at=None),)))
    async with reading(reads, settings=ConsumerSettings(damaged_listener=fail)) as (mine, _):
        assert await reads.pulled_again() == 3
        assert mine.commit_offset == 3 and reads.reports.skipped == 3
    assert "damaged_listener failed at offset 0" in caplog.text and "offsets 0 to 2" in caplog.text


def test_the_wait_is_not_negative() -> None:
    with pytest.raises(ValueError, match="damaged_wait_ms is -1"):
        ConsumerSettings(damaged_wait_ms=-1)
