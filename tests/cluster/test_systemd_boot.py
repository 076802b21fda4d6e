"""The units of `keelmq init` under systemd, on three machines that each boot one: start, hand-over at a stop,
sandbox, and a new start after kill -9. What is typed is what `keelmq init` prints, without sudo."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.machines.init import COPIED, PREFIX
from tests.cluster import netns
from tests.cluster.booted import BootedMachine, why_not
from tests.cluster.netns import Network
from tests.cluster.test_machines import MISSING, UV, until
from tests.cluster.test_machines import environment as environment  # a fixture

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(netns.why_not() is not None, reason=netns.why_not() or ""),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(bool(MISSING) or not UV.exists(), reason=f"needs {', '.join(MISSING)}, uv"),
]

IMPORTS_US = 100_000
"""A program takes longer than that to import its modules."""
NAMESRV, BROKER = "keelmq-namesrv", "keelmq-broker"


@pytest.fixture(scope="module")
def hosts() -> Iterator[dict[str, tuple[str, ...]]]:
    """Address -> what goes in front of a command line that runs there."""
    with Network(3) as network:
        yield {network.address(number): network.prefix(number) for number in range(3)}


@pytest.fixture(scope="module")
def cluster(
    environment: Path,
    hosts: dict[str, tuple[str, ...]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator["Cluster"]:
    folder = tmp_path_factory.mktemp("machines")
    machines: dict[str, BootedMachine] = {}
    try:
        for host, prefix in hosts.items():
            machines[host] = BootedMachine(folder / host, environment, prefix)
        found = Cluster(machines)
        found.install()
        yield found
    finally:
        for machine in machines.values():
            machine.stop()


class Cluster:
    """Three machines by their addresses."""

    def __init__(self, machines: dict[str, BootedMachine]) -> None:
        self.machines = machines
        self.first = next(iter(machines.values()))
        self.name_servers = ";".join(f"{host}:9876" for host in machines)
        self.controllers = ";".join(f"{host}:9878" for host in machines)

    def install(self) -> None:
        """Returns when all three brokers are in sync."""
        options = [word for host in self.machines for word in ("--host", host)]
        written = self.first.run(f"{PREFIX}/bin/keelmq", "init", "/home/files", *options, "--json")
        _copies, (_title, (_venv, *commands)), _then = (each.values() for each in json.loads(written)["next"])
        for host, machine in self.machines.items():
            files = self.first.directory / "home" / "files" / host
            shutil.copytree(files, machine.directory / "home" / COPIED)
            for command in commands:
                machine.run("sh", "-ec", command.replace("sudo ", ""))
        self.until_in_sync()

    def mqadmin(self, *command: str) -> str:
        return self.first.run(f"{PREFIX}/bin/mqadmin", *command)

    def group(self) -> dict[str, object]:
        shown = self.mqadmin("getSyncStateSet", "-a", self.controllers, "-b", "broker-a", "--json")
        found: dict[str, object] = json.loads(shown)["broker-a"]
        return found

    def master(self) -> BootedMachine:
        host = str(self.group()["masterAddress"]).partition(":")[0]
        return self.machines[host]

    def until_in_sync(self) -> None:
        def three() -> bool:
            members = self.group()["inSyncReplicas"]
            return isinstance(members, list) and len(members) == 3

        until("three in sync", three)


def test_a_start_returns_when_the_program_is_ready(cluster: Cluster) -> None:
    """Type=notify; `enable --now` was what started them."""
    for machine in cluster.machines.values():
        for unit in (NAMESRV, BROKER):
            assert machine.property(unit, "Type") == "notify"
            began, active = (
                int(machine.property(unit, f"{name}TimestampMonotonic"))
                for name in ("ExecMainStart", "ActiveEnter")
            )
            assert active - began > IMPORTS_US, "without READY=1 a unit is active at once"
            assert machine.property(unit, "ActiveState") == "active"
            assert machine.property(unit, "UnitFileState") == "enabled"
            assert machine.property(unit, "NRestarts") == "0"
            assert "ready: " in machine.journal("-u", unit)
            owner = machine.run("stat", "--format=%U", f"/proc/{machine.property(unit, 'MainPID')}")
            assert owner.strip() == "keelmq"


def test_a_start_that_fails_says_so(cluster: Cluster) -> None:
    """systemctl does not wait for ever, and the journal has the line of the program."""
    machine = cluster.first
    unit = "/etc/systemd/system/keelmq-proxy.service"
    machine.run("sh", "-ec", "echo noSuchKey=1 >> /etc/keelmq/proxy.conf")
    try:
        assert f"{Path(unit).name} failed" in machine.refused("systemctl", "start", "keelmq-proxy")
        assert "noSuchKey" in machine.journal("-u", "keelmq-proxy")
    finally:
        machine.run("systemctl", "stop", "keelmq-proxy")


def test_the_sandbox(cluster: Cluster) -> None:
    """As root with the mounts of the program, only its state can be written. It has no capability."""
    machine = cluster.first
    for unit in (NAMESRV, BROKER):
        for path in ("/etc/keelmq/new", "/usr/new", "/opt/keelmq/new", "/new", "/var/new"):
            assert "Read-only file system" in machine.within(unit, "touch", path).stderr, path
        assert (
            machine.within(unit, "sh", "-ec", "touch /var/lib/keelmq/new; rm /var/lib/keelmq/new").returncode
            == 0
        )
        assert machine.within(unit, "ls", "/home").stdout == ""
        assert machine.within(unit, "test", "-e", "/dev/console").returncode != 0
        pid = machine.property(unit, "MainPID")
        status = dict(
            line.split(":\t", 1)
            for line in machine.run("cat", f"/proc/{pid}/status").splitlines()
            if ":\t" in line
        )
        assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_a_stop_hands_over(cluster: Cluster) -> None:
    """The master leaves before its process ends; a message of before is read from the next one."""
    cluster.until_in_sync()
    cluster.mqadmin("updateTopic", "-n", cluster.name_servers, "-c", "DefaultCluster", "-t", "orders")
    cluster.mqadmin("sendMessage", "-n", cluster.name_servers, "-t", "orders", "-p", "before")
    master = cluster.master()
    master.run("systemctl", "stop", BROKER)
    assert master.property(BROKER, "ActiveState") == "inactive"
    assert master.property(BROKER, "Result") == "success"
    assert cluster.master() is not master
    cluster.mqadmin("sendMessage", "-n", cluster.name_servers, "-t", "orders", "-p", "after")
    read = cluster.mqadmin("consumeMessage", "-n", cluster.name_servers, "-t", "orders")
    assert "BODY: before" in read and "BODY: after" in read
    said = master.journal("-u", BROKER)
    assert re.search(r"hand-over to broker \d+ took \d+ ms", said)
    assert "Killing process" not in said
    master.run("systemctl", "start", BROKER)
    cluster.until_in_sync()


@pytest.mark.parametrize("unit", [NAMESRV, BROKER])
def test_a_killed_program_is_started_again(cluster: Cluster, unit: str) -> None:
    cluster.until_in_sync()
    machine = cluster.master()
    before = machine.property(unit, "MainPID")
    machine.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", unit)
    until("a new start", lambda: machine.property(unit, "NRestarts") == "1")
    until("ready", lambda: machine.property(unit, "ActiveState") == "active")
    assert machine.property(unit, "MainPID") not in (before, "0")
    cluster.until_in_sync()
