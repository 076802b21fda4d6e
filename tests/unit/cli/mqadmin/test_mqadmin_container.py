"""mqadmin addBroker and removeBroker against a container that answers from a script, ours and RocketMQ's."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from cli.mqadmin.layouts import container as layouts
from keelmq.client.admin import containers
from keelmq.remoting.operations.container import BrokerState, ContainerStatus
from tests.support.admin_parts import DEAD, InThread, hanging, mqadmin
from tests.support.fake_container import FakeContainer, Script, inner

STARTING, STOPPING, QUARANTINED = BrokerState.STARTING, BrokerState.STOPPING, BrokerState.QUARANTINED


class World(InThread):
    """One container of ours, and one of RocketMQ's."""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        self.ours, self.java = FakeContainer(), FakeContainer(is_java=True)
        async with self.ours, self.java:
            yield


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(containers, "POLL_MS", 10)
    monkeypatch.setattr(containers, "STATUS_TIMEOUT_MS", 1_500)  # 300 were too few on a busy machine
    with World().running() as world:
        yield world


def add(container: FakeContainer, *more: str) -> tuple[str, ...]:
    return ("addBroker", "-c", container.address, "-b", "/etc/broker-b.conf", *more)


def remove(container: FakeContainer, identity: str, *more: str) -> tuple[str, ...]:
    return ("removeBroker", "-c", container.address, "-b", identity, *more)


def test_a_broker_is_added(world: World) -> None:
    result = mqadmin(*add(world.ours))
    assert (result.exit_code, result.stdout) == (0, f"add broker to {world.ours.address} success\n")
    assert [each.broker_name for each in world.ours.brokers] == ["broker-a", "broker-b"]
    shown = json.loads(mqadmin(*remove(world.ours, "DefaultCluster:broker-a:0", "--json")).stdout)
    assert shown["brokerName"] == "broker-a" and shown["brokerId"] == 0
    assert [each.broker_name for each in world.ours.brokers] == ["broker-b"]


def test_a_dry_run_shows_what_would_be_removed(world: World) -> None:
    shown = mqadmin(*remove(world.ours, "DefaultCluster:broker-a:0", "--dry-run"))
    assert shown.exit_code == 0 and "would remove DefaultCluster_broker-a_0: " in shown.stdout
    assert [each.broker_name for each in world.ours.brokers] == ["broker-a"], "it is still there"
    none = mqadmin(*remove(world.ours, "DefaultCluster:broker-x:0", "--dry-run"))
    assert none.exit_code == 1 and "Broker not exist" in none.stderr


def test_the_state_is_shown_while_it_starts(world: World) -> None:
    world.ours.script = Script(states=[STARTING] * 4, reason="recovering the log")
    result = mqadmin(*add(world.ours, "--json"))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["broker"]["state"] == "serving"
    (line,) = result.stderr.splitlines()  # a line for each change, not for each poll
    assert "DefaultCluster_broker-b_0 is starting (recovering the log), 0 s" in line


def test_a_refusal_is_shown_as_the_container_words_it(world: World) -> None:
    world.ours.script = Script(refusal="port 10911 is taken by DefaultCluster_broker-a_0")
    result = mqadmin(*add(world.ours))
    assert result.exit_code == 1 and result.stdout == ""
    assert "port 10911 is taken by DefaultCluster_broker-a_0" in result.stderr


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (Script(loses_reply=True, states=[STARTING, STARTING]), 0, "is starting"),
        (
            Script(loses_reply=True, states=[STARTING], ends=QUARANTINED, reason="no space left"),
            1,
            "no space",
        ),
        (Script(loses_reply=True, arrives=False), 1, "the status shows no change"),
    ],
)
def test_after_a_lost_reply_the_status_decides(script: Script, code: int, words: str, world: World) -> None:
    world.ours.script = script
    result = mqadmin(*add(world.ours))
    assert result.exit_code == code and words in result.stderr, result.output
    assert world.ours.asked == ["add /etc/broker-b.conf"], "never repeated"


def test_a_time_out_says_that_it_goes_on(world: World) -> None:
    world.ours.script = Script(states=[STARTING] * 10_000, reason="recovering the log")
    result = mqadmin(*add(world.ours, "--timeout", "2000"))
    assert (result.exit_code, result.stdout) == (3, ""), result.output
    last = result.stderr.splitlines()[-1]
    assert "not done after 2000 ms, and goes on: the broker is starting (recovering the log)" in last
    assert "check before you repeat it" in last


