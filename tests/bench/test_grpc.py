"""The goals of the suite grpc."""

import pytest

from tests.bench.grpc import faults
from tests.bench.report import Measurement

GOOD = {
    "send_batch_rate": Measurement(6_000, "msg/CPU-s", 6_000, 1.0),
    "receive_and_ack_rate": Measurement(8_000, "msg/CPU-s", 8_000, 1.0),
    "idle_streams": Measurement(100, "MiB", 100, 1.0),
    "remoting_beside": Measurement(95, "msg/CPU-s", 100, 0.95),
}


def test_goals_that_are_met() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize(
    ("name", "ratio"), [(each, 1.01 if each == "idle_streams" else 0.94) for each in GOOD]
)
def test_a_goal_that_is_missed_is_a_fault(name: str, ratio: float) -> None:
    [fault] = faults(GOOD | {name: Measurement(1, "", 1, ratio)})
    assert fault
