"""mqadmin against a real controller with three replicas: 1 is master, 2 in sync, 3 registered and gone."""

import json
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.mqadmin.layouts import cluster as layouts
from cli.mqadmin.layouts import election as layouts_election
from keelmq.client.admin import ServerResult
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations import controller as wire
from tests.support.admin_parts import DEAD, InThread, captured, mqadmin
from tests.support.fake_cluster import Server
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    GROUP,
    Broker,
    in_sync,
    members,
    plugin_of,
    server,
    until,
)

ADDRESS_1, ADDRESS_2 = "10.0.0.1:1", "10.0.0.2:1"


class World(InThread):
    """The controller, the brokers' connections to it, and one like RocketMQ's, which elects at once."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.foreign_elections = directory, 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        (config,) = members(self.directory, ["n0"]).values()
        self.foreign = Server()
        self.foreign.table.bind(wire.GET_METADATA_INFO, self._foreign_metadata)
        self.foreign.table.bind(wire.ELECT_MASTER, self._foreign_elect)
        async with server(config) as namesrv, self.foreign:
            plugin = plugin_of(namesrv)
            await until(lambda: plugin.replicator.is_active, "a leader")
            self.address = f"{plugin.address[0]}:{plugin.address[1]}"
            brokers = [Broker(broker_id, [self.address]) for broker_id in (1, 2, 3)]
            for broker in brokers:
                await broker.join(self.address)
            await in_sync(brokers[0], self.address)
            await brokers[2].client.close()
            group = plugin.machine.state.brokers[GROUP]
            await until(lambda: len(plugin.liveness_view.view(group).live) == 2, "broker 3 is gone")
            yield
            for broker in brokers:
                await broker.client.close()

    async def _foreign_elect(self, _: wire.ElectMasterRequest, __: object) -> wire.MasterInfo:
        self.foreign_elections += 1
        return wire.MasterInfo(master_broker_id=2)

    async def _foreign_metadata(self, _: Empty, __: object) -> wire.ControllerMetadata:
        return wire.ControllerMetadata(group="java", controller_leader_address=self.foreign.address)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("controller")).running() as world:
        yield world


def elect(world: World, *flags: str) -> tuple[str, ...]:
    return ("electMaster", "-a", world.address, "-bn", GROUP, "-c", "C1", *flags)


def test_explain_names_the_winner_and_changes_nothing(world: World) -> None:
    result = mqadmin(*elect(world, "-b", "2", "--dry-run"))
    assert result.exit_code == 0 and "#NewMaster\t2\n" in result.stdout, result.output
    rows = [line.split()[:4] for line in result.stdout.splitlines() if line[:1].isdigit()]
    assert rows == [
        ["1", ADDRESS_1, "yes", "yes"],
        ["2", ADDRESS_2, "yes", "yes"],
        ["3", "10.0.0.3:1", "no", "no"],
    ]
    shown = json.loads(mqadmin(*elect(world, "-b", "2", "--explain", "--json")).stdout)
    assert shown["newMasterBrokerId"] == 2 and shown["isChange"] and not shown["unclean"]
    sets = json.loads(mqadmin("getSyncStateSet", "-a", world.address, "-b", GROUP, "--json").stdout)
    assert sets[GROUP]["masterBrokerId"] == 1


def test_explain_a_refusal(world: World) -> None:
    result = mqadmin(*elect(world, "-b", "3", "--dry-run"))
    assert result.exit_code == 1 and "CONTROLLER_ELECT_MASTER_FAILED" in result.stdout
    assert "not active" in result.stdout


def test_explain_the_election_of_the_controller_itself(world: World) -> None:
    result = mqadmin(*elect(world, "--dry-run"))
    assert "stays master: it is alive" in result.stdout and "#Changes\tnothing" in result.stdout
    assert mqadmin(*elect(world)).exit_code == 2  # without -b only to explain


def test_a_controller_that_cannot_explain_is_not_asked_to_elect(world: World) -> None:
    """RocketMQ's would take a dry run for an election: the code that asks is one that it refuses."""
    result = mqadmin(
        "electMaster", "-a", world.foreign.address, "-b", "2", "-bn", GROUP, "-c", "C1", "--dry-run"
    )
    assert result.exit_code == 1 and "REQUEST_CODE_NOT_SUPPORTED" in result.stderr
    assert world.foreign_elections == 0


def test_controller_settings(world: World) -> None:
    def value() -> str:
        (row,) = json.loads(mqadmin("getControllerConfig", "-a", world.address, "--json").stdout)
        return str(row["config"]["controllerGraceMs"])

    change = ("updateControllerConfig", "-a", world.address, "-k", "controllerGraceMs", "-v")
    before = value()
    result = mqadmin(*change, "1234")
    assert result.exit_code == 0
    assert result.stdout == f"update controller config success![{world.address}]\ncontrollerGraceMs : 1234\n"
    assert value() == "1234"
    assert mqadmin(*change, "").exit_code == 0 and value() == before


