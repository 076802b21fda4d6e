"""The verdicts of `keelmq bench scale`, on work of known growth; every subject works, with small tables."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.bench import main, scale
from tests.bench.scale import FACTORS, SUBJECTS, Kind, Subject, Work, cost_us, faults, scaled
from tests.support.slices import first


def test_a_request_may_not_grow_and_a_period_may_grow_in_proportion() -> None:
    results = {
        "constant": scaled("request", "topics", (5.0, 5.5, 6.0)),
        "scan": scaled("request", "topics", (5.0, 40.0, 400.0)),
        "late": scaled("request", "topics", (5.0, 5.0, 30.0)),
        "linear": scaled("period", "topics", (5.0, 50.0, 700.0)),
        "square": scaled("period", "topics", (5.0, 500.0, 50_000.0)),
    }
    assert {name: each.is_well for name, each in results.items()} == {
        "constant": True, "scan": False, "late": False, "linear": True, "square": False,
    }  # fmt: skip
    found = faults(dict(results))
    assert len(found) == 3 and found[2] == "square (period) grows with topics by the power 2.00, limit 1.5"
    assert (results["scan"].value, results["scan"].yardstick) == (400.0, 5.0)
    assert results["late"].ratio == pytest.approx(0.78, abs=0.01)


def works(cost: Callable[[int], int], kind: Kind) -> Subject:
    @contextmanager
    def make(size: int) -> Iterator[Work]:
        turns = range(cost(size))
        yield lambda: sum(turns)

    return Subject(kind, "rows", 20, make)


def test_the_growth_of_real_work_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scale, "SAMPLE_NS", 300_000)
    subjects = {
        "same": works(lambda size: 100, "request"),
        "scan": works(lambda size: size, "request"),
        "square": works(lambda size: size * size // 10, "period"),
    }
    monkeypatch.setattr(scale, "SUBJECTS", subjects)
    assert main.run("scale", as_json=True) == 1
    printed = capsys.readouterr()
    rows = {line.split()[0]: line.split() for line in printed.out.splitlines()[1:4]}
    assert (
        rows["same"][-1] == "good" and rows["scan"][-2:] == ["above", "0.3"] and rows["square"][-2] == "above"
    )
    assert '"costs_us"' in printed.out.splitlines()[-1] and "square (period) grows" in printed.err
    monkeypatch.setattr(scale, "SUBJECTS", {"same": subjects["same"]})
    assert main.run("scale") == 0


@pytest.mark.parametrize("name", first(12, SUBJECTS))
def test_every_subject_works(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SAMPLE_NS", 1)
    assert cost_us(SUBJECTS[name], 20) > 0 and len(FACTORS) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["offset_commit_in_row", "offset_replicated_in_row"])
def test_a_commit_costs_what_changes(name: str) -> None:
    """In the same run, at most 1.5 times as much with 2,000 queues as with 10: the best of three pairs, as
    another process on the same core makes one half of a pair twice as slow."""
    pairs = ((cost_us(SUBJECTS[name], 10), cost_us(SUBJECTS[name], 2_000)) for _ in range(3))
    assert any(many <= 1.5 * few for few, many in pairs)


def test_the_longest_slice_of_work_in_slices_is_measured() -> None:
    @contextmanager
    def make(size: int) -> Iterator[Work]:
        async def work() -> None:
            for turn in range(3):
                sum(range(size * 100 if turn == 1 else 1))
                await asyncio.sleep(0)

        yield work

    few, many = (cost_us(Subject("step", "rows", 20, make), size) for size in (20, 20_000))
    assert many > 20 * few
    results = {
        "short": scaled("step", "rows", (1.0, 30.0, 900.0)),
        "long": scaled("step", "rows", (1, 1, 20_001)),
    }
    assert results["short"].is_well and not results["long"].is_well
    assert faults(dict(results)) == ["long: the longest step with rows is 20001 µs, limit 20000"]
