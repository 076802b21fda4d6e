"""keelmq upgrade as a run: what it does, waits for, and says when something is not right."""

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.command_line import Refused
from cli.keelmq import app
from cli.rebalance.core.plan import Move
from cli.rebalance.moves import Made, MoveFailed, Mover
from cli.upgrade import lease, roll
from cli.upgrade.command import NOT_INCLUDED
from cli.upgrade.core.view import View, view_of
from cli.upgrade.survey import NoAnswer, Survey
from keelmq.client.admin import AdminError
from keelmq.client.admin.controllers import ControllerAdmin
from keelmq.client.admin.name_servers import NameServerAdmin
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.controller import ControllerIdRequest, ControllerMetadata
from tests.support.admin_parts import DEAD
from tests.unit.cli.upgrade.test_steps import NEW, facts, put, status


class World:
    """A cluster of values. A restart is a file with the server's address as its name: the server of an
    address is up again, with the new version, at the second look afterwards. looks: what happens at a
    look."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.version = directory, NEW
        self.found = status()
        self.looks: list[Callable[[], None]] = []
        self.restarted: list[str] = []
        self.moves: list[str] = []
        self.refusals: list[AdminError] = []
        self.move_error: MoveFailed | None = None
        self.kv: dict[str, str] = {}

    @property
    def command(self) -> str:
        return f"touch {self.directory}/{{address}}"

    async def look(self, survey: Survey) -> View:
        if self.looks:
            self.looks.pop(0)()
        survey.found = self.found
        for path in sorted(self.directory.iterdir()):
            if path.name not in self.restarted:
                self.restarted.append(path.name)
                self._set_version(path.name, None)
                break
            self._set_version(path.name, self.version)
        return view_of(self.found, facts(self.found))

    def _set_version(self, address: str, version: str | None) -> None:
        """version None: it is down."""
        pair = {address, address.replace("9876", "9878")}
        for server in self.found.name_servers:
            if server.address in pair:
                put(server, problem="" if version else "refused", keelmq_version=version or "")
        for controller in self.found.controllers:
            if controller.address in pair and controller.role != "leader":
                put(controller, role="follower" if version else "silent", keelmq_version=version or "")
        for group in self.found.groups:
            for replica in group.replicas:
                if replica.address == address:
                    role = "master" if group.master_id == replica.broker_id else "slave"
                    put(replica, role=role if version else "silent", keelmq_version=version or "")

    async def transfer(self, _admin: ControllerAdmin, _at: str, _what: object, request: Any) -> Any:
        assert isinstance(request, ControllerIdRequest)
        if self.refusals:
            raise self.refusals.pop(0)
        for each in self.found.controllers:
            put(each, role="leader" if each.member == request.controller_id else "follower")
        self.moves.append(request.controller_id)
        return ControllerMetadata(), ""

    def never_back(self, address: str) -> None:
        """The server is down once it was restarted."""
        if (path := self.directory / address).exists():
            path.unlink()
            self._set_version(address, None)

    async def get(self, _admin: NameServerAdmin, address: str, *_key: str) -> str | None:
        return self.kv.get(address)

    async def put(
        self, _admin: NameServerAdmin, address: str, _namespace: str, _key: str, value: str
    ) -> None:
        self.kv[address] = value

    async def delete(self, _admin: NameServerAdmin, address: str, *_key: str) -> None:
        del self.kv[address]

    async def make(self, _mover: Mover, move: Move) -> Made:
        if self.move_error is not None:
            raise self.move_error
        group = self.found.groups[0]
        addresses = {each.broker_id: each.address for each in group.replicas}
        put(group, master_id=move.to_id, master_address=addresses[move.to_id])
        for each in group.replicas:
            put(each, role="master" if each.broker_id == move.to_id else "slave")
        self.moves.append(f"{move.group} {move.from_id} -> {move.to_id}")
        return Made(move, 40, is_planned=True)

    def run(self, *flags: str) -> Result:
        args = ["upgrade", "-n", "h0:9876", "--to", NEW, "--timeout", "1", *flags]
        result = CliRunner().invoke(app, args)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


def _of(world: World, name: str) -> Callable[..., Any]:
    return lambda admin, *given: getattr(world, name)(admin, *given)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "restarts").mkdir()
    world = World(tmp_path / "restarts")
    monkeypatch.setattr(Survey, "look", lambda survey: world.look(survey))
    monkeypatch.setattr(ControllerAdmin, "change_controllers", lambda *given: world.transfer(*given))
    monkeypatch.setattr(Mover, "make", lambda mover, move: world.make(mover, move))
    for name in ("get", "put", "delete"):
        monkeypatch.setattr(NameServerAdmin, f"{name}_kv_config", _of(world, name))
    monkeypatch.setattr(roll, "POLL_S", 0.001)
    for name, value in {"POLL_S": 0.001, "SETTLE_S": 0.001, "STALE_S": 0.1}.items():
        monkeypatch.setattr(lease, name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return world


def lines(result: Result) -> list[str]:
    """Without durations, and without the first line of every run that has steps."""
    first, *rest = [re.sub(r"\d+\.\d s", "T", each) for each in result.stdout.splitlines()]
    assert first == NOT_INCLUDED
    return rest


def test_it_restarts_one_after_the_other(world: World) -> None:
    result = world.run("--restart", world.command)
    assert result.exit_code == 0, result.output
    assert lines(result) == [
        "[1/8] name server with controller n1 at h1:9876: restarted in T, whole after T",
        "[2/8] name server with controller n2 at h2:9876: restarted in T, whole after T",
        "[3/8] controller n0 made n1 the leader in T",
        "[4/8] name server with controller n0 at h0:9876: restarted in T, whole after T",
        "[5/8] broker-a 2 at a2:10911: restarted in T, in sync after T",
        "[6/8] broker-a 3 at a3:10911: restarted in T, in sync after T",
        "[7/8] broker-a: broker 1 to broker 2 handed over in T",
        "[8/8] broker-a 1 at a1:10911: restarted in T, in sync after T",
        "done: every server has 0.2.0",
    ]
    again = world.run("--restart", world.command)
    assert again.exit_code == 0 and again.stdout == "nothing to do: every server has 0.2.0\n"
    assert len(world.restarted) == 6 and world.moves == ["n1", "broker-a 1 -> 2"]


def test_the_plan_shows_the_same_and_changes_nothing(world: World) -> None:
    result = world.run("--plan")
    assert result.exit_code == 0 and world.restarted == world.moves == []
    assert lines(result)[2:5] == [
        "[3/8] make controller n1 the leader instead of n0",
        "[4/8] restart name server with controller n0 at h0:9876: 0.1.0 to 0.2.0",
        "[5/8] restart broker-a 2 at a2:10911: 0.1.0 to 0.2.0",
    ]
    shown = [json.loads(each) for each in world.run("--plan", "--json").stdout.splitlines()]
    made = [json.loads(each) for each in world.run("--restart", world.command, "--json").stdout.splitlines()]
    assert made[0] == shown[0] and made[0]["event"] == "notIncluded"
    assert [each["event"] for each in made[1:5]] == ["restarted", "restarted", "transferred", "restarted"]
    assert made[-1] == {"event": "done", "steps": 8, "version": NEW}
    for key in ("step", "of", "kind", "name", "address", "from", "fromId", "toBrokerId"):
        assert [each.get(key) for each in shown] == [each.get(key) for each in made[:-1]], key


def test_a_plan_of_a_cluster_that_is_not_whole_says_so(world: World) -> None:
    put(world.found.groups[0].replicas[1], is_in_sync=False)
    result = world.run("--plan")
    text = "no step begins before this is right: broker-a 2 at a2:10911: it is not in the SyncStateSet"
    assert result.exit_code == 0 and lines(result)[0] == text
    assert lines(result)[-1].startswith("[8/8] restart broker-a 1")


def test_a_cluster_that_is_not_whole_is_waited_for(world: World) -> None:
    broken = world.found.groups[0].replicas[1]
    put(broken, is_in_sync=False)
    world.looks = [lambda: None] * 5 + [lambda: put(broken, is_in_sync=True)]
    result = world.run("--restart", world.command)
    assert result.exit_code == 0 and lines(result)[0].startswith("waiting: broker-a 2 at")
    assert sum(each.startswith("waiting") for each in lines(result)) == 1


def test_a_step_ends_when_the_cluster_is_whole_again(world: World) -> None:
    """The server has the target version before it is in sync."""
    slave, behind = world.found.groups[0].replicas[1], [True] * 5

    def copies() -> None:
        is_back = slave.keelmq_version == NEW or slave.role == "silent"
        put(slave, is_in_sync=not is_back or not behind or not behind.pop())

    world.looks = [copies] * 60
    result = world.run("--restart", world.command)
    assert result.exit_code == 0, result.output
    assert [each for each in lines(result) if "waiting" in each] == []


def test_nothing_is_touched_in_a_cluster_that_stays_broken(world: World) -> None:
    put(world.found.groups[0].replicas[1], is_in_sync=False)
    result = world.run("--restart", world.command)
    assert result.exit_code == 1 and world.restarted == world.moves == []
    assert result.stderr == (
        "keelmq upgrade: stopped: not within 1 s: broker-a 2 at a2:10911: it is not in the SyncStateSet; "
        "next: keelmq status shows what is wrong, and the next command; the same command goes on where this "
        "one stopped\n"
    )


def test_a_gap_is_refused_and_named(world: World) -> None:
    put(world.found.groups[0], min_in_sync=3)
    for flags in (("--plan",), ("--restart", world.command)):
        result = world.run(*flags)
        assert result.exit_code == 1 and world.restarted == []
        assert "broker-a has 3 replicas and minInSyncReplicas=3: sends are refused" in result.stderr
        assert "next: accept it with --allow-gap, or add servers first" in result.stderr
    assert world.run("--restart", world.command, "--allow-gap").exit_code == 0


def test_a_command_that_fails_ends_it(world: World) -> None:
    result = world.run("--restart", "ls no-such-file-{address}")
    assert result.exit_code == 4 and len(result.stderr.splitlines()) == 1
    assert (
        "the command for name server with controller n1 at h1:9876 failed: ls no-such-file-h1:9876: exit code"
        in (result.stderr)
    )
    assert "No such file" in result.stderr and "; the same command goes on where this one" in result.stderr


def test_a_server_that_was_not_restarted(world: World) -> None:
    result = world.run("--restart", "echo {address}")
    assert result.exit_code == 4 and world.restarted == []
    text = "it still reports 0.1.0, so it was not restarted, or 0.2.0 is not installed there; the output of"
    assert f"controller n1 at h1:9876 is not right within 1 s: {text} the command is in " in result.stderr
    assert "next: see which unit the command restarts, and what it installs; the same" in result.stderr


def test_an_installation_comes_before_the_cluster_is_looked_at_again(world: World, tmp_path: Path) -> None:
    """While it is installed, another replica falls behind: the restart waits for it."""
    done, behind = tmp_path / "installed", world.found.groups[0].replicas[2]
    done.mkdir()
    waits = [False] * 8

    def falls_behind() -> None:
        if (done / "a2:10911").exists() and waits:
            waits.pop()
            assert "a2:10911" not in world.restarted
            put(behind, is_in_sync=not waits)

    world.looks = [falls_behind] * 200
    result = world.run("--install", f"touch {done}/{{address}}", "--restart", world.command)
    assert result.exit_code == 0, result.output
    assert "waiting: broker-a 3 at a3:10911: it is not in the SyncStateSet" in lines(result)
    assert sorted(each.name for each in done.iterdir()) == sorted(world.restarted)
    assert len(world.restarted) == 6
    result = world.run("--to", "0.3.0", "--install", "ls no-such-{address}", "--restart", world.command)
    assert result.exit_code == 1 and "h0:9876 failed: ls no-such-h0:9876: exit code" in result.stderr


def test_a_server_that_does_not_come_back(world: World) -> None:
    """Its next start is the operator's: a run does not begin a step while it is down."""
    world.version = ""
    world.looks = [lambda: world.never_back("h1:9876")] * 10_000
    result = world.run("--restart", world.command, "--timeout", "1")
    assert result.exit_code == 4 and result.stderr.count("\n") == 1
    assert (
        "h1:9876 was restarted, and is not right within 1 s: h1:9876: name server: refused" in result.stderr
    )
    assert "next: start it (journalctl -u keelmq-namesrv says why it ended); the same" in result.stderr
    assert "output of the command is in " in result.stderr


