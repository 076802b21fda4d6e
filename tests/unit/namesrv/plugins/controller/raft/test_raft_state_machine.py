"""Claims and fencing; and the queue in front of the log."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from keelmq.remoting.operation import LocalProtocolError, Unknown
from namesrv.plugins.controller.raft import proposals as proposals_module
from namesrv.plugins.controller.raft.api import Busy, Committed, NotActive
from namesrv.plugins.controller.raft.fenced_state_machine import Batch, FencedStateMachine, Item, encode_batch
from namesrv.plugins.controller.raft.proposals import BATCH_MAX, Proposals, Verified
from namesrv.plugins.controller.raft.raft_library import Callback
from tests.support.raft_group import ListMachine


def apply(fenced: FencedStateMachine, kind: str, term: int, *items: Item) -> object:
    return fenced.apply(encode_batch(Batch(kind, term, "n0", items)))  # type: ignore[arg-type]


def test_a_batch_of_another_term_is_fenced() -> None:
    machine = ListMachine()
    fenced = FencedStateMachine(machine)
    assert apply(fenced, "events", 1, (None, b"a")) is None
    assert apply(fenced, "claim", 3) == []
    assert apply(fenced, "claim", 3) is None
    assert apply(fenced, "claim", 2) is None
    assert apply(fenced, "events", 2, (None, b"a")) is None
    assert apply(fenced, "events", 3, (None, b"a"), (None, None), (None, b"b")) == [1, None, 2]
    assert machine.events == [b"a", b"b"]


def test_request_ids_of_older_releases_are_ignored() -> None:
    fenced = FencedStateMachine(ListMachine())
    apply(fenced, "claim", 1)
    assert apply(fenced, "events", 1, ("x", b"a"), (None, b"b")) == [1, 2]


class Log:
    """Collects what is submitted; the test decides when it is answered."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, Callback]] = []
        self.reads: list[Verified] = []
        self.state_machine = FencedStateMachine(ListMachine())

    def submit(self, data: bytes, callback: Callback) -> None:
        self.entries.append((data, callback))

    def verify(self, _term: int, done: Verified) -> None:
        self.reads.append(done)

    def answer(self) -> None:
        data, callback = self.entries.pop(0)
        callback(self.state_machine.apply(data), 0)


