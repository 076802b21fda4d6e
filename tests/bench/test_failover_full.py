"""The figures of `keelmq bench failover --load full`, on invented measurements."""

import asyncio
from pathlib import Path

import pytest

from broker.metadata.offsets import ConsumerOffsetTable
from broker.metadata.topics import TopicTable
from keelmq.client import Message, Producer, SendError
from tests.bench import failover, main, switch
from tests.bench.failover_full import Found, Kill, longest_wait, results_of
from tests.bench.large_tables import topic_names, write_tables
from tests.bench.native import BenchError
from tests.bench.switch import Load, Stored


def test_the_ratio_is_that_of_the_medians_of_both_loads() -> None:
    found = Found(
        calm=[Kill(gap, 40, 3, 2_000) for gap in (20, 30, 100)],
        full=[Kill(gap, gap + 50, 60, 67_000) for gap in (8_000, 60, 120)],
        planned_ms=[float(each) for each in range(1, 101)],
        planned_failed=2,
        hung_ms=[700, 900],
    )
    results = results_of(found)
    values = {name: each.value for name, each in results.items()}
    assert (values["calm_kill_gap_ms"], values["full_kill_gap_ms"], values["full_vs_calm"]) == (30, 120, 4)
    assert results["full_vs_calm"].yardstick == 3 and results["full_vs_calm"].ratio > 1
    assert (values["full_kill_gap_max_ms"], values["full_consumable_ms"]) == (8_000, 170)
    assert (values["full_loop_stall_ms"], values["full_load"]) == (60, 67_000)
    assert (values["full_planned_failed"], values["full_planned_p99_ms"]) == (2, 100)
    assert (values["full_planned_max_ms"], values["full_hung_gap_ms"]) == (100, 900)


def test_a_wait_that_spans_the_kill_counts_and_earlier_ones_do_not() -> None:
    waits = [(0.0, 5.0), (9.9, 10.5), (10.6, 10.7), (12.0, 20.0)]
    assert longest_wait(waits, 10.0, 11.0) == pytest.approx(0.6)
    assert longest_wait(waits, 10.0, 12.5) == 8.0
    with pytest.raises(ValueError, match="was not asked"):
        longest_wait(waits, 10.8, 11.0)


def test_the_first_stored_message_is_the_one_that_was_answered_first() -> None:
    load = Load("127.0.0.1:1")
    load.sends += [Stored(1.0, 5.0, 0, 7), Stored(2.0, 3.0, 1, 8), Stored(2.1, 1.0, 2, 9)]
    assert load.first_begun_after(1.5) == Stored(2.1, 1.0, 2, 9)
    assert load.first_stored_after(1.5) == pytest.approx(3.1) and load.first_begun_after(3.0) is None


def test_every_store_gets_the_same_large_tables(tmp_path: Path) -> None:
    stores = [tmp_path / name for name in ("a", "b")]
    write_tables(stores, topics=20, offsets=45, topic="t", cluster_name="c", broker_name="b")
    for store in stores:
        topics = TopicTable(store / "config" / "topics.json", broker_name="b", cluster_name="c")
        topics.load()
        offsets = ConsumerOffsetTable(store / "config" / "consumerOffset.json")
        offsets.load()
        assert set(topic_names(20)) <= topics.table.rows.keys()
        assert len(offsets.table.rows) == 45 and len(offsets.row("group-2", "Table000004")) == 8
        assert not offsets.is_behind


def test_options_of_full_load_are_refused_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BenchError, match="messages: only with --load full"):
        failover.run(messages=20_000)
    assert main.run("send", load="full") == 2
    assert "--load is for failover" in capsys.readouterr().err


async def test_sends_that_are_not_answered_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen on a busy machine: with a long timeout the load took 3.7 GB, and nothing was measured any more."""
    monkeypatch.setattr(switch, "IN_FLIGHT_MAX", 20)
    begun = 0
    full, over = asyncio.Event(), asyncio.Event()

    async def late(self: Producer, message: Message, *, timeout_ms: int) -> None:
        nonlocal begun
        begun += 1
        if begun >= 20:
            full.set()
        await over.wait()
        raise SendError("over")

    monkeypatch.setattr(Producer, "send", late)
    async with Load("127.0.0.1:1", rate=100_000):
        await asyncio.wait_for(full.wait(), 60)
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == 20
        over.set()
