"""The verdicts of bench-compare, on invented figures."""

from typing import Any

import pytest

from tests.bench import main
from tests.bench.compare import judge, verdicts
from tests.bench.every_suite import SuiteError, run_suite


def figure(value: float, unit: str = "msg/CPU-s", yardstick: float = 100.0) -> dict[str, Any]:
    return {"value": value, "unit": unit, "yardstick": yardstick, "ratio": 0.0}


@pytest.mark.parametrize(
    ("unit", "base", "new", "word"),
    [
        ("msg/CPU-s", [50, 51, 49], [60, 61, 58], "better"),
        ("msg/CPU-s", [60, 61, 58], [50, 51, 49], "worse"),
        ("ms", [60, 61, 58], [50, 51, 49], "better"),
        ("ms/s", [50, 51, 49], [60, 61, 58], "worse"),  # idle CPU: a unit with a slash, but no rate
        ("us/send", [50, 51, 49], [60, 61, 58], "worse"),
        ("msg/CPU-s", [50, 51, 49], [51, 52, 50], "same"),  # every pair is better, by less than the tolerance
        ("msg/CPU-s", [50, 51, 49], [70, 72, 48], "same"),  # one pair disagrees
    ],
)
def test_a_figure_is_judged_by_its_pairs(unit: str, base: list[float], new: list[float], word: str) -> None:
    found = judge("figure", [figure(each, unit) for each in base], [figure(each, unit) for each in new])
    assert found.word == word


def test_the_yardstick_of_each_run_takes_the_slow_minute_out() -> None:
    base = [figure(100, yardstick=200), figure(50, yardstick=100)]
    new = [figure(50, yardstick=100), figure(100, yardstick=200)]
    found = judge("figure", base, new)
    assert (found.word, found.ratios) == ("same", (1.0, 1.0))


def test_a_count_without_a_yardstick_that_becomes_more_than_zero_is_worse() -> None:
    none, some = figure(0, "messages", 0), figure(3, "messages", 0)
    assert judge("lost", [none, none], [some, some]).word == "worse"
    assert judge("lost", [none, none], [none, none]).word == "same"


def test_names_that_one_tree_lacks_are_told() -> None:
    found = verdicts([{"old": figure(1)}], [{"new": figure(1)}])
    assert {each.name: each.word for each in found} == {"old": "gone", "new": "added"}


def test_a_suite_that_fails_says_why() -> None:
    with pytest.raises(SuiteError, match="no suite 'nothing'"):
        run_suite("nothing")


def test_all_goes_on_after_a_suite_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fake(suite: str) -> dict[str, dict[str, Any]]:
        if suite == "codec":
            raise SuiteError("no compiler")
        return {"figure": figure(1)}

    monkeypatch.setattr("tests.bench.every_suite.run_suite", fake)
    assert main.run("all", as_json=True) == 1
    out = capsys.readouterr().out
    assert "codec: failed: no compiler" in out
    assert '"failed": {"codec": "no compiler"}' in out.splitlines()[-1]
    assert '"send": {"figure"' in out.splitlines()[-1]
