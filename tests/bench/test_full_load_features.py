"""The figures of `keelmq bench failover --load full --features`, on invented measurements."""

import asyncio

import pytest

from keelmq.client import Message, Producer
from tests.bench import failover, feature_probes
from tests.bench.feature_probes import (
    Answered,
    Arrived,
    Timers,
    first_answer,
    first_of_new_master,
    start_offset,
)
from tests.bench.full_load_features import FEATURES, Felt, Found, percentile, results_of
from tests.bench.native import BenchError

OLD, NEW = "127.0.0.1:1", "127.0.0.1:2"


def found(**more: object) -> Found:
    calm = [dict.fromkeys(FEATURES, float(gap)) for gap in (10, 20, 90)]
    full = [dict.fromkeys(FEATURES, float(gap)) for gap in (900, 30, 80)]
    return Found(calm, full, ages_ms=[float(each) for each in range(100, 0, -1)], **more)  # type: ignore[arg-type]


def test_each_feature_has_the_medians_of_both_loads_and_their_ratio() -> None:
    results = results_of(found(lost={"a": 2, "b": 1}))
    for name in FEATURES:
        assert results[f"calm_{name}_gap_ms"].value == 20 and results[f"full_{name}_gap_ms"].value == 80
        assert results[f"full_{name}_gap_max_ms"].ratio > 1
        assert results[f"{name}_full_vs_calm"].value == 4 and results[f"{name}_full_vs_calm"].ratio > 1
    assert results["lost"].value == 3 and results["lost"].ratio > 0
    assert (results["slave_age_p50_ms"].value, results["slave_age_max_ms"].value) == (51, 100)
    assert not any("neighbour" in name for name in results)


def test_a_neighbour_has_figures_of_both_loads() -> None:
    results = results_of(found(neighbour=(Felt([1, 2, 3], [4]), Felt([9, 7, 8], [5]))))
    assert results["calm_neighbour_send_p50_ms"].value == 2
    assert results["full_neighbour_send_p99_ms"].value == 9
    assert results["full_neighbour_pull_p50_ms"].value == 5


def test_what_was_not_measured_has_no_figure() -> None:
    nothing = found()
    nothing.ages_ms.clear()
    with pytest.raises(BenchError, match="slave served no message"):
        results_of(nothing)
    with pytest.raises(BenchError, match="answered no pull"):
        results_of(found(neighbour=(Felt([1], [1]), Felt([1], []))))


def test_a_share_of_one_value_is_that_value() -> None:
    assert percentile([7], 0.99) == percentile([7], 0.0) == 7


def test_only_what_another_broker_wrote_is_of_the_new_master() -> None:
    arrived = [Arrived(1.0, "a", NEW), Arrived(5.1, "b", OLD), Arrived(5.5, "c", NEW), Arrived(5.3, "d", NEW)]
    assert first_of_new_master(arrived, 5.0, OLD) == 5.3
    assert first_of_new_master(arrived[:2], 5.0, OLD) is None


def test_an_answer_counts_if_it_was_asked_after_the_kill_about_what_began_before() -> None:
    answers = [
        Answered(1.0, 4.9, 5.2),  # asked before the kill
        Answered(5.1, 5.2, 5.3),  # began after the kill
        Answered(4.0, 5.1, 5.9),
        Answered(4.5, 5.2, 5.6),
    ]
    assert first_answer(answers, 5.0) == 5.6
    assert first_answer(answers[:2], 5.0) is None


def test_the_checkpoint_of_a_popped_message_is_that_of_its_queue_of_the_topic() -> None:
    assert start_offset("1 0 3;0 1 4;0 0 5", 0) == 5
    with pytest.raises(ValueError, match="no queue 2"):
        start_offset("1 2 3", 2)


async def test_a_probe_misses_what_was_acknowledged_and_has_not_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feature_probes, "RATE", 1_000)
    three = asyncio.Event()

    async def send(self: Producer, message: Message) -> None:
        assert message.properties["TIMER_DELAY_MS"] == "1000"
        if message.body.endswith(b"-2"):
            three.set()

    async def nothing(self: Timers) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Producer, "send", send)
    monkeypatch.setattr(Timers, "receive", nothing)
    async with Timers("127.0.0.1:1") as probe:
        await asyncio.wait_for(three.wait(), 60)
        probe.stop()
        probe.arrived.append(Arrived(0.0, f"{Timers.topic}-1", NEW))
        assert {f"{Timers.topic}-0", f"{Timers.topic}-2"} <= probe.missing
        assert f"{Timers.topic}-1" not in probe.missing


async def test_an_error_of_a_probe_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: Timers) -> None:
        raise ValueError("a pop without a checkpoint")

    async def send(self: Producer, message: Message) -> None:
        pass

    monkeypatch.setattr(Timers, "receive", fail)
    monkeypatch.setattr(Producer, "send", send)
    async with Timers("127.0.0.1:1") as probe:
        await asyncio.wait({probe.receiver})
        with pytest.raises(ValueError, match="without a checkpoint"):
            probe.check()


def test_options_of_the_other_run_are_refused() -> None:
    with pytest.raises(BenchError, match="offsets, topics: not with --features"):
        failover.run(load=failover.FULL, features=True, offsets=5, topics=5)
    with pytest.raises(BenchError, match="features: only with --load full"):
        failover.run(features=True)
