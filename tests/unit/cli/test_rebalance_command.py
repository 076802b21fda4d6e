"""keelmq rebalance-masters against servers that answer from a script: what it shows, and where it stops."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from typer.testing import CliRunner, Result

from cli.keelmq import app
from cli.rebalance import moves
from keelmq.client.admin import AdminError
from keelmq.client.admin.controllers import ControllerAdmin
from keelmq.remoting.operations.controller import BrokerReplicasInfo
from tests.support.admin_parts import DEAD, InThread
from tests.support.fake_container import inner
from tests.support.fake_groups import FakeGroup, FakeGroups


class World(InThread):
    """All groups have their masters on the first of two hosts. The brokers' addresses lead to one server: the
    names of loopback addresses are their hosts."""

    def __init__(self, names: str = "abc", plain: bool = False) -> None:
        self.names, self.with_plain = names, plain

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.server = FakeGroups({})
        async with self.server:
            host, _, port = self.server.address.partition(":")
            replicas = {1: f"{host}:{port}", 2: f"localhost:{port}"}
            self.server.groups |= {
                f"broker-{name}": FakeGroup(dict(replicas), in_sync={1, 2}) for name in self.names
            }
            if self.with_plain:
                self.server.plain["broker-z"] = f"localhost:{port}"
            yield

    def group(self, name: str) -> FakeGroup:
        return self.server.groups[f"broker-{name}"]

    def run(self, *flags: str, asked: str | None = None) -> Result:
        args = ["rebalance-masters", "-n", self.server.address, *flags]
        result = CliRunner().invoke(app, args, input=asked)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result


@contextmanager
def world_of(names: str, *, plain: bool = False) -> Iterator[World]:
    with World(names, plain).running() as world:
        yield world


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "POLL_S", 0.01)


@pytest.fixture
def world() -> Iterator[World]:
    with world_of("abcd") as world:
        yield world


def test_a_dry_run_shows_the_plan_and_changes_nothing(world: World) -> None:
    result = world.run("--dry-run")
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.stdout.splitlines() if line]
    assert rows[0] == ["#Host", "#Masters", "#After"]
    assert rows[1:3] == [["127.0.0.1", "4", "2"], ["localhost", "0", "2"]]
    assert result.stdout.endswith("2 masters to move\n") and world.server.elected == []


def test_it_moves_and_then_there_is_nothing_to_move(world: World) -> None:
    result = world.run("--yes")
    assert result.exit_code == 0, result.output
    assert len(world.server.elected) == 2 and "done: 2 masters moved" in result.stdout
    assert "nothing to move" in world.run("--yes").stdout and len(world.server.elected) == 2


def test_it_does_not_move_without_a_yes(world: World) -> None:
    assert world.run().exit_code == 2  # nobody to ask: standard input is no terminal
    assert world.run("--json").exit_code == 2
    assert world.server.elected == []


def test_no_is_no(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.rebalance.command.can_ask", lambda: True)
    result = world.run(asked="n\n")
    assert result.exit_code == 1 and "nothing was changed" in result.stderr and world.server.elected == []
    assert world.run(asked="y\n").exit_code == 0 and len(world.server.elected) == 2


def test_the_first_failure_ends_it(world: World) -> None:
    first, second = (name for name, _ in planned(world))
    world.server.groups[second].on_election = "refuse"
    result = world.run("--yes", "--json")
    assert result.exit_code == 4
    assert f"Done: {first}; left: none" in result.stderr
    assert f"{second} (127.0.0.1 -> localhost) not moved:" in result.stderr
    assert "no heartbeat of broker 2" in result.stderr
    value = json.loads(result.stdout)
    assert [each["state"] for each in value["moves"]] == ["done", "failed"] and value["error"]


def planned(world: World) -> list[tuple[str, int]]:
    value = json.loads(world.run("--dry-run", "--json").stdout)
    return [(each["brokerName"], each["toBrokerId"]) for each in value["moves"]]


def test_nothing_was_made_if_the_first_one_fails(world: World) -> None:
    first, second = (name for name, _ in planned(world))
    world.server.groups[first].on_election = "refuse"
    result = world.run("--yes")
    assert result.exit_code == 1 and f"Done: none; left: {second}" in result.stderr


def test_a_lost_answer_is_looked_up(world: World) -> None:
    for group in world.server.groups.values():
        group.on_election = "lose"
    result = world.run("--yes", "--json")
    assert result.exit_code == 0, result.output
    assert [each["state"] for each in json.loads(result.stdout)["moves"]] == ["done", "done"]


def test_controllers_that_fall_silent_after_a_lost_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The move was made: what the controllers did not answer is asked again."""
    for group in world.server.groups.values():
        group.on_election = "lose"
    ask, calls_after = ControllerAdmin.sync_state_sets, []

    async def sync_state_sets(
        admin: ControllerAdmin, controllers: str, names: list[str]
    ) -> BrokerReplicasInfo:
        if world.server.elected:
            calls_after.append(names)
        if len(calls_after) == 2:
            raise AdminError("getSyncStateSet", controllers, "no answer")
        return await ask(admin, controllers, names)

    monkeypatch.setattr(ControllerAdmin, "sync_state_sets", sync_state_sets)
    result = world.run("--yes")
    assert result.exit_code == 0, result.output
    assert len(world.server.elected) == 2 and "done: 2 masters moved" in result.stdout


