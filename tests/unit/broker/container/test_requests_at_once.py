"""Requests to a container that meet each other, or a disk that takes nothing: its list stays true."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from broker.container.container import Container
from broker.container.core.identity import BrokerIdentity
from broker.container.host import BrokerRefused, InnerSetup
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations.container import InnerBroker, Worker
from tests.unit.broker.container.parts import broker_file, container_config


class FakeHost:
    """A BrokerHost without brokers. refusal: why it starts none."""

    def __init__(self) -> None:
        self.running: dict[BrokerIdentity, InnerSetup] = {}
        self.refusal = ""

    async def start(self, setup: InnerSetup) -> None:
        await asyncio.sleep(0)
        if self.refusal:
            raise BrokerRefused(self.refusal)
        self.running[setup.identity] = setup

    async def stop(self, identity: BrokerIdentity, *, hand_over: bool) -> None:
        await asyncio.sleep(0)
        self.running.pop(identity, None)

    async def brokers(self) -> list[InnerBroker]:
        return []

    async def worker(self) -> Worker:
        return Worker(number=0, pid=1, is_running=True)

    async def metrics(self) -> list[object]:
        return []

    async def change(self, settings: Mapping[str, str]) -> None: ...

    async def restart(self) -> None: ...

    async def leave(self) -> None: ...

    async def close(self) -> None: ...


def container_of(directory: Path, *files: Path, hosts: list[FakeHost], **changes: object) -> Container:
    config = container_config(directory, *files, **changes)
    return Container(config, hosts, config_file=None, own_ports={})  # type: ignore[arg-type]


async def test_a_broker_that_is_removed_and_moved_at_once_is_listed_or_does_not_run(tmp_path: Path) -> None:
    hosts = [FakeHost(), FakeHost()]
    container = container_of(tmp_path, broker_file(tmp_path, "a"), hosts=hosts)
    await container.start_all()
    found = await asyncio.gather(
        container.remove("c1", "a", 0), container.move("c1", "a", 0, 1), return_exceptions=True
    )
    assert isinstance(found[1], CommandError), "the broker is being removed"
    assert [len(host.running) for host in hosts] == [0, 0] and container.states() == {}
    again = container_of(tmp_path, tmp_path / "a.conf", hosts=[FakeHost(), FakeHost()])
    await again.start_all()
    assert again.states() == {}, "it stays away"


async def test_a_removal_that_cannot_be_kept_leaves_the_broker(tmp_path: Path) -> None:
    host = FakeHost()
    container = container_of(tmp_path, broker_file(tmp_path, "a"), hosts=[host])
    await container.start_all()
    (tmp_path / "state").write_text("where the directory should be")
    with pytest.raises(CommandError, match="nothing was changed"):
        await container.remove("c1", "a", 0)
    assert len(host.running) == 1 and container.states() == {"serving": 1}
    (tmp_path / "state").unlink()
    await container.remove("c1", "a", 0)
    assert container.states() == {}


async def test_an_addition_that_cannot_be_kept_may_be_repeated(tmp_path: Path) -> None:
    host = FakeHost()
    host.refusal = "its port is in use"
    container = container_of(tmp_path, path := broker_file(tmp_path, "a"), hosts=[host])
    await container.start_all()
    assert container.states() == {"quarantined": 1}
    host.refusal = ""
    (tmp_path / "state").write_text("where the directory should be")
    with pytest.raises(CommandError, match="nothing was changed"):
        await container.add(str(path))
    assert host.running == {} and container.states() == {"quarantined": 1}
    (tmp_path / "state").unlink()
    await container.add(str(path))
    assert container.states() == {"serving": 1}


async def test_without_persist_brokers_a_start_is_that_of_the_configuration(tmp_path: Path) -> None:
    a, b = broker_file(tmp_path, "a"), broker_file(tmp_path, "b")
    first = container_of(tmp_path, a, hosts=[FakeHost()])
    await first.start_all()
    await first.add(str(b))
    await first.remove("c1", "a", 0)
    host = FakeHost()
    await container_of(tmp_path, a, hosts=[host], persistBrokers=False).start_all()
    assert [setup.config_path for setup in host.running.values()] == [a]


async def test_a_configured_broker_that_was_moved_is_not_an_added_one(tmp_path: Path) -> None:
    a, b = broker_file(tmp_path, "a"), broker_file(tmp_path, "b")
    first = container_of(tmp_path, a, b, hosts=[FakeHost(), FakeHost()])
    await first.start_all()
    await first.move("c1", "a", 0, 1)
    hosts = [FakeHost(), FakeHost()]
    await container_of(tmp_path, a, b, hosts=hosts).start_all()
    assert [each.config_path for each in hosts[1].running.values()] == [a], "a restart keeps its place"
    hosts = [FakeHost(), FakeHost()]
    await container_of(tmp_path, b, hosts=hosts).start_all()
    started = [each.config_path for host in hosts for each in host.running.values()]
    assert started == [b], "the operator took its line out of brokerConfigPaths"
