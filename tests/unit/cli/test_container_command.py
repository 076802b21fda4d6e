"""keelmq container against a container that answers from a script."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner, Result

from cli.keelmq import app
from keelmq.client.admin import containers
from keelmq.remoting.operations.container import BrokerState
from tests.support.admin_parts import DEAD, InThread
from tests.support.fake_container import FakeContainer, Script, inner


def keelmq(*args: str) -> Result:
    result = CliRunner().invoke(app, ["container", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


class World(InThread):
    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.one, self.two, self.java = FakeContainer(), FakeContainer(), FakeContainer(is_java=True)
        slave = {"broker_id": 2, "canonical_name": "DefaultCluster_broker-b_2", "role": "slave"}
        quota = {"store_bytes": 3 << 30, "quota_bytes": 4 << 30, "worker": 1}
        self.one.brokers.append(inner("broker-b", **slave, **quota))
        bad = {"state": BrokerState.QUARANTINED, "reason": "listenPort 10911 is taken", "address": ""}
        self.two.brokers = [inner("broker-c", **bad)]
        async with self.one, self.two, self.java:
            yield


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(containers, "POLL_MS", 10)
    with World().running() as world:
        yield world


def test_a_line_for_each_broker_of_all_containers(world: World) -> None:
    result = keelmq("list", "-c", f"{world.one.address};{world.two.address}")
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.splitlines()
    assert head.split()[:4] == ["#Broker", "#Role", "#State", "#Address"]
    assert [row.split()[:4] for row in rows] == [
        ["DefaultCluster_broker-a_0", "master", "serving", "10.0.0.1:10911"],
        ["DefaultCluster_broker-b_2", "slave", "serving", "10.0.0.1:10911"],
        ["DefaultCluster_broker-c_0", "master", "quarantined", "-"],
    ]
    assert "10909,10912,-" in rows[0] and "3.0 GiB of 4.0 GiB (75%)" in rows[1]
    assert rows[2].endswith("listenPort 10911 is taken")


def test_one_of_several_does_not_answer(world: World) -> None:
    result = keelmq("list", "-c", f"{world.one.address};{DEAD}", "--json")
    assert result.exit_code == 4 and DEAD in result.stderr
    first, second = json.loads(result.stdout)
    assert first["ok"] and len(first["brokers"]) == 2 and len(first["workers"]) == 2
    assert not second["ok"] and "refused" in second["error"]
    assert keelmq("list", "-c", DEAD).exit_code == 3


def test_the_status_of_a_container_and_of_one_broker(world: World) -> None:
    whole = keelmq("status", "-c", world.one.address)
    assert whole.exit_code == 0
    assert "#Container\t127.0.0.1:" in whole.stdout and "#Restarts" in whole.stdout
    assert whole.stdout.count("#Identity\t") == 2
    for name in ("DefaultCluster:broker-b:2", "DefaultCluster:broker-b:-1", "DefaultCluster_broker-b_2"):
        one = keelmq("status", "-c", world.one.address, "--", name)
        assert one.exit_code == 0 and "#Store\t3.0 GiB of 4.0 GiB (75%)" in one.stdout, one.output
    missing = keelmq("status", "-c", f"{world.one.address};{DEAD}", "DefaultCluster:broker-b:7")
    assert missing.exit_code == 1
    assert "they have: DefaultCluster_broker-a_0, DefaultCluster_broker-b_2" in missing.stderr
    assert f"{DEAD} did not answer" in missing.stderr


def test_moves_that_even_out(world: World) -> None:
    """Both masters are in worker 0, and one of them goes to 1; a broker that does not serve stays."""
    more = [inner(name, canonical_name=f"DefaultCluster_{name}_0") for name in ("broker-d", "broker-e")]
    world.one.brokers = [*world.one.brokers[:1], *more[:1]]
    lost = {"state": BrokerState.QUARANTINED, "worker": 0}
    world.one.brokers.append(inner("broker-x", canonical_name="DefaultCluster_broker-x_0", **lost))
    address = world.one.address
    shown = keelmq("plan", "-c", address, "--even")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == f"keelmq container move -c {address} DefaultCluster:broker-a:0 --worker 1\n"
    assert [each.worker for each in world.one.brokers] == [0, 0, 0], "a plan moves nothing"
    moved = keelmq("plan", "-c", address, "--even", "--move", "--json")
    assert moved.exit_code == 0, moved.output
    value = json.loads(moved.stdout)
    assert value["moved"] == 1
    assert value["moves"] == [{"broker": "DefaultCluster_broker-a_0", "from": 0, "to": 1}]
    again = keelmq("plan", "-c", address, "--even", "--move")
    assert again.exit_code == 0
    assert again.stdout == "its brokers are spread evenly: nothing is to be moved\n"


@pytest.mark.parametrize("args", [(), ("--even", "/a.conf"), ("--move", "/a.conf"), ("--move",)])
def test_a_plan_is_of_files_or_of_moves(world: World, args: tuple[str, ...]) -> None:
    result = keelmq("plan", "-c", world.one.address, *args)
    assert result.exit_code == 2 and "say what to plan" in result.output


def test_a_plan_shows_every_problem_and_fails(world: World) -> None:
    result = keelmq("plan", "-c", world.one.address, "/etc/broker-a.conf", "/etc/broker-z.conf")
    assert result.exit_code == 1
    assert "/etc/broker-a.conf: refused" in result.stdout and "/etc/broker-z.conf: ok" in result.stdout
    assert "  PROBLEM DefaultCluster_broker-a_0 has already been added" in result.stdout
    assert "  note: serverWorkerThreads: the container's value applies" in result.stdout
    good = keelmq("plan", "-c", world.one.address, "/etc/broker-z.conf", "--json")
    assert good.exit_code == 0 and json.loads(good.stdout)["brokers"][0]["ports"] == [10911, 10909, 10912]


@pytest.mark.parametrize("loses_reply", [False, True])
def test_move_and_restart(world: World, loses_reply: bool) -> None:
    world.one.script = Script(loses_reply=loses_reply)
    moved = keelmq("move", "-c", world.one.address, "DefaultCluster_broker-a_0", "--worker", "1", "--json")
    assert moved.exit_code == 0, moved.output
    assert json.loads(moved.stdout)["broker"]["worker"] == 1
    restarted = keelmq("restart", "-c", world.one.address, "1")
    assert restarted.exit_code == 0, restarted.output
    assert restarted.stdout == f"worker 1 of {world.one.address} restarted\n"


def test_refusals(world: World) -> None:
    world.one.script = Script(refusal="there is no worker 9")
    moved = keelmq("move", "-c", world.one.address, "DefaultCluster:broker-a:0", "--worker", "9")
    assert moved.exit_code == 1 and "there is no worker 9" in moved.stderr
    restarted = keelmq("restart", "-c", world.one.address, "9")
    assert restarted.exit_code == 1 and "there is no worker 9" in restarted.stderr
    missing = keelmq("move", "-c", world.one.address, "DefaultCluster:broker-x:0", "--worker", "1")
    assert missing.exit_code == 1 and "it has: DefaultCluster_broker-a_0" in missing.stderr


def test_a_container_of_rocketmq_has_no_status(world: World) -> None:
    result = keelmq("plan", "-c", world.java.address, "/x", "--timeout", "300")
    assert result.exit_code == 1 and "REQUEST_CODE_NOT_SUPPORTED" in result.stderr
    result = keelmq("list", "-c", world.java.address, "--timeout", "300")
    assert result.exit_code == 3 and "RocketMQ's containers have no status" in result.stderr