def test_a_server_with_another_version(world: World) -> None:
    world.version = "0.3.0"
    result = world.run("--restart", world.command)
    assert result.exit_code == 4 and world.restarted == ["h1:9876"]
    assert "h1:9876 reports 0.3.0 after its restart, and not 0.2.0; next: see which version is installed" in (
        result.stderr
    )


def test_without_a_command_a_person_is_told_what_to_restart(world: World) -> None:
    """The person takes longer than --timeout, and is told once."""

    def restart() -> None:
        (world.directory / "a1:10911").touch()

    for server in (*world.found.name_servers, *world.found.controllers):
        put(server, keelmq_version=NEW)
    for replica in world.found.groups[0].replicas[1:]:
        put(replica, keelmq_version=NEW)
    put(world.found.groups[0], master_id=2, master_address="a2:10911")
    put(world.found.groups[0].replicas[0], role="slave")
    put(world.found.groups[0].replicas[1], role="master")
    world.looks = [lambda: None] * 2_000 + [restart]
    result = world.run()
    assert result.exit_code == 0, result.output
    assert lines(result) == [
        "[1/1] restart broker-a 1 at a1:10911 with 0.2.0 now: keelmq-broker",
        "[1/1] broker-a 1 at a1:10911: restarted in T, in sync after T",
        "done: every server has 0.2.0",
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MoveFailed("no heartbeat"), "broker-a: broker 1 to broker 2 not handed over: no heartbeat"),
        (MoveFailed("not shown", is_made=True), "broker-a: broker 1 to broker 2 handed over, but not shown"),
    ],
)
def test_a_hand_over_that_fails_ends_it(world: World, error: MoveFailed, text: str) -> None:
    world.move_error = error
    result = world.run("--restart", world.command)
    assert result.exit_code == 4 and text in result.stderr
    assert "a1:10911" not in world.restarted


