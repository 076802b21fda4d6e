"""A slice of `make kill-analytics`, and its checks."""

import pytest

from tests.spark.kills import differing, kill_often
from tests.spark.programs import DRIVER, names

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.slow
@pytest.mark.parametrize("engine", names()[:1])
def test_a_killed_run_is_continued(engine: str) -> None:
    said = kill_often(engine, DRIVER, 2, seed=2)
    assert said.startswith(f"{engine}, {DRIVER}: ") and said.endswith("all exact")


def test_what_is_no_exact_output() -> None:
    found = {"a": 1, "b": b"2"}
    assert list(differing(found, found)) == []
    assert list(differing(found, {"a": 2, "c": 3})) == ["a differs", "b is missing", "c is left over"]
