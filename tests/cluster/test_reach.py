"""`make reach`, and a short slice of it: the zone of the master and of the leading controller is killed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cli.lab.chaos.net import missing
from tests.cluster import netns
from tests.cluster.reach.__main__ import lost_of, table
from tests.cluster.reach.clients import Row
from tests.cluster.reach.scenarios import SCENARIOS

REASON = netns.why_not() or missing()
POSSIBLE = pytest.mark.skipif(REASON is not None, reason=REASON or "")
ROOT = Path(__file__).resolve().parents[2]
VERDICT = re.compile(r"REACH rows=(\d+) acked=(\d+) failed=0 lost=0 verdict=ok")
ACKED_MIN = 100
"""By each client in each scenario."""


def reach(tmp_path: Path, *options: str, timeout_s: float) -> int:
    """Returns the number of rows of the table."""
    command = [sys.executable, "-m", "tests.cluster.reach", "--directory", str(tmp_path), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = VERDICT.fullmatch(done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
    rows, acked = map(int, found.groups())
    assert acked >= rows * ACKED_MIN
    return rows


@POSSIBLE
@pytest.mark.cluster
@pytest.mark.timeout(200)
def test_a_killed_zone_fails_no_send_at_either_side(tmp_path: Path) -> None:
    options = ("--only", "zone killed", "--clients", "keelmq,cpp", "--away", "3")
    assert reach(tmp_path, *options, timeout_s=190) >= 2


@POSSIBLE
@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(1_500)
def test_no_scenario_fails_a_send_at_either_side(tmp_path: Path) -> None:
    assert reach(tmp_path, timeout_s=1_400) >= 2 * len(SCENARIOS)


def row(**values: object) -> Row:
    made: dict[str, object] = {
        "scenario": "s", "client": "c", "sent": 3, "acked": 3, "failed": 0, "longest_gap_ms": 5,
        "acked_bodies": ("m0", "m1", "m2"),
    }  # fmt: skip
    return Row(**{**made, **values})  # type: ignore[arg-type]


def test_a_row_counts_what_is_not_stored() -> None:
    assert lost_of(row(), ["m0", "m1", "m1", "m2"]) == 0
    assert lost_of(row(), ["m0", "m1"]) == 1
    assert row().is_good
    assert not row(lost=1).is_good and not row(failed=1).is_good and not row(acked=0).is_good


def test_the_table_names_what_was_measured() -> None:
    head, rule, line = table([row()]).splitlines()
    assert head.split("|")[1:-1] == [
        f" {each} " for each in ("scenario", "client", "sent", "acked", "failed", "lost", "longest gap ms")
    ]
    assert set(rule) == {"|", "-"}
    assert [each.strip() for each in line.split("|")[1:-1]] == ["s", "c", "3", "3", "0", "0", "5"]