def test_a_refused_leader_is_asked_for_again(world: World) -> None:
    code = ResponseCode.CONTROLLER_INVALID_REQUEST
    world.refusals = [AdminError("transferLeader", "h0:9878", "n1 does not have the whole log", code)] * 3
    result = world.run("--restart", world.command)
    assert result.exit_code == 0 and world.moves[0] == "n1"


def test_a_leader_that_is_refused_for_good(world: World) -> None:
    code = ResponseCode.CONTROLLER_INVALID_REQUEST
    world.refusals = [AdminError("transferLeader", "h0:9878", "n1 does not have it", code)] * 10_000
    result = world.run("--restart", world.command)
    assert (
        result.exit_code == 4
        and "controller n0: CONTROLLER_INVALID_REQUEST: n1 does not have" in result.stderr
    )
    world.refusals = [AdminError("transferLeader", "h0:9878", "not you", ResponseCode.NO_PERMISSION)]
    result = world.run("--restart", world.command)
    assert result.exit_code == 1 + 3 and "next: give the credentials of an administrator" in result.stderr


def test_servers_that_fall_silent_are_waited_for(world: World) -> None:
    def silent() -> None:
        raise NoAnswer("h0:9876: connection refused")

    world.looks = [lambda: None, silent, silent, lambda: None, silent]
    assert world.run("--restart", world.command).exit_code == 0
    world.looks = [silent]
    result = world.run("--restart", world.command)
    assert result.exit_code == 3 and "check the addresses" in result.stderr


