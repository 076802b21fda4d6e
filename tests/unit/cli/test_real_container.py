"""mqadmin and keelmq container against a real container, whose brokers are in this process."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from broker.container.app import ContainerServer
from cli.keelmq import app
from keelmq.client.admin import containers
from keelmq.remoting.config_store import ConfigSources
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.admin_parts import InThread, mqadmin
from tests.unit.broker.container.parts import broker_file, container_config


class World(InThread):
    """A container with the broker a; the file of b is there, too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.a, self.b = broker_file(directory, "a"), broker_file(directory, "b")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        config = NamesrvConfig(
            listen_port=0, bind_address="127.0.0.1", http_port=-1, kv_config_path=self.directory / "kv.json"
        )
        async with Namesrv(config) as namesrv:
            host, port = namesrv.address
            settings = container_config(self.directory, self.a, namesrvAddr=f"{host}:{port}")
            config_sources = ConfigSources(self.directory / "container.conf")
            assert config_sources.path is not None
            config_sources.path.write_text("")
            async with ContainerServer(settings, config_sources) as server:
                self.address = server.address
                yield


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(containers, "POLL_MS", 20)
    with World(tmp_path).running() as world:
        yield world


def keelmq(world: World, name: str, *args: str) -> Result:
    result = CliRunner().invoke(app, ["container", name, "-c", world.address, *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def names(world: World) -> list[str]:
    (found,) = json.loads(keelmq(world, "list", "--json").stdout)
    return sorted(each["canonicalName"] for each in found["brokers"])


def test_a_broker_is_planned_added_shown_and_removed(world: World) -> None:
    plan = keelmq(world, "plan", str(world.b))
    assert plan.exit_code == 0 and f"{world.b}: ok" in plan.stdout, plan.output
    assert names(world) == ["c1_a_0"]
    added = mqadmin("addBroker", "-c", world.address, "-b", str(world.b), "--json")
    assert added.exit_code == 0, added.output
    broker = json.loads(added.stdout)["broker"]
    assert broker["state"] == "serving" and broker["configPath"] == str(world.b)
    assert names(world) == ["c1_a_0", "c1_b_0"]
    shown = keelmq(world, "status", "c1_b_0")
    assert shown.exit_code == 0 and f"#Address\t{broker['address']}" in shown.stdout
    settings = json.loads(mqadmin("getBrokerConfig", "-b", broker["address"], "--json").stdout)
    assert settings[0]["config"]["brokerName"] == "b"
    removed = mqadmin("removeBroker", "-c", world.address, "-b", "c1:b:0")
    assert (removed.exit_code, removed.stdout) == (0, f"remove broker from {world.address} success\n")
    assert names(world) == ["c1_a_0"]


def test_refusals_are_the_container_s(world: World) -> None:
    elsewhere = mqadmin("addBroker", "-c", world.address, "-b", "/etc/passwd")
    assert elsewhere.exit_code == 1 and "below the directories that requests may name" in elsewhere.stderr
    twice = mqadmin("addBroker", "-c", world.address, "-b", str(world.a))
    assert twice.exit_code == 1 and "has already been added to current broker container" in twice.stderr
    missing = mqadmin("removeBroker", "-c", world.address, "-b", "c1:x:-1")
    assert missing.exit_code == 1 and "Broker not exist" in missing.stderr and "c1:a:0" in missing.stderr
    plan = keelmq(world, "plan", str(world.directory / "nosuch.conf"))
    assert plan.exit_code == 1 and "PROBLEM addBroker properties empty" in plan.stdout
    worker = keelmq(world, "restart", "7")
    assert worker.exit_code == 1 and "there is no worker 7" in worker.stderr


def test_its_settings(world: World) -> None:
    shown = json.loads(mqadmin("getBrokerConfig", "-b", world.address, "--json").stdout)
    assert shown[0]["config"]["containerProcesses"] == "1"
    changed = mqadmin("updateBrokerConfig", "-b", world.address, "-k", "persistBrokers", "-v", "false")
    assert changed.exit_code == 0 and "was true, is false" in changed.stderr, changed.output
    refused = mqadmin("updateBrokerConfig", "-b", world.address, "-k", "brokerConfigPaths", "-v", "/x")
    assert refused.exit_code == 1 and "black list" in refused.stderr
