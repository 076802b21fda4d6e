"""A slice of the frame fuzzer (`keelmq fuzz frames` runs the rest), and tests of the fuzzer itself."""

import asyncio
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import response_frame
from keelmq.remoting.connection import Connection
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.operation import Call, OperationTable, Reply
from keelmq.remoting.operations.controller import GET_NEXT_BROKER_ID, BrokerSetRequest
from tests.fuzz.corpus import Corpus
from tests.fuzz.frames import ROUND_FRAMES, Finding, Report, Round, fuzz
from tests.fuzz.main import Share, shares_of
from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import TARGETS, open_target

FRAMES, SEEDS = 2_600, range(2)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_frames(name: str, seed: int) -> None:
    report = fuzz(seed, FRAMES, (name,))
    assert report.findings == []
    assert report.frames == FRAMES
    assert report.answers[ResponseCode.SUCCESS] > FRAMES / 20, report.line()
    assert report.closed > FRAMES / 20, report.line()


@given(st.integers(1, 40 * ROUND_FRAMES), st.integers(1, 9), st.integers(1, len(TARGETS)))
def test_the_rounds_are_the_same_on_any_number_of_cores(count: int, processes: int, targets: int) -> None:
    def rounds(share: Share) -> list[tuple[int, str, int]]:
        sizes = [min(ROUND_FRAMES, share.count - at) for at in range(0, share.count, ROUND_FRAMES)]
        return [
            (share.seed + number, share.names[number % len(share.names)], size)
            for number, size in enumerate(sizes)
        ]

    whole = Share(3, count, tuple(TARGETS)[:targets])
    shares = list(shares_of(whole, processes))
    assert len(shares) <= processes
    assert [each for share in shares for each in rounds(share)] == rounds(whole)


def test_findings_of_every_process_are_told() -> None:
    one, other = Report(10, 1, findings=["a"], grown_bytes=7), Report(20, 2, findings=["b"], grown_bytes=5)
    assert one.with_another(other) == Report(30, 3, findings=["a", "b"], grown_bytes=7)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_memory_stays_flat_over_100_000_frames() -> None:
    report = fuzz(7, 190_000)
    assert report.findings == []
    assert report.grown_bytes < 32 << 20


@pytest.mark.parametrize("name", TARGETS)
async def test_every_operation_is_in_the_corpus(name: str, tmp_path: Path) -> None:
    async with open_target(name, tmp_path) as target:
        corpus = Corpus(target.table, Random(1))
        codes = {corpus.request().code for _ in range(4_000)}
        assert codes == target.table.handlers.keys() | target.table.fast_path.keys()


async def test_the_same_seed_gives_the_same_frames(tmp_path: Path) -> None:
    async with open_target("namesrv", tmp_path) as target:
        digests = set()
        for _ in range(2):
            random, digest = Random(3), sha256()
            corpus, mutator = Corpus(target.table, random), Mutator(random, [105, 103])
            for _ in range(500):
                digest.update(mutator.frame(corpus.request()))
            digests.add(digest.hexdigest())
    assert len(digests) == 1


# ---- test the tester: each broken server must be found ----


class Broken:
    """A target with one operation, whose handler is given."""

    name, slow = "broken", frozenset[int]()

    def __init__(self, kind: str) -> None:
        self.kind, self.kept = kind, list[int]()
        self.table = OperationTable()
        self.table.bind(GET_NEXT_BROKER_ID, self.handle)
        self.dispatcher = Dispatcher(self.table, name=self.name)

    async def handle(self, request: BrokerSetRequest, call: Call) -> Reply | None:
        match self.kind:
            case "raises":
                raise ZeroDivisionError("bug")
            case "is silent":
                return None
            case "answers twice" if call.opaque:
                call.peer.send(response_frame(call.opaque, 0))
            case "breaks a task":
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: 1 / 0)
            case "keeps connections":
                self.kept.append(call.peer.connection_id)
        return Reply()

    async def open(self) -> None: ...
    def lost(self, connection_id: int) -> None: ...
    def tick(self, ms: int) -> None: ...
    async def flush(self) -> None: ...
    def check(self) -> None: ...

    def emptied(self) -> None:
        if self.kept:
            raise Finding("connections are kept")

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("raises", "internal error: ZeroDivisionError"),
        ("is silent", "no answer for"),
        ("answers twice", "more often than asked|oneway request was answered"),
        ("breaks a task", "ZeroDivisionError"),
        ("keeps connections", "connections are kept"),
    ],
)
async def test_a_broken_server_is_found(kind: str, found: str) -> None:
    with pytest.raises(Finding, match=found):
        await Round(Broken(kind), 1, Report()).run(400)


async def test_a_server_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_keep", lambda *_: 1 / 0)
    with pytest.raises(Finding, match="the connection raised"):
        await Round(Broken("works"), 1, Report()).run(400)


async def test_a_server_that_stays_open_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "close", lambda _self: None)
    with pytest.raises(Finding, match="not closed"):
        await Round(Broken("works"), 1, Report()).run(400)


async def test_a_server_that_works_passes() -> None:
    await Round(Broken("works"), 1, Report()).run(400)
