"""A short slice of `keelmq chaos`, as a user runs it. The long one: make chaos."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.lab.chaos.checkers import CHECKERS, recoveries, sort
from cli.lab.chaos.history import Commit, Fault, Log, Role, View, read_history
from cli.lab.chaos.net import missing
from tests.cluster.test_demo import left_in, processes_below

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

ROOT = Path(__file__).resolve().parent.parent.parent
NETWORKED = ("kill,stop,partition", 138_407)
WITHOUT = ("kill,stop", 1169)
"""Seeds whose first faults are the worst ones: the master killed, paused, cut off from all, and from the
controllers only, for longer than its heartbeats may fail to come; and a slave from the controllers."""
FAULTS = 6
VERDICT = re.compile(r"CHAOS seed=(\d+) faults=(\d+) sent=(\d+) acked=(\d+) read=(\d+) .*")


def chaos(tmp_path: Path, *args: str, timeout_s: float = 120) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "cli.keelmq", "chaos", "--plain", *args],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--min-in-sync", "1"),
        pytest.param(("--min-in-sync", "2"), marks=pytest.mark.long),
        pytest.param(("--secure",), marks=pytest.mark.long),
    ],
)
def test_a_few_faults_lose_nothing_and_leave_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    only, seed = NETWORKED if missing() is None else WITHOUT
    done = chaos(
        tmp_path,
        *("--only", only, "--seed", str(seed), "--faults", str(FAULTS), *options),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    found = VERDICT.fullmatch(last)
    assert found, done.stdout
    _, faults, sent, acked, read = map(int, found.groups())
    assert faults == FAULTS and sent >= acked > 1_000 and read > acked
    assert all(f" {name}=0 " in last for name in CHECKERS), last
    assert processes_below(tmp_path) == []
    check_what_it_left(tmp_path, last)


@pytest.mark.timeout(300)
def test_grpc_clients_get_every_message_through_proxies_that_are_killed(tmp_path: Path) -> None:
    """All proxies, the master, and one proxy. A message that was on its way to the push consumer comes again
    when its invisibility ends."""
    families = ("--only", "kill,proxy", "--seed", "317", "--faults", "3", "--burst-messages", "0")
    done = chaos(tmp_path, "--grpc", *families, timeout_s=280)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert VERDICT.fullmatch(last) and all(f" {name}=0 " in last for name in CHECKERS), done.stdout
    assert "the gRPC consumers have acknowledged" in done.stdout
    assert processes_below(tmp_path) == []
    (directory,) = left_in(tmp_path)
    world = sort(read_history(directory / "history.jsonl"))
    assert [each.kinds for each in recoveries(world)] == [
        ("kill-proxies",),
        ("kill-master",),
        ("kill-proxy",),
    ]
    assert len(world.subscribed) == 2
    assert any(send.by.startswith("grpc-producer") for send in world.acked)


def test_sigterm_ends_everything_and_keeps_what_was_seen(tmp_path: Path) -> None:
    only = "kill,disk" if missing() is None else "kill"
    process = subprocess.Popen(
        [sys.executable, "-m", "cli.keelmq", "chaos", "--plain", "--only", only],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            if "fault 1:" in line:
                break
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in errors, errors
    assert processes_below(tmp_path) == []
    (directory,) = left_in(tmp_path)
    assert f"data stays in {directory}" in errors
    assert sort(read_history(directory / "history.jsonl")).faults
    assert list(directory.glob("broker-0/commitlog/*")), "disks in memory are gone: they were not copied"


def check_what_it_left(tmp_path: Path, verdict: str) -> None:
    """History and telemetry; the history has everything, and says the same once more."""
    (directory,) = left_in(tmp_path)
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert all("telemetry" in path.parts or path.name == "history.jsonl" for path in files), files
    entries = read_history(directory / "history.jsonl")
    world = sort(entries)
    assert len(recoveries(world)) == FAULTS
    assert len({role.broker_id for role in world.roles}) > 1 and len(world.logs) == 3 and world.events
    assert {type(entry) for entry in entries} >= {Commit, Fault, Log, Role, View}
    again = subprocess.run(
        [sys.executable, "-m", "cli.keelmq", "chaos", "--check", str(directory / "history.jsonl")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0 and again.stdout.splitlines()[-1] == verdict