def test_a_refusal_while_the_status_is_asked_is_no_success(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = containers.ContainerAdmin.quick_status

    async def late(admin: containers.ContainerAdmin, address: str, timeout_ms: int) -> ContainerStatus | None:
        await asyncio.wait([each for each in asyncio.all_tasks() if "_Change._ask" in repr(each)])
        return await status(admin, address, timeout_ms)

    monkeypatch.setattr(containers, "POLL_MS", 0)
    monkeypatch.setattr(containers.ContainerAdmin, "quick_status", late)
    world.ours.script = Script(refusal="there is no such file")
    result = mqadmin(*add(world.ours))
    assert result.exit_code == 1 and "there is no such file" in result.stderr, result.output


def test_a_container_that_hangs_is_not_asked_to_change(world: World) -> None:
    with hanging() as address:
        result = mqadmin("addBroker", "-c", address, "-b", "/etc/b.conf")
    assert result.exit_code == 3 and "nothing was changed" in result.stderr
    assert mqadmin("addBroker", "-c", DEAD, "-b", "/etc/b.conf").exit_code == 3


def test_a_silent_container_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has answered before the change, and then nothing."""
    monkeypatch.setattr(containers, "SILENT_MS", 0)
    world.ours.script = Script(states=[STARTING] * 10_000)
    monkeypatch.setattr(containers.ContainerAdmin, "quick_status", _nothing)
    result = mqadmin(*add(world.ours))
    assert result.exit_code == 3 and "has answered nothing for" in result.stderr


async def _nothing(*_: object) -> None:
    return None


def test_a_negative_id_is_the_replica_of_the_group(world: World) -> None:
    """RocketMQ's tool refuses these, so that such a broker cannot be removed with it."""
    world.ours.brokers = [inner("broker-a", broker_id=2, canonical_name="DefaultCluster_broker-a")]
    world.ours.script = Script(states=[STOPPING], loses_reply=True)
    result = mqadmin(*remove(world.ours, "DefaultCluster:broker-a:-1"))
    assert result.exit_code == 0, result.output
    assert world.ours.asked == ["remove broker-a -1"] and not world.ours.brokers
    assert result.stdout == f"remove broker from {world.ours.address} success\n"


def test_a_broker_that_is_not_there(world: World) -> None:
    result = mqadmin(*remove(world.ours, "DefaultCluster:broker-x:0"))
    assert result.exit_code == 1
    assert "BROKER_NOT_EXIST" in result.stderr and "it has: DefaultCluster:broker-a:0" in result.stderr


@pytest.mark.parametrize(
    "identity", ["broker-a", "c:broker-a", "c:broker-a:", "c:broker-a:x", ":a:0", "c::0"]
)
def test_what_is_no_identity(identity: str) -> None:
    assert mqadmin("removeBroker", "-c", DEAD, "-b", identity).exit_code == 2


def test_a_change_is_of_one_container() -> None:
    assert mqadmin("addBroker", "-c", f"{DEAD};{DEAD}", "-b", "/x").exit_code == 2


@pytest.mark.slow
def test_a_container_of_rocketmq(world: World) -> None:
    """It answers four requests, and nothing at all to others: its reply alone counts."""
    result = mqadmin(*add(world.java))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"add broker to {world.java.address} success\n"
    assert mqadmin(*remove(world.java, "DefaultCluster:broker-b:0")).exit_code == 0
    assert world.java.asked == ["add /etc/broker-b.conf", "remove broker-b 0"]
    missing = mqadmin(*remove(world.java, "DefaultCluster:broker-b:0"))
    assert missing.exit_code == 1 and "Broker not exist" in missing.stderr
    world.java.script = Script(loses_reply=True)
    lost = mqadmin(*add(world.java))
    assert lost.exit_code == 3 and "check before you repeat it" in lost.stderr


@pytest.mark.parametrize("kind", ["ours", "java"])
def test_the_settings_of_a_container(world: World, kind: str) -> None:
    address = getattr(world, kind).address
    shown = mqadmin("getBrokerConfig", "-b", address, "--json")
    assert json.loads(shown.stdout)[0]["config"]["listenPort"] == "10811"
    changed = mqadmin("updateBrokerConfig", "-b", address, "-k", "updateNamesrvAddrInterval", "-v", "5000")
    assert changed.exit_code == 0, changed.output
    assert getattr(world, kind).config["updateNamesrvAddrInterval"] == "5000"
    refused = mqadmin("updateBrokerConfig", "-b", address, "-k", "brokerConfigPaths", "-v", "/x")
    assert refused.exit_code == 1 and "black list" in refused.stderr


def test_bytes() -> None:
    assert [layouts.bytes_text(each) for each in (0, 1023, 1536, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 GiB",
    ]  # fmt: skip


def test_another_new_broker_is_not_taken_for_this_one(world: World) -> None:
    """Somebody else adds c while the request for b is lost on its way."""
    world.ours.brokers.append(inner("broker-c"))
    world.ours.script = Script(loses_reply=True, arrives=False)
    result = mqadmin(*add(world.ours))
    assert result.exit_code == 1 and "the status shows no change" in result.stderr