def test_a_refusal_ends_it(world: World) -> None:
    def refuse() -> None:
        raise Refused("h0:9876: NO_PERMISSION")

    world.looks = [refuse]
    assert world.run("--restart", world.command).exit_code == 1
    world.looks = [lambda: None, lambda: None, refuse]
    result = world.run("--restart", world.command)
    assert result.exit_code == 4 and "NO_PERMISSION" in result.stderr


def test_ctrl_c_ends_it_and_the_next_run_goes_on(world: World) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    world.looks = [lambda: None] * 3 + [interrupt]
    result = world.run("--restart", world.command)
    assert result.exit_code == 130 and "a restart that has begun goes on" in result.stderr
    assert world.run("--restart", world.command).exit_code == 0
    assert len(set(world.restarted)) == len(world.restarted) == 6


def values(world: World, renewals: int) -> dict[str, str]:
    """What a run of alice has stored."""
    value = json.dumps({"holder": "alice at m1, process 7", "token": "alices", "renewals": renewals})
    return {each.address: value for each in world.found.name_servers}


def test_a_second_run_does_nothing_while_the_first_one_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = iter(range(10_000))

    async def get(_admin: NameServerAdmin, address: str, *_key: str) -> str | None:
        return values(world, next(beats))[address]

    monkeypatch.setattr(NameServerAdmin, "get_kv_config", get)
    result = world.run("--restart", world.command)
    assert result.exit_code == 1 and world.restarted == world.moves == []
    assert result.stderr == (
        "keelmq upgrade: stopped: another keelmq upgrade goes on, of alice at m1, process 7; next: wait "
        "until it has ended; the same command goes on where this one stopped\n"
    )


