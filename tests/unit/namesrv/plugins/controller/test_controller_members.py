"""29021-29023: what is asked before a change, what is answered, and what everybody is told afterwards.

With a log that does what it is told; then, the last tests, with real controllers.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, Empty, Unknown, UnknownOutcome
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.plugin import ControllerPlugin
from namesrv.plugins.controller.raft.api import Busy, ChangeRefused, NotActive
from tests.support.admin_parts import DEAD
from tests.support.controller_fakes import GROUP, Bench
from tests.support.fake_cluster import Server
from tests.unit.namesrv.plugins.controller.test_controller_handlers import refused
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    address_of,
    free_ports,
    members,
    plugin_of,
    server,
    until,
)

INVALID = ResponseCode.CONTROLLER_INVALID_REQUEST


def address_at(plugin: ControllerPlugin, member: str) -> str | None:
    """What this controller tells others of the member's address."""
    return plugin.group_sources().controller.request_address(member)


class Newcomer(Server):
    """Answers 1005 with `told`."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Any] = {"group": "group1", "self_id": "n3", "raft_address": "10.0.0.4:10878"}
        self.table.bind(wire.GET_METADATA_INFO, self._metadata)

    async def _metadata(self, _: Empty, __: Call) -> wire.ControllerMetadata:
        return wire.ControllerMetadata(**self.told)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.plugin.members.close()


@pytest.fixture
async def newcomer() -> AsyncIterator[Newcomer]:
    async with Newcomer() as newcomer:
        yield newcomer


def add(bench: Bench, address: str, member: str = "n3") -> Any:
    return bench.ask(wire.ADD_CONTROLLER, controller_id=member, controller_address=address)


async def peers(bench: Bench) -> str:
    return str((await bench.ask(wire.GET_METADATA_INFO)).header.peers)


async def test_a_newcomer_is_told_by_every_answer_and_pushed_to_brokers(
    bench: Bench, newcomer: Newcomer
) -> None:
    await bench.group_of(1, 2)
    reply = await add(bench, newcomer.address)
    host, port = newcomer.address.split(":")
    assert bench.replicator.changes == [("add", "n3", ("10.0.0.4", 10878), (host, int(port)))]
    assert reply.header.peers == await peers(bench)
    assert (await peers(bench)).endswith(f"n3:{newcomer.address};")
    (pushed,) = bench.peers[2].pushed()
    assert pushed.ext_fields["controllers"] == newcomer.address
    told = await bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP)
    assert told.header.controllers == newcomer.address
    assert (await bench.register(1)).header.controllers == newcomer.address
    assert (await bench.elect(1)).header.controllers == newcomer.address


async def test_brokers_of_a_group_that_never_changed_are_told_nothing(bench: Bench) -> None:
    await bench.group_of(1)
    assert (await bench.ask(wire.GET_REPLICA_INFO, broker_name=GROUP)).header.controllers is None


async def test_a_repeated_request_is_a_success(bench: Bench, newcomer: Newcomer) -> None:
    await add(bench, newcomer.address)
    again = await add(bench, newcomer.address)
    assert again.remark == "n3 is already a member"
    assert (await bench.ask(wire.REMOVE_CONTROLLER, controller_id="n3")).remark == (
        "stop n3 now, if it still runs"
    )
    gone = await bench.ask(wire.REMOVE_CONTROLLER, controller_id="n3")
    assert gone.remark == "n3 is not a member: nothing to do" and "n3" not in gone.header.peers
    assert (await bench.ask(wire.TRANSFER_LEADER, controller_id="n0")).remark == "n0 already leads"
    assert [each[0] for each in bench.replicator.changes] == ["add", "remove"]


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"self_id": None}, "no KeelMQ controller of this version"),
        ({"raft_address": None}, "no KeelMQ controller of this version"),
        ({"group": "other"}, "is of group other, not group1"),
        ({"self_id": "n4"}, "is n4, not n3: see its controllerDLegerSelfId"),
        ({"raft_address": "nowhere"}, "raft address"),
    ],
)
async def test_another_than_the_one_that_is_meant(
    bench: Bench, newcomer: Newcomer, told: dict[str, Any], reason: str
) -> None:
    newcomer.told |= told
    error = await refused(add(bench, newcomer.address))
    assert error.code == INVALID and reason in error.remark
    assert not bench.replicator.changes


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
async def test_an_address_that_others_cannot_reach(tmp_path: Path, newcomer: Newcomer, host: str) -> None:
    """Controller pitfall 44, at run time: of the request address, and of the raft address that it tells."""
    bench = Bench(
        tmp_path, controllerDLegerPeers="n0-10.0.0.1:9878;n1-10.0.0.2:9878", controllerRaftSecret="x" * 16
    )
    error = await refused(add(bench, f"{host}:9878"))
    assert error.code == INVALID and "other machines need an address" in error.remark
    bench.replicator.peers = {"n0": ("127.0.0.1", 1)}
    newcomer.told["raft_address"] = "0.0.0.0:10878"
    error = await refused(add(bench, newcomer.address))
    assert "0.0.0.0:10878: other machines need an address" in error.remark
    await bench.plugin.members.close()


async def test_an_address_at_which_nobody_listens(bench: Bench) -> None:
    error = await refused(add(bench, DEAD))
    assert error.code == INVALID and f"n3 does not answer at {DEAD}" in error.remark
    assert "start it first" in error.remark


@pytest.mark.parametrize(
    ("member", "address", "reason"),
    [
        ("n1", "127.0.0.1:1234", "n1 is already a member, at 127.0.0.1:9868: choose another id"),
        ("n0", "127.0.0.1:1234", "n0 is already a member"),
        ("n3", "127.0.0.1:9868", "is the address of member n1"),
        ("n3", "127.0.0.1", "is not id-host:port"),
        ("n3", "127.0.0.1:70000", "is not id-host:port"),
        ("n3", "h:1;n4-h:2", "is not one controller"),
        ("n-3", "127.0.0.1:1234", "'n-3' at '127.0.0.1:1234' is not one controller"),
        ("n 3", "127.0.0.1:1234", "is not id-host:port"),
        ("n3-h:1;n4", "127.0.0.1:1234", "is not one controller"),
    ],
)
async def test_what_cannot_be_added(bench: Bench, member: str, address: str, reason: str) -> None:
    error = await refused(add(bench, address, member))
    assert error.code == INVALID and reason in error.remark
    assert not bench.replicator.changes


async def test_the_leader_is_not_removed_and_neither_is_the_last(bench: Bench) -> None:
    error = await refused(bench.ask(wire.REMOVE_CONTROLLER, controller_id="n0"))
    assert (error.code, error.remark) == (
        INVALID,
        "n0 leads: move the leadership first (transferLeader, for example to n1), then repeat",
    )
    await bench.ask(wire.REMOVE_CONTROLLER, controller_id="n1")
    error = await refused(bench.ask(wire.REMOVE_CONTROLLER, controller_id="n0"))
    assert "n0 is the only member" in error.remark


async def test_a_controller_that_does_not_lead_says_who_does(bench: Bench) -> None:
    bench.replicator.become(False)
    for operation, header in (
        (wire.ADD_CONTROLLER, {"controller_id": "n3", "controller_address": DEAD}),
        (wire.REMOVE_CONTROLLER, {"controller_id": "n9"}),
        (wire.TRANSFER_LEADER, {"controller_id": "n1"}),
    ):
        error = await refused(bench.ask(operation, **header))
        assert error.code == ResponseCode.CONTROLLER_NOT_LEADER
        assert error.remark.endswith(": ask n1 at 127.0.0.1:9868")
    bench.replicator.no_leader = True
    error = await refused(bench.ask(wire.TRANSFER_LEADER, controller_id="n1"))
    assert error.remark == "The controller is not in leader state"


@pytest.mark.parametrize(
    ("outcome", "code", "remark"),
    [
        (ChangeRefused("n1 has not the whole log"), INVALID, "n1 has not the whole log"),
        (NotActive("n1"), ResponseCode.CONTROLLER_NOT_LEADER, "ask n1 at 127.0.0.1:9868"),
        (Busy(), ResponseCode.SYSTEM_BUSY, "repeat"),
        (Unknown("no majority"), ResponseCode.SYSTEM_ERROR, "it may have happened, repeat"),
    ],
)
async def test_what_the_log_says_is_what_is_answered(
    bench: Bench, outcome: Any, code: int, remark: str
) -> None:
    for operation in (wire.REMOVE_CONTROLLER, wire.TRANSFER_LEADER):
        bench.replicator.next_change = outcome
        error = await refused(bench.ask(operation, controller_id="n1"))
        assert error.code == code and remark in error.remark
        assert isinstance(error, UnknownOutcome) == isinstance(outcome, Unknown)


async def test_a_removed_controller_is_not_ready(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.plugin._started = True
    assert bench.plugin.health()["ready"]
    monkeypatch.setattr(bench.replicator, "status", lambda: {"role": "removed"})
    health = bench.plugin.health()
    assert not health["ready"] and "was removed from the group" in str(health["reasons"])


# ---------------------------------------------------------------------------------- real controllers


def newcomer_to(configs: dict[str, ControllerConfig], tmp_path: Path, name: str) -> ControllerConfig:
    """Its file lists everybody; the files of the others are as they were."""
    request_port, raft_port = free_ports(2)
    some = next(iter(configs.values()))
    return ControllerConfig.model_validate(
        {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"{some.controller_d_leger_peers};{name}-127.0.0.1:{request_port}",
            "controllerRaftPeers": f"{some.controller_raft_peers};{name}-127.0.0.1:{raft_port}",
            "controllerDLegerSelfId": name,
            "controllerStorePath": tmp_path / f"{name}-{request_port}",
            "controllerRaftSecret": "0123456789abcdef0123456789abcdef",
        }
    )


async def change(
    admin: AdminClient, configs: dict[str, ControllerConfig], operation: Any, **header: Any
) -> str:
    """Again after an election, as on a busy machine: the answer says that nothing was changed."""
    addresses = ";".join(map(address_of, configs.values()))
    async with asyncio.timeout(60):
        while True:
            try:
                group, _remark = await admin.controllers.change_controllers(
                    addresses, operation, operation.request(**header)
                )
                return str(group.peers)
            except AdminError as error:
                if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                    raise
                await asyncio.sleep(0.05)


async def test_the_address_of_a_newcomer_reaches_all_and_its_next_life_has_another(tmp_path: Path) -> None:
    """Also members that restart with files that never heard of it, and with a snapshot."""
    configs = members(tmp_path, ["n0", "n1", "n2"])
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient())
        running = {name: server(config) for name, config in configs.items()}
        for namesrv in running.values():
            await stack.enter_async_context(namesrv)
        plugins = [plugin_of(namesrv) for namesrv in running.values()]
        await until(lambda: any(each.replicator.is_active for each in plugins), "a leader")

        first = newcomer_to(configs, tmp_path, "n3")
        async with server(first):
            with pytest.raises(AdminError, match="n3 does not answer"):
                await change(admin, configs, wire.ADD_CONTROLLER, controller_id="n3", controller_address=DEAD)
            added = {"controller_id": "n3", "controller_address": address_of(first)}
            told = await change(admin, configs, wire.ADD_CONTROLLER, **added)
            assert told.endswith(f"n3:{address_of(first)};")
            await until(
                lambda: all(address_at(each, "n3") == address_of(first) for each in plugins),
                "all know it",
            )
            await change(admin, configs, wire.REMOVE_CONTROLLER, controller_id="n3")
            await until(
                lambda: not any(address_at(each, "n3") for each in plugins),
                "it is forgotten",
            )

        second = newcomer_to(configs, tmp_path, "n3")
        async with server(second) as again:
            added = {"controller_id": "n3", "controller_address": address_of(second)}
            await change(admin, configs, wire.ADD_CONTROLLER, **added)
            await until(
                lambda: all(address_at(each, "n3") == address_of(second) for each in plugins),
                "the other address",
            )
            await until(
                lambda: plugin_of(again).replicator.status()["standing"] == "member", "it was rejoined"
            )
            await change(admin, configs, wire.TRANSFER_LEADER, controller_id="n3")
            await until(lambda: plugin_of(again).replicator.is_active, "it leads")
            told = await change(admin, {"n3": second}, wire.REMOVE_CONTROLLER, controller_id="n0")
            assert [each[:2] for each in told.split(";")[:-1]] == ["n1", "n2", "n3"]
            await until(lambda: not plugins[0].health()["ready"], "n0 says that it was removed")