def test_the_layout_of_settings(world: World) -> None:
    """Sorted where RocketMQ's are not; otherwise the same lines."""
    head, *lines = captured("getControllerConfig").splitlines()
    address = head.strip("=")
    config = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    text = layouts.configs([ServerResult(address, config)])
    assert text.splitlines() == [head, *sorted(lines)]
    result = mqadmin("getControllerConfig", "-a", world.address)
    assert result.stdout.startswith(f"============{world.address}============\n")


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("controllerRaftSecretFile", "black list"),
        ("controllerDLegerSelfId", "restart"),
        ("nosuch", "unknown"),
    ],
)
def test_a_setting_that_cannot_change(key: str, words: str, world: World) -> None:
    """controller pitfall 21, 45."""
    result = mqadmin("updateControllerConfig", "-a", world.address, "-k", key, "-v", "1")
    assert result.exit_code == 1 and words in result.stderr and len(result.stderr.splitlines()) == 1


def test_a_controller_of_the_list_is_down(world: World) -> None:
    addresses = f"{world.address};{DEAD}"
    result = mqadmin("updateControllerConfig", "-a", addresses, "-k", "controllerGraceMs", "-v", "3000")
    assert result.exit_code == 4 and DEAD in result.stderr and "get it from the leader" in result.stderr
    assert mqadmin("getControllerConfig", "-a", addresses).exit_code == 4
    assert mqadmin("getControllerConfig", "-a", DEAD).exit_code == 3


CLEAN = ("-bn", GROUP, "-c", "C1")


def test_clean_shows_first(world: World) -> None:
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, "-b", "3", "--dry-run")
    assert (result.exit_code, result.stdout) == (
        0,
        f"would forget broker 3 of {GROUP} at 10.0.0.3:1 (not alive)\n",
    )
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, "--dry-run")
    assert result.exit_code == 1 and "is still alive" in result.stderr
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, "-b", "9", "--dry-run")
    assert result.exit_code == 1 and "brokers [9] were never registered" in result.stderr
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, "-bn", "nosuch", "-c", "C1", "--dry-run")
    assert result.exit_code == 1 and "nosuch" in result.stderr


def test_clean_refuses_the_living(world: World) -> None:
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, "-b", "2")
    assert result.exit_code == 1 and "CONTROLLER_INVALID_CLEAN_BROKER_METADATA" in result.stderr
    assert "only with -l" in result.stderr


@pytest.mark.parametrize("flags", [("-b", "one"), ("-b", "1;x")])
def test_ids_that_are_none(flags: tuple[str, ...], world: World) -> None:
    """controller pitfall 16: said before anything is sent."""
    assert mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, *flags).exit_code == 2
    assert mqadmin("cleanBrokerMetadata", "-a", world.address, "-bn", GROUP).exit_code == 2


def test_elections_export_and_the_end(world: World, tmp_path: Path) -> None:
    """In one test, since it changes the group: 2 becomes master, 3 is forgotten, the state is exported."""
    result = mqadmin(*elect(world, "-b", "2"))
    assert result.exit_code == 0 and f"#BrokerMasterAddr\t{ADDRESS_2}\n#MasterEpoch\t2\n" in result.stdout
    assert f"\t#Broker\t1\t{ADDRESS_1}\n\t#Broker\t2\t{ADDRESS_2}" in result.stdout
    past = json.loads(mqadmin("getElections", "-a", world.address, "-bn", GROUP, "--json").stdout)
    assert [(each["newMasterBrokerId"], each["masterEpoch"]) for each in past] == [(2, 2), (1, 1)]
    assert mqadmin("getElections", "-a", world.address).stdout.splitlines()[1].split()[2:6] == [
        GROUP,
        "1",
        "2",
        "2",
    ]
    result = mqadmin("cleanBrokerMetadata", "-a", world.address, *CLEAN, "-b", "3")
    assert result.exit_code == 0
    assert result.stdout == f"clear broker {GROUP} metadata from controller success! \n"
    path = tmp_path / "state.json"
    result = mqadmin("exportControllerState", "-a", world.address, "-o", str(path))
    assert result.exit_code == 0 and json.loads(path.read_text())["brokers"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_bytes()
    taken = mqadmin("exportControllerState", "-a", world.address, "-o", str(path))
    assert (taken.exit_code, path.read_bytes()) == (1, whole)
    assert taken.stderr.startswith(f"mqadmin: {path} exists: choose another name")
    assert mqadmin("exportControllerState", "-a", world.address, "-o", "").exit_code == 2
    again = mqadmin("importControllerState", "-a", world.address, "-f", str(path))
    assert again.exit_code == 0 and again.stdout == "imported 1 groups\n", again.output
    path.write_text("not JSON")
    refused = mqadmin("importControllerState", "-a", world.address, "-f", str(path))
    assert refused.exit_code == 1 and "CONTROLLER_INVALID_REQUEST" in refused.stderr
    assert mqadmin("importControllerState", "-a", world.address, "-f", "nosuch").exit_code == 2


def test_the_text_of_an_unclean_election() -> None:
    past = wire.PastElection(
        event_id=1,
        ts=1_700_000_000_123,
        cluster_name="C1",
        broker_name=GROUP,
        master_epoch=7,
        sync_state_set_epoch=8,
        reason="no live member",
        unclean=True,
        last_heartbeat_ts=1_700_000_000_000,
        detected_ts=1_700_000_000_050,
    )
    line = layouts_election.elections([past]).splitlines()[1]
    assert line.startswith("2023-11-14 22:13:20.123 ") and "50 ms" in line and "messages may be lost" in line
