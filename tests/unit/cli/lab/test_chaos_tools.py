"""What `keelmq chaos` breaks things with: the plan, the fault shim of a program, networks, disks."""

import itertools
import os
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker.config.broker_config import BrokerConfig
from broker.core.retention import OldFile, decide_retention
from cli.lab.ack_log import make_body
from cli.lab.chaos import net, run
from cli.lab.chaos.checkers import Recovery, diverged, sort
from cli.lab.chaos.fault_shim import FaultShim
from cli.lab.chaos.history import DAMAGED, AnyEntry, Stuck, make_number
from cli.lab.chaos.judge import drop_strays, put_gaps, telemetry_of
from cli.lab.chaos.nemesis import Nemesis, StuckError
from cli.lab.chaos.plan import FAMILIES, HOLD_FULL_MS, NETWORK_FAMILIES, SINGLE, kinds_of, make_plan
from cli.lab.chaos.run import ChaosOptions, possible, run_chaos, run_check
from cli.lab.chaos.stage import ChaosLauncher, Stage, log_begin, log_crc, long_turns_of
from cli.lab.chaos.traffic import Recorder, key_of, number_of
from cli.lab.cluster import Cluster, Program
from cli.lab.observer import Picture, Watcher
from keelmq.client import MessageExt
from keelmq.remoting.records import SendGap

ROOT = Path(__file__).resolve().parents[4]
ALL = kinds_of(FAMILIES)


# -- the plan ----------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_plan() -> None:
    assert make_plan(7, ALL, 50) == make_plan(7, ALL, 50)
    assert make_plan(7, ALL, 50)[:20] == make_plan(7, ALL, 20)
    assert make_plan(7, ALL, 50) != make_plan(8, ALL, 50)


def test_every_kind_comes_before_one_comes_again() -> None:
    steps = make_plan(3, ALL, 2 * len(ALL))
    firsts = [step.kinds[0] for step in steps]
    assert sorted(firsts[: len(ALL)]) == sorted(firsts[len(ALL) :]) == sorted(ALL)
    assert [step.number for step in steps] == list(range(1, 2 * len(ALL) + 1))


def test_sometimes_two_at_once_but_nothing_beside_all() -> None:
    steps = make_plan(3, ALL, 400)
    assert 40 < sum(len(step.kinds) == 2 for step in steps) < 120
    assert all(len(set(step.kinds)) == len(step.kinds) for step in steps)
    assert all(len(step.kinds) == 1 for step in steps if SINGLE & set(step.kinds))
    assert all(step.hold_ms >= HOLD_FULL_MS[0] for step in steps if "fill-master" in step.kinds)


def test_one_kind_alone_can_be_planned() -> None:
    assert {step.kinds for step in make_plan(1, ["kill-all"], 5)} == {("kill-all",)}


def test_an_unknown_family_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"no fault is called meteor; there are kill, stop"):
        kinds_of(["kill", "meteor"])
    assert run_chaos(ChaosOptions(families=("meteor",))) == 2
    assert "no fault is called meteor" in capsys.readouterr().err


def test_without_namespaces_the_rest_is_done_and_it_is_said_what_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "missing", lambda: "no ip on this machine")
    assert not NETWORK_FAMILIES & set(possible(ChaosOptions()))
    assert capsys.readouterr().out == "left out: partition, address, disk: no ip on this machine\n"
    assert possible(ChaosOptions(families=("kill", "stop"))) == ["kill", "stop"]
    assert capsys.readouterr().out == ""
    with pytest.raises(ValueError, match="disk: not possible here, no ip on this machine"):
        possible(ChaosOptions(families=("disk",)))


def test_a_file_that_is_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("hello\nworld\n")
    assert run_check(tmp_path / "x") == 2 and "line 1" in capsys.readouterr().err
    assert run_check(tmp_path / "none") == 2 and "No such file" in capsys.readouterr().err


# -- aim and patience --------------------------------------------------------------------------------------


class FakeStage:
    """Programs and a picture; its clock goes a second further at every look."""

    def __init__(self, *, master: str, leader: str) -> None:
        def programs(module: str) -> list[Program]:
            return [Program(f"{module}-{index}", module, Path(), {}, "") for index in range(3)]

        self.cluster = SimpleNamespace(
            brokers=programs("broker"), name_servers=programs("namesrv"), proxies=programs("proxy")
        )
        self.picture = Picture(master=master, controller_leader=leader)
        self.history: list[AnyEntry] = []
        seconds = itertools.count()
        self.recorder = Recorder(lambda: next(seconds) * 1_000_000, self.history.append)