def test_a_group_that_is_not_whole_again_ends_it(world: World) -> None:
    for group in world.server.groups.values():
        group.on_election = "crash"
    result = world.run("--yes", "--wait", "1")
    assert result.exit_code == 4 and len(world.server.elected) == 1
    assert "moved, but not within 1 s: broker 1 is not in the SyncStateSet again" in result.stderr


def test_a_master_that_takes_nothing_ends_it(world: World) -> None:
    world.group("a").not_writable = "the disk is full"
    result = world.run("--yes", "--wait", "1")
    assert result.exit_code == 4 and "does not take messages yet: the disk is full" in result.stderr


def test_it_waits_for_a_replica_that_is_behind(world: World) -> None:
    world.group("a").behind_bytes = moves.BEHIND_BYTES_MAX + 1
    result = world.run("--yes", "--wait", "1")
    assert result.exit_code == 1 and f"{moves.BEHIND_BYTES_MAX + 1} bytes behind" in result.stderr
    assert world.server.elected == []


def test_groups_that_cannot_move() -> None:
    """One replica is out of sync, one group has no controllers and its master is on the other host."""
    with world_of("ab", plain=True) as world:
        world.group("a").in_sync = {1}
        value = json.loads(world.run("--dry-run", "--json").stdout)
        assert [each["brokerName"] for each in value["moves"]] == []
        assert value["before"] == {"127.0.0.1": 2, "localhost": 1}
        assert value["notes"] == [
            "broker-a: replica 2 is not in sync or not alive, and cannot become master",
            "broker-z: the controllers do not know it: its master stays where it is",
        ]


def test_brokers_are_told_apart_by_container() -> None:
    """Both replicas are on one machine; one of them is in a container."""
    with world_of("ab") as world:
        port = world.server.address.rpartition(":")[2]
        for group in world.server.groups.values():
            group.replicas[2] = f"127.0.0.1:0{port}"  # another text for the same port
        assert planned(world) == []
        world.server.in_container = [inner("broker-b", address=f"127.0.0.1:0{port}")]
        value = json.loads(world.run("--dry-run", "--json", "-c", world.server.address).stdout)
        assert [(each["fromHost"], each["toHost"]) for each in value["moves"]] == [
            ("127.0.0.1", world.server.address)
        ]


def test_what_is_not_there(world: World) -> None:
    dead = CliRunner().invoke(app, ["rebalance-masters", "-n", DEAD, "--dry-run"])
    assert dead.exit_code == 3
    unknown = world.run("--dry-run", "--cluster", "nosuch")
    assert unknown.exit_code == 1 and "known: C" in unknown.stderr
    with world_of("", plain=True) as plain:
        plain.server.plain["broker-z"] = DEAD
        none = plain.run("--dry-run")
        assert none.exit_code == 1 and "no broker is in controller mode" in none.stderr
