"""addController, removeController and transferLeader: flags, layout, JSON, exit codes; any of -a is asked."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Operation, Reply, UnknownOutcome
from keelmq.remoting.operations import controller as wire
from tests.support.admin_parts import DEAD, InThread, mqadmin
from tests.support.fake_cluster import Server


class World(InThread):
    """A follower, and the leader that does what it is asked, unless the id says otherwise."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        async with Server() as self.leader, Server() as self.follower:
            for each in (self.leader, self.follower):
                each.table.bind(wire.GET_METADATA_INFO, self._metadata)
            self.leader.table.bind(wire.EXPLAIN_REMOVE_CONTROLLER, self._explain)
            for operation in (wire.ADD_CONTROLLER, wire.REMOVE_CONTROLLER, wire.TRANSFER_LEADER):
                self._bind(operation)
            yield

    def _bind(self, operation: Operation[Any, Any]) -> None:
        async def handle(request: wire.ControllerIdRequest, _: Call) -> Reply:
            self.asked.append((operation.name, request.model_dump(by_alias=True)))
            if request.controller_id == "bad":
                raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, "bad is bad: do this")
            if request.controller_id == "lost":
                raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, "not committed in time")
            return Reply(self.group(), remark="and so on" if request.controller_id == "n9" else None)

        self.leader.table.bind(operation, handle)

    async def _explain(self, request: wire.ControllerIdRequest, _: Call) -> Reply:
        if request.controller_id == "n0":
            raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, "n0 leads: transferLeader first")
        return Reply(self.group(), remark="n7 is not a member" if request.controller_id == "n7" else None)

    def group(self) -> wire.ControllerMetadata:
        return wire.ControllerMetadata(
            group="g",
            controller_leader_id="n0",
            controller_leader_address=self.leader.address,
            peers=f"n0:{self.leader.address};n1:{self.follower.address};",
        )

    async def _metadata(self, _: Empty, __: Call) -> wire.ControllerMetadata:
        return self.group()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World().running() as world:
        yield world


def test_a_dry_run_shows_who_would_be_left(world: World) -> None:
    before = len(world.asked)
    shown = mqadmin("removeController", "-a", world.follower.address, "-id", "n1", "--dry-run")
    assert (shown.exit_code, shown.stdout) == (
        0,
        f"would remove n1 at {world.follower.address}: 1 controller left (n0), 1 must run\n",
    )
    refused = mqadmin("removeController", "-a", world.follower.address, "-id", "n0", "--dry-run")
    assert refused.exit_code == 1 and "n0 leads: transferLeader first" in refused.stderr
    nothing = mqadmin("removeController", "-a", world.follower.address, "-id", "n7", "--dry-run")
    assert (nothing.exit_code, nothing.stdout) == (0, ""), "the removal of no member is a success"
    assert "n7 is not a member" in nothing.stderr
    assert len(world.asked) == before


@pytest.mark.parametrize("command", ["addController -p h:1", "removeController", "transferLeader"])
def test_a_controller_without_an_id(command: str) -> None:
    refused = mqadmin(*command.split(), "-a", DEAD, "-id", "")
    assert refused.exit_code == 2 and "'-id' / '--controllerId': it is empty" in refused.stderr


@pytest.mark.parametrize(
    ("command", "flags", "asked"),
    [
        ("addController", ("-p", "h:1"), {"controllerAddress": "h:1"}),
        ("addController", ("--peer", "h:1"), {"controllerAddress": "h:1"}),
        ("removecontroller", (), {}),
        ("transferLeader", (), {}),
    ],
)
def test_the_leader_is_found_and_asked(
    world: World, command: str, flags: tuple[str, ...], asked: dict[str, Any]
) -> None:
    result = mqadmin(command, "-a", f"{DEAD};{world.follower.address}", "-id", "n3", *flags)
    assert result.exit_code == 0, result.output
    name, header = world.asked[-1]
    assert name.lower() == command.lower() and header == {"controllerId": "n3", **asked}
    assert result.stdout == (
        "\n#ControllerGroup\tg\n#ControllerLeaderId\tn0\n"
        f"#ControllerLeaderAddress\t{world.leader.address}\n"
        f"#Peer:\tn0:{world.leader.address}\n#Peer:\tn1:{world.follower.address}\n"
    )


def test_json_and_what_the_controller_adds(world: World) -> None:
    result = mqadmin("removeController", "-a", world.leader.address, "--controllerId", "n9", "--json")
    assert json.loads(result.stdout)["controllerLeaderId"] == "n0"
    assert (result.exit_code, result.stderr) == (0, "mqadmin: and so on\n")


def test_a_refusal_says_what_to_do(world: World) -> None:
    result = mqadmin("transferLeader", "-a", world.leader.address, "-id", "bad")
    assert result.exit_code == 1 and result.stdout == ""
    assert "CONTROLLER_INVALID_REQUEST, bad is bad: do this" in result.stderr


def test_what_is_not_known_is_no_refusal(world: World) -> None:
    result = mqadmin("transferLeader", "-a", world.leader.address, "-id", "lost")
    assert result.exit_code == 3
    assert "not committed in time; it may have happened: check before you repeat it" in result.stderr


def test_usage_and_nobody() -> None:
    assert mqadmin("addController", "-a", DEAD, "-id", "n3").exit_code == 2
    assert mqadmin("addController", "-a", DEAD, "-id", "n3", "-p", "nowhere").exit_code == 2
    assert mqadmin("removeController", "-a", DEAD).exit_code == 2
    assert mqadmin("removeController", "-a", DEAD, "-id", "n3").exit_code == 3
