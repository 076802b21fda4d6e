"""S2 with real processes, kernels and clocks: a slice of `make lease`."""

import random
from pathlib import Path

import pytest

from tests.cluster import netns
from tests.cluster.lease_runs import MODES, LeaseCluster, Result, line_of

REASON = netns.why_not()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(180),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
RUNS = 2


@pytest.mark.promise("S2")
@pytest.mark.parametrize("mode", ["default", "rocketmq", "all-ack"])
def test_s2_nothing_is_acknowledged_after_an_election(mode: str, tmp_path: Path) -> None:
    with LeaseCluster(tmp_path, MODES[mode]) as cluster:
        dice = random.Random(5)
        results = [cluster.run(dice) for _ in range(RUNS)]
    assert not any(result.late for result in results), line_of(mode, results)
    if mode != "all-ack":  # nothing is acknowledged without the slave then
        assert all(result.acknowledged for result in results), "the client and the master are on one side"


def test_the_summary_counts_late_acknowledgements() -> None:
    results = [Result(0, 2.5, 2.0, 9), Result(3, 2.4, 2.9, 9)]
    assert line_of("default", results).startswith(
        "LEASE mode=default runs=2 late_runs=1 late=3 margin_min_s=-0.5"
    )
