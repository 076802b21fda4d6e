"""`keelmq bench failover --load full`, small: brokers in containers, with tables of some size."""

import asyncio

import pytest

from tests.bench import failover_full

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(240)]


def test_a_small_run_has_all_figures() -> None:
    found = asyncio.run(failover_full.measure(20_000, 1, 500, 50, container=True, secure=False))
    results = failover_full.results_of(found)
    assert len(found.calm) == len(found.full) == 1 and results["full_load"].value > 2_000
    assert all(each.value > 0 for name, each in results.items() if name != "full_planned_failed")
