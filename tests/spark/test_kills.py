"""A slice of `make kill-analytics`, and its checks."""

import pytest

from tests.spark.engine import ENGINE, SLOW_ON_SPARK
from tests.spark.kills import differing, kill_often
from tests.spark.programs import CONNECT, DRIVER, EMBEDDED, SPARK

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_200)]


VICTIMS = {EMBEDDED: DRIVER, SPARK: "java", CONNECT: "server"}


@pytest.mark.slow
@SLOW_ON_SPARK
def test_a_killed_run_is_continued() -> None:
    said = kill_often(ENGINE, VICTIMS[ENGINE], 2, seed=2)
    assert said.startswith(f"{ENGINE}, {VICTIMS[ENGINE]}: ") and said.endswith("all exact")


def test_what_is_no_exact_output() -> None:
    found = {"a": 1, "b": b"2"}
    assert list(differing(found, found)) == []
    assert list(differing(found, {"a": 2, "c": 3})) == ["a differs", "b is missing", "c is left over"]