class Time:
    """The event loop's, which stands still until advance(): a slow machine lets no deadline pass."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._now = self._loop.time()

    def __enter__(self) -> "Time":
        self._loop.time = lambda: self._now  # type: ignore[method-assign]
        return self

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def __exit__(self, *_: object) -> None:
        del self._loop.time


@pytest.fixture
async def clock() -> AsyncIterator[Time]:
    with Time() as held:
        yield held


def make(log: Log) -> Proposals:
    loop = asyncio.get_running_loop()
    return Proposals(loop, log.submit, log.verify, lambda: "n1", self_id="n0", deadline_s=5.0)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def opened(log: Log) -> Proposals:
    proposals = make(log)
    log.state_machine.claimed_term = 4
    proposals.open(4)
    return proposals


async def test_appends_share_entries_and_two_are_in_flight(clock: Time) -> None:
    log = Log()
    proposals, count = await opened(log), 2 * BATCH_MAX + 88
    tasks = [asyncio.create_task(proposals.append(b"%d" % i)) for i in range(count)]
    await turns()
    assert len(log.entries) == 2
    log.answer()
    await turns()
    assert len(log.entries) == 2
    log.answer()
    log.answer()
    outcomes = await asyncio.gather(*tasks)
    assert outcomes == [Committed(i + 1) for i in range(count)]


async def test_not_active_is_certain(clock: Time) -> None:
    log = Log()
    proposals = make(log)
    assert await proposals.append(b"a") == NotActive("n1")
    proposals.open(4)
    fenced = asyncio.create_task(proposals.append(b"a"))
    await turns()
    log.answer()  # claimed_term is 0: refused as a whole
    assert await fenced == NotActive("n1")
    never = asyncio.create_task(proposals.append(b"a"))
    await turns()
    log.entries.pop()[1](None, 3)  # DISCARDED
    assert await never == NotActive("n1")
    queued = asyncio.create_task(proposals.append(b"a"))
    await asyncio.sleep(0)
    proposals.close()
    assert await queued == NotActive("n1")
    assert log.entries == []


async def test_no_answer_is_unknown_and_a_late_one_is_dropped(clock: Time) -> None:
    log = Log()
    proposals = await opened(log)
    silent = asyncio.create_task(proposals.append(b"a"))
    await turns()
    assert not silent.done()
    clock.advance(5.1)
    assert isinstance(await silent, Unknown)
    log.answer()
    await turns()
    lost = asyncio.create_task(proposals.append(b"a"))
    await turns()
    log.entries.pop()[1](None, 5)  # LEADER_CHANGED
    assert isinstance(await lost, Unknown)
    last = asyncio.create_task(proposals.append(b"a"))
    await turns()
    proposals.stop()
    assert isinstance(await last, Unknown)


def test_an_answer_after_the_loop_has_closed() -> None:
    """P1: it comes in the raft thread, where an exception would apply the entry a second time."""
    log, loop = Log(), asyncio.new_event_loop()

    async def propose() -> None:
        proposals = await opened(log)
        asked = asyncio.create_task(proposals.append(b"a"))
        claimed = asyncio.create_task(proposals.claim(4, 5.0))
        await turns()
        asked.cancel()
        claimed.cancel()
        await asyncio.wait([asked, claimed])

    loop.run_until_complete(propose())
    loop.close()
    assert len(log.entries) == 2
    log.answer()
    log.answer()


async def test_a_full_queue_is_busy(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    monkeypatch.setattr(proposals_module, "QUEUED_MAX", 2)
    log = Log()
    proposals = await opened(log)
    tasks = [asyncio.create_task(proposals.append(b"a")) for _ in range(3)]
    await turns()
    assert tasks[2].result() == Busy()
    log.answer()
    assert await asyncio.gather(*tasks[:2]) == [Committed(1), Committed(2)]
    with pytest.raises(LocalProtocolError, match="event of"):
        await proposals.append(bytes(300_000))


async def test_a_cancelled_caller_disturbs_nobody(clock: Time) -> None:
    log = Log()
    proposals = await opened(log)
    first, second = (asyncio.create_task(proposals.append(event)) for event in (b"a", b"b"))
    await turns()
    first.cancel()
    log.answer()
    assert await second == Committed(2)


async def test_reads_of_one_turn_share_a_check(clock: Time) -> None:
    log = Log()
    proposals = await opened(log)
    reads = [asyncio.create_task(proposals.read()) for _ in range(3)]
    await turns()
    reads[0].cancel()
    log.reads.pop()(True)
    assert await asyncio.gather(*reads[1:]) == [Committed(None)] * 2
    assert log.reads == log.entries == []


async def test_a_read_that_no_majority_can_confirm_goes_through_the_log(clock: Time) -> None:
    log = Log()
    proposals = await opened(log)
    read = asyncio.create_task(proposals.read())
    await turns()
    log.reads.pop()(None)
    await turns()
    log.answer()
    assert await read == Committed(None)


async def test_a_read_without_a_leader(monkeypatch: pytest.MonkeyPatch, clock: Time) -> None:
    monkeypatch.setattr(proposals_module, "QUEUED_MAX", 1)
    log = Log()
    assert await make(log).read() == NotActive("n1")
    proposals = await opened(log)
    late = asyncio.create_task(proposals.read())
    await turns()
    assert await proposals.read() == Busy()
    clock.advance(5.1)
    assert isinstance(await late, Unknown)
    log.reads.pop()(True)  # late
    deposed = asyncio.create_task(proposals.read())
    await turns()
    log.reads.pop()(False)
    assert await deposed == NotActive("n1")
    for begun in (0, 5):
        closed = asyncio.create_task(proposals.read())
        await turns(begun)
        await asyncio.sleep(0)
        proposals.close()
        assert await closed == NotActive("n1")
        proposals.open(5)
