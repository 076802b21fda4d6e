"""What the page says a replica was: keelmq/web/static/states.js, run by node."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from keelmq import web

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="no node here; on Debian: apt-get install nodejs")


def run(expression: str, **values: Any) -> Any:
    names = "".join(f"const {name} = {json.dumps(value)};" for name, value in values.items())
    script = (web.STATIC / "states.js").read_text() + names + f"console.log(JSON.stringify({expression}))"
    done = subprocess.run([str(NODE), "-e", script], capture_output=True, text=True, timeout=30, check=True)
    return json.loads(done.stdout)


def states(members: Any, lag: Any, range: Any) -> dict[int, list[tuple[int, int, str]]]:
    found = run("memberStates(members, lag, range)", members=members, lag=lag, range=range)
    return {
        each["broker_id"]: [(span["from"], span["to"], span["state"]) for span in each["spans"]]
        for each in found
    }


def member(broker: int, *spans: tuple[int, int, str]) -> Any:
    return {"broker_id": broker, "spans": [{"from": a, "to": b, "state": state} for a, b, state in spans]}


def lag(broker: int, samples: list[int | None], acked: list[int | None], behind: list[int | None]) -> Any:
    return {"broker_id": broker, "ts": [10 * i for i in range(len(samples))], "samples": samples,
            "last_ack_offset": acked, "bytes_max": behind}  # fmt: skip


RANGE = {"from": 0, "to": 80, "window": 10}


def test_why_a_replica_is_out() -> None:
    samples = [60, 60, 60, 60, 0, None, 60, 60]
    acked = [5, 5, 5, 9, 9, None, 11, 12]
    behind = [0, 7, 9, 5, 20, None, 1, 0]
    members = [
        member(1, (0, 80, "master")),
        member(2, (0, 15, "in_sync"), (15, 75, "out"), (75, 80, "in_sync")),
    ]
    assert states(members, [lag(2, samples, acked, behind)], RANGE)[2] == [
        (0, 15, "in_sync"),
        (15, 30, "disconnected"),
        (30, 40, "catching_up"),
        (40, 50, "down"),
        (50, 60, "out"),
        (60, 75, "catching_up"),
        (75, 80, "in_sync"),
    ]


def test_a_span_outside_of_the_series_is_out_without_a_reason() -> None:
    members = [member(1, (-50, 200, "master")), member(2, (-50, 200, "out"))]
    found = states(members, [lag(2, [0] * 8, [1] * 8, [1] * 8)], RANGE)[2]
    assert found == [(-50, 0, "out"), (0, 80, "down"), (80, 200, "out")]
    assert states(members, [], RANGE)[2] == [(-50, 200, "out")]


def test_removed_is_not_unknown() -> None:
    """Nobody is known from 40 to 50; replica 2 left at 20 and came back at 60."""
    members = [
        member(1, (0, 40, "master"), (50, 80, "master")),
        member(2, (0, 20, "in_sync"), (60, 70, "in_sync")),
        member(3, (30, 40, "in_sync"), (50, 80, "in_sync")),
    ]
    found = states(members, [], RANGE)
    assert found[2] == [
        (0, 20, "in_sync"), (20, 40, "removed"), (50, 60, "removed"), (60, 70, "in_sync"),
        (70, 80, "removed"),
    ]  # fmt: skip
    assert found[3] == [(30, 40, "in_sync"), (50, 80, "in_sync")], "before it joined it was nothing"


@pytest.mark.parametrize(
    ("broker", "at", "wanted"),
    [(1, 0, True), (1, 50, False), (2, 50, True), (2, 0, False), (3, 0, False), (3, 60, True), (9, 0, True)],
)
def test_no_lag_of_a_master_or_of_a_removed_replica(broker: int, at: int, wanted: bool) -> None:
    members = [
        member(1, (0, 40, "master"), (40, 80, "out")),
        member(2, (0, 40, "in_sync"), (40, 80, "master")),
        member(3, (0, 40, "in_sync")),
    ]
    found = run(
        f"isNotReplica(memberStates(members, [], range), {broker}, {at}, {at + 10})",
        members=members,
        range=RANGE,
    )
    assert found is wanted
    assert run("isNotReplica([], 1, 0, 10)") is False, "without the controllers' events nothing is hidden"