def test_what_a_run_left_that_was_killed_is_taken_over(world: World) -> None:
    world.kv = values(world, 3) | {"h2:9876": "not ours"}
    result = world.run("--restart", world.command)
    assert result.exit_code == 0, result.output
    assert lines(result)[0].startswith("waiting: a keelmq upgrade of alice at m1, process 7 has begun")
    assert world.kv == {}, "the next run does not wait"


def test_a_run_that_another_one_overtakes_stops_before_its_next_step(world: World) -> None:
    world.looks = [lambda: None] * 5 + [lambda: world.kv.update(values(world, 0))]
    result = world.run("--restart", world.command)
    assert result.exit_code == 4 and "another keelmq upgrade goes on, of alice" in result.stderr
    assert 0 < len(world.restarted) < 6 and world.kv == values(world, 0)


def test_a_run_with_nothing_to_do_and_a_plan_store_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run("--restart", world.command)
    monkeypatch.delattr(NameServerAdmin, "put_kv_config")
    assert world.run("--restart", world.command).exit_code == 0
    assert world.run("--plan", "--to", "0.3.0").exit_code == 0


def test_a_user_who_may_not_store_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def put(_admin: NameServerAdmin, address: str, *_given: str) -> None:
        raise AdminError("putKVConfig", address, "not you", ResponseCode.NO_PERMISSION)

    monkeypatch.setattr(NameServerAdmin, "put_kv_config", put)
    result = world.run("--restart", world.command)
    assert result.exit_code == 1 and world.restarted == []
    assert "not you: an upgrade needs a user who may change the KV configuration" in result.stderr


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--to", "latest"), "'latest' is no version, such as 0.2.0"),
        (("--to", "0.2;x"), "is no version"),
        (("--install", "true"), "it needs --restart"),
        (("--restart", "ssh {hots}"), "{hots} is no placeholder"),
        (("--timeout", "0"), "should be greater than or equal to 1"),
    ],
)
def test_usage(world: World, flags: tuple[str, str], text: str) -> None:
    result = world.run(*flags)
    assert result.exit_code == 2 and text in " ".join(result.stderr.replace("│", " ").split())


def test_a_command_that_is_the_same_for_two_servers(world: World) -> None:
    result = world.run("--restart", "touch {version}")
    assert (
        result.exit_code == 1
        and "the command is the same for name server with controller n1" in result.stderr
    )


def test_an_odd_value_is_refused_before_the_first_step(world: World) -> None:
    put(world.found.groups[0], broker_name="a;reboot")
    result = world.run("--restart", "touch {name}-{address}")
    assert result.exit_code == 1 and world.restarted == []
    assert "{name} of a;reboot 2 at a2:10911 is 'a;reboot': it is not put into a command" in result.stderr


def test_logs_are_where_they_are_wanted(world: World, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = world.run("--restart", world.command, "--logs", str(tmp_path / "file" / "logs"))
    assert result.exit_code == 1 and "name one with --logs" in result.stderr and world.restarted == []
    assert world.run("--restart", world.command, "--logs", str(tmp_path / "logs")).exit_code == 0
    names = sorted(each.name for each in (tmp_path / "logs").iterdir())
    assert names[0] == "001-namesrv-h1-9876.log" and len(names) == 6
    assert world.run("--restart", world.command).exit_code == 0
    assert not list(tmp_path.glob("keelmq-upgrade-*")), "nothing was to be restarted"


def test_no_answer() -> None:
    result = CliRunner().invoke(app, ["upgrade", "-n", DEAD, "--plan"])
    assert result.exit_code == 3 and len(result.stderr.splitlines()) == 1
    assert f"{DEAD}: connection refused" in result.stderr