def nemesis(stage: FakeStage) -> Nemesis:
    return Nemesis(cast(Stage, stage), lambda text: None)


def test_it_aims_at_roles_and_never_twice_at_one() -> None:
    aiming = nemesis(FakeStage(master="broker-1", leader="namesrv-2"))
    assert aiming.aim("master").name == "broker-1"
    assert aiming.aim("leader").name == "namesrv-2"
    assert {aiming.aim("slave").name, aiming.aim("master").name} == {"broker-0", "broker-2"}
    assert aiming.aim("controller").name in ("namesrv-0", "namesrv-1")


def test_without_a_master_any_broker_is_hit() -> None:
    aiming = nemesis(FakeStage(master="", leader=""))
    assert aiming.aim("master").module == "broker" and aiming.aim("leader").module == "namesrv"


async def test_what_does_not_come_back_is_told_to_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.lab.chaos.nemesis.POLL_S", 0)
    stage = FakeStage(master="", leader="")
    with pytest.raises(StuckError, match="the moon"):
        await nemesis(stage).until("the moon", lambda: False, 3)
    assert [entry.what for entry in stage.history if isinstance(entry, Stuck)] == ["the moon (3 s)"]


class Moving:
    """A broker that has another address whenever it is asked."""

    name, is_running = "broker-0", False

    def __init__(self) -> None:
        self._ports = itertools.count(10_911)

    @property
    def address(self) -> str:
        return f"10.77.0.2:{next(self._ports)}"


async def test_a_broker_that_moves_meanwhile_does_not_end_the_watching() -> None:
    """Seen at seed 303: the picture stood still, and a healthy cluster was called stuck."""
    cluster = SimpleNamespace(brokers=[Moving()], name_servers=[], proxies=[])
    watcher = Watcher(cast(Cluster, cluster))
    try:
        picture = await watcher.look()
    finally:
        await watcher.close()
    assert [replica.role for replica in picture.replicas] == ["down"]


# -- messages ----------------------------------------------------------------------------------------------


def test_a_message_is_ours_only_with_body_and_key() -> None:
    def stored(body: bytes, keys: str) -> MessageExt:
        return MessageExt("t", body, {"KEYS": keys}, 0, 0, 0, 0, 0, 0, "", 0, "", 0, 0)

    number = make_number(2_001, 5)
    body = make_body(number)
    assert number_of(stored(body, key_of(number))) == number
    assert number_of(stored(body, "sender-1")) == DAMAGED
    assert number_of(stored(body[:-1] + b"?", key_of(number))) == DAMAGED


# -- fault shim --------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time
print(sys.argv[1:], flush=True)
for _ in sys.stdin:
    wall, begun = time.time_ns() - time.clock_gettime_ns(time.CLOCK_REALTIME), time.monotonic()
    both = round(wall / 1e9), round(time.time() - time.clock_gettime(time.CLOCK_REALTIME))
    os.fdatasync(os.open("file", os.O_RDWR | os.O_CREAT))
    print(*both, int(time.monotonic() - begun >= 0.3), flush=True)
