"""Which brokers a worker gets back after its end, and what the observer is told."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.container.host import BrokerRefused, InnerSetup
from broker.container.workers.kept import BLAMED_MAX, KeptBrokers
from tests.support.worker_parts import Observed, identity, setup

Start = Callable[[InnerSetup], Awaitable[None]]


@pytest.fixture
def observed() -> Observed:
    return Observed()


@pytest.fixture
def kept(observed: Observed) -> KeptBrokers:
    """Three brokers that were up, of a worker that ended."""
    kept = KeptBrokers(observed)
    for name in "abd":
        kept.add(setup(name))
    kept.all_failed("worker 1 was killed")
    assert [str(each[0].name) for each in observed.failed] == ["a", "b", "d"]
    observed.failed.clear()
    return kept


def starter(started: list[str], **refusals: str) -> Start:
    async def start(setup: InnerSetup) -> None:
        started.append(setup.identity.name)
        if reason := refusals.get(setup.identity.name):
            raise BrokerRefused(reason)

    return start


async def test_all_start_again_and_a_refusal_stops_no_other(kept: KeptBrokers, observed: Observed) -> None:
    started: list[str] = []
    await kept.start_again(starter(started, b="its port is in use"), lambda: False)
    assert started == ["a", "b", "d"]
    assert [each.name for each in observed.restarted] == ["a", "d"]
    assert observed.failed == [(identity("b"), "its port is in use")]
    assert [each.setup.identity.name for each in kept] == ["a", "d"]
    await kept.start_again(starter(started), lambda: False)
    assert started == ["a", "b", "d"]


async def test_a_broker_that_ends_its_worker_stays_out(kept: KeptBrokers, observed: Observed) -> None:
    """The others are up in between, and reported once for each end."""
    started: list[str] = []
    for number in range(1, BLAMED_MAX + 1):
        ended = asyncio.Event()

        async def start(setup: InnerSetup, ended: asyncio.Event = ended) -> None:
            started.append(setup.identity.name)
            if setup.identity.name == "a":
                ended.set()
                raise BrokerRefused("worker 1 was killed")

        await kept.start_again(start, ended.is_set)
        kept.all_failed(f"end {number}")
    # The first time a was first; then it is last, and the others serve for a while.
    assert started == ["a", "b", "d", "a", "b", "d", "a"]
    (reason,) = [reason for failed, reason in observed.failed if failed.name == "a"]
    assert reason.startswith(f"the worker ended {BLAMED_MAX} times while it started, so it stays out")
    assert [each.setup.identity.name for each in kept] == ["b", "d"]


async def test_nobody_is_blamed_for_a_worker_that_ended_between_two_starts(
    kept: KeptBrokers, observed: Observed
) -> None:
    started: list[str] = []
    await kept.start_again(starter(started), lambda: len(started) == 1)
    assert started == ["a"]
    assert [each.blamed for each in kept] == [0, 0, 0]
    assert observed.failed == []


async def test_a_request_takes_a_broker_over(kept: KeptBrokers, observed: Observed) -> None:
    """A remove while it starts again: the start ends, the others go on, and it is not kept any more."""
    begun, gave_up, started = asyncio.Event(), [], []

    async def start(setup: InnerSetup) -> None:
        started.append(setup.identity.name)
        if setup.identity.name == "b":
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                gave_up.append("b")

    again = asyncio.create_task(kept.start_again(start, lambda: False))
    await begun.wait()
    await kept.take(identity("d"))  # its turn has not come
    await kept.take(identity("b"))
    assert gave_up == ["b"]
    await again
    assert started == ["a", "b"]
    assert [each.setup.identity.name for each in kept] == ["a"]
    assert [each.name for each in observed.restarted] == ["a"]
    assert observed.failed == []


async def test_the_start_ends_with_the_worker(kept: KeptBrokers) -> None:
    begun, gave_up = asyncio.Event(), asyncio.Event()

    async def start(setup: InnerSetup) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            gave_up.set()

    again = asyncio.create_task(kept.start_again(start, lambda: False))
    await begun.wait()
    again.cancel()
    with pytest.raises(asyncio.CancelledError):
        await again
    async with asyncio.timeout(10):
        await gave_up.wait()


def test_a_failure_is_reported_once_until_it_serves_again(observed: Observed) -> None:
    kept = KeptBrokers(observed)
    kept.add(setup("a"))
    kept.restarted(identity("a"))  # of a broker that did not fail
    kept.failed(identity("a"), "its disk is gone")
    kept.all_failed("the worker, too")
    kept.failed(identity("unknown"), "not ours")
    assert observed.failed == [(identity("a"), "its disk is gone")]
    kept.restarted(identity("a"))
    assert observed.restarted == [identity("a")]
    kept.all_failed("again")
    assert len(observed.failed) == 2


def test_a_planned_stop_is_no_failure(observed: Observed) -> None:
    kept = KeptBrokers(observed)
    kept.add(setup("a"))
    kept.all_down()
    assert observed.failed == []
    assert not any(each.is_up for each in kept)