"""


def test_clock_and_disk_change_while_the_program_runs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    conditions = FaultShim(tmp_path / "weather")
    command = [sys.executable, "-m", "cli.lab.chaos.fault_shim", str(conditions.path), "program", "-c", "x"]
    path = os.pathsep.join([str(ROOT), str(tmp_path)])
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def ask() -> str:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        assert process.stdout.readline() == "['-c', 'x']\n"
        assert ask() == "0 0 0"
        conditions.set_clock(-3_600_000)
        assert ask() == "-3600 -3600 0"
        conditions.set_flush(300)
        assert ask() == "-3600 -3600 1"
        conditions.set_clock(0)
        conditions.set_flush(0)
        assert ask() == "0 0 0"
        process.stdin.close()


# -- logs on disks -----------------------------------------------------------------------------------------


def test_the_crc_of_a_log_in_files(tmp_path: Path) -> None:
    log = os.urandom(250)
    for start in (0, 100, 200):
        (tmp_path / f"{start:020d}").write_bytes(log[start : start + 100].ljust(100, b"\0"))
    (tmp_path / "other").write_bytes(b"no file of the log")
    assert log_begin(tmp_path) == 0 and log_begin(tmp_path / "none") == 0
    assert log_crc(tmp_path, 0, 250) == zlib.crc32(log)
    assert log_crc(tmp_path, 0, 130) == zlib.crc32(log[:130])
    assert log_crc(tmp_path, 100, 250) == zlib.crc32(log[100:])
    assert log_crc(tmp_path, 0, 301) is None
    (tmp_path / f"{100:020d}").unlink()
    assert log_crc(tmp_path, 0, 250) is None
    (tmp_path / f"{0:020d}").unlink()
    assert log_begin(tmp_path) == 200
    assert log_crc(tmp_path, 0, 250) is None
    assert log_crc(tmp_path, 200, 250) == zlib.crc32(log[200:])
    assert log_crc(tmp_path / "none", 0, 1) is None


def test_a_replica_whose_first_files_are_gone_is_told_from_one_without_the_last(tmp_path: Path) -> None:
    """Seen at seed 424944: a full disk had made a broker delete its oldest files; all else was well."""
    names = ["broker-0", "broker-1", "broker-2"]
    for name, starts in zip(names, [(0, 100), (200,), (0, 100, 200)], strict=True):
        (tmp_path / name / "commitlog").mkdir(parents=True)
        for start in starts:
            (tmp_path / name / "commitlog" / f"{start:020d}").write_bytes(b"x" * 100)
    brokers = [
        Program(each, "broker", Path(), {"storePathRootDir": str(tmp_path / each)}, "") for each in names
    ]
    cluster = cast(Cluster, SimpleNamespace(brokers=brokers))
    stage = Stage(cluster, cast(ChaosLauncher, None), Recorder(lambda: 0, lambda entry: None))
    crc = zlib.crc32(b"x" * 50)
    logs = list(stage.logs(250))
    assert [(log.begin, log.crc) for log in logs] == [(0, None), (200, crc), (0, crc)]
    found = list(diverged(sort(logs)))
    assert len(found) == 2
    assert "broker-0 has a hole or ends" in found[0] and "broker-1 begins at 200" in found[1]


def test_a_full_disk_makes_no_broker_of_a_run_delete_messages() -> None:
    """They are read back at the end: what retention deleted would be `lost`, `holes` and `diverged`."""
    settings = run.broker_settings(ChaosOptions())
    rules = BrokerConfig.model_validate(settings).retention
    files = [OldFile(end_offset=run.LOG_FILE_BYTES, written_ms=0)]
    a_day_ms = 86_400_000  # the furthest that the nemesis moves a clock
    for hour in range(24):
        verdict = decide_retention(rules, files, used_ratio=1.0, hour=hour, now_ms=a_day_ms, was_full=True)
        assert verdict.files == 0 and verdict.is_full


# -- what is left ------------------------------------------------------------------------------------------


def test_telemetry_of_clocks_that_had_jumped_goes(tmp_path: Path) -> None:
    hours = [
        tmp_path / "broker-0" / "telemetry" / "ha_sample" / day / hour
        for day, hour in (
            ("dt=2026-03-01", "hour=11"),
            ("dt=2026-03-01", "hour=12"),
            ("dt=2026-03-01", "hour=13"),
            ("dt=2026-03-01", "hour=14"),
            ("dt=2026-03-02", "hour=12"),
        )
    ]
    for hour in hours:
        hour.mkdir(parents=True)
    noon_ms = 1_772_366_400_000  # 2026-03-01 12:00 UTC
    drop_strays(tmp_path, from_ms=noon_ms + 5, to_ms=noon_ms + 3_600_000)
    assert [hour.exists() for hour in hours] == [False, True, True, False, False]


def test_the_report_is_told_how_long_producers_waited(tmp_path: Path) -> None:
    def recovery(number: int, target: str, ms: int | None) -> Recovery:
        return Recovery(number, ("kill-master",), (target,), "broker-1", 2_000_000, 0, ms, 0)

    found = [recovery(1, "broker-1", 130), recovery(2, "broker-2", 9), recovery(3, "broker-1", None)]
    put_gaps(tmp_path, found, {"broker-1": 4}, began_wall_ms=1_000)
    (gap,) = telemetry_of(tmp_path)
    assert isinstance(gap, SendGap)
    assert (gap.broker_id, gap.started_ts, gap.ts, gap.gap_ms) == (4, 3_000, 3_130, 130)


# -- networks ----------------------------------------------------------------------------------------------

NETWORK = """
    import socket, subprocess, sys, tempfile
    from pathlib import Path
    from cli.lab.chaos.net import Net

    SERVER = (
        "import socket\\ns = socket.create_server(('0.0.0.0', 5000))\\nprint('up', flush=True)\\n"
        "while True: s.accept()[0].close()"
    )
    directory = Path(sys.argv[1])
    net = Net(directory)
    net.enter()
    net.add("a"), net.add("b")
    server = subprocess.Popen([*net.command("a"), sys.executable, "-c", SERVER], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"up\\n"

    def reached(timeout):
        try:
            socket.create_connection(("a", 5000), timeout=timeout).close()
        except TimeoutError:
            return False
        return True

    def on(what):
        assert reached(10), what

    def off(what):
        assert not reached(0.2), what

    on("at first")
    to_a, from_a = [("client", "a")], [("a", "client"), ("a", "b")]
    net.cut(to_a); off("what we send is cut")
    net.cut(to_a); net.heal(to_a); off("one of two cuts stays")
    net.heal(to_a); on("both are healed")
    net.cut(from_a); off("what it sends is cut")
    net.heal(from_a); on("healed")
    net.unplug("a"); off("no cable")
    net.plug("a"); on("a cable")
    old = net.address("a")
    assert net.move("a") != old; on("another address")
    disk = directory / "disk"
    net.mount_disk(disk, 1 << 20)
    (disk / "telemetry").mkdir()
    (disk / "telemetry" / "x").write_text("kept")
    net.fill_disk(disk)
    try:
        (disk / "more").write_bytes(bytes(4_096))
    except OSError as error:
        print(error.strerror)
    net.free_disk(disk, 1 << 20)
    (disk / "more").write_bytes(bytes(4_096))
    net.give_back("telemetry")
    server.kill()
    print("end")
"""


def test_networks_and_disks_of_our_own_leave_nothing(tmp_path: Path) -> None:
    if (reason := net.missing()) is not None:
        pytest.skip(reason)
    before = visible()
    command = [sys.executable, "-c", textwrap.dedent(NETWORK), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["No space left on device", "end"]
    assert [path.name for path in (tmp_path / "disk").rglob("*")] == ["telemetry", "x"]
    assert visible() == before


def visible() -> tuple[str, str]:
    """Names of network namespaces and mounted disks outside."""
    mounts = Path("/proc/self/mounts").read_text()
    netns = Path("/run/netns")
    names = sorted(path.name for path in netns.iterdir()) if netns.is_dir() else []
    return str([name for name in names if not name.startswith("keelmq-pods")]), mounts


def test_a_program_whose_callback_is_long_says_so_in_its_log(tmp_path: Path) -> None:
    """A real process, started as those of a run, whose log is read at the end."""
    (tmp_path / "busy.py").write_text(BUSY)

    class BusyLauncher(ChaosLauncher):
        def command(self, program: Program) -> list[str]:
            return [sys.executable, str(tmp_path / "busy.py")]

    cluster = Cluster(tmp_path / "c", name_servers=0, brokers=1, launcher=BusyLauncher(tmp_path, None))
    (program,) = cluster.programs
    with cluster:
        cluster.start()
        assert program.process is not None
        assert program.process.wait(30) == 0, program.log_path.read_text()
    (turn,) = long_turns_of("busy", program.log_path)
    assert turn.program == "busy" and turn.cpu_ms >= 150 and turn.at.startswith("burn (")
    quiet = tmp_path / "quiet.log"
    quiet.write_text("2026-11-29 INFO broker: a snapshot of 81 ms\n")
    assert not list(long_turns_of("quiet", quiet))


BUSY = """
import asyncio, time
from keelmq.runtime import loop_watch, program

def burn():
    end = time.thread_time() + 0.16
    while time.thread_time() < end:
        sum(range(100))

async def main():
    program.say_ready("busy")
    watch = loop_watch.running()
    while not any(watch.lateness.counts):
        await asyncio.sleep(0)
    burn()
    seen = sum(watch.lateness.counts)
    while sum(watch.lateness.counts) < seen + 2:
        await asyncio.sleep(0)

program.log_to_stderr("INFO")
with program.runner() as runner:
    runner.run(main())
"""
