"""keelmq upgrade with real processes of two versions under traffic: up, and back down.

The old version is the last commit whose servers do not report their version; the new one is this checkout,
which says that it is NEW. Each name server with its controller, and each broker, is on a loopback address of
its own.
"""

import asyncio
import importlib.metadata
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.lab.ack_log import AckLog
from cli.lab.cluster import Cluster, Launcher, Program
from cli.lab.container_cluster import ContainerCluster
from cli.lab.secure import credentials_path, secured
from cli.lab.traffic import Traffic, read_back
from keelmq import Credentials
from keelmq.client.admin import AdminClient
from keelmq.health.reach import Reach
from keelmq.health.status import ClusterStatus
from keelmq.health.summary import take_status
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from keelmq.remoting.operations.route import TopicConfig
from tests.support.pages import ROOT, blocks

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

OLD_COMMIT = "c8b656b1^"
OLD, NEW = "none", "0.2.0"
TOPIC = "orders"
RATE = 300
STOP_TIMEOUT_S = 60.0
SETTINGS = {"allAckInSyncStateSet": "true", "minInSyncReplicas": "2"}
UNITS = {
    "keelmq-namesrv": "namesrv-",
    "keelmq-controller": "controller-",
    "keelmq-broker": "broker-",
    "keelmq-container": "broker-",
}
"""Unit -> how the names of its programs begin."""
ALICE = Credentials("alice", "alice-secret")
SSH = """\
#!{python}
import socket, sys
*_, host, command = sys.argv
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("{socket}")
    connection.sendall(f"{{host}} {{command}}\\n".encode())
    answer = connection.makefile().readline().strip()
print(answer)
sys.exit(answer != "restarted")
"""
"""The program `ssh` of the test: another machine is a loopback address, and its systemctl is the test."""


class Versions(Launcher):
    """`of`: program -> the directories that Python imports it from."""

    def __init__(self, path: str) -> None:
        self.default, self.of = path, dict[str, str]()

    def host(self, name: str) -> str:
        return f"127.0.0.{int(name.rpartition('-')[2]) + 1}"

    def bind(self, name: str) -> str:
        return self.host(name)

    def command(self, program: Program) -> list[str]:
        path = self.of.get(program.name, self.default)
        _, *arguments = super().command(program)
        if program.name.startswith("controller-"):
            arguments.append("--controller-only")
        return ["env", f"PYTHONPATH={path}", sys.executable, "-P", *arguments]


@pytest.fixture(scope="module")
def old_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    git = [
        "git",
        "-c",
        "safe.directory=*",
        "-C",
        str(ROOT),
        "archive",
        OLD_COMMIT,
        "keelmq",
        "namesrv",
        "broker",
        "proxy",
    ]
    done = subprocess.run(git, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history does not have {OLD_COMMIT}: {done.stderr.decode().strip()}")
    directory = tmp_path_factory.mktemp("old")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory


def installed(directory: Path, version: str) -> str:
    """Returns the path of this checkout, as if it were installed with this version."""
    info = directory / "installed" / version / f"keelmq-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: keelmq\nVersion: {version}\n")
    plugins = importlib.metadata.distribution("keelmq").read_text("entry_points.txt") or ""
    (info / "entry_points.txt").write_text(plugins)
    return f"{info.parent}:{ROOT}"


class Apart(Cluster):
    """Its controllers are processes of their own, each on the machine of a name server. `controllers`."""

    def __init__(self, directory: Path, launcher: Launcher) -> None:
        super().__init__(directory, launcher=launcher, broker_settings=SETTINGS)
        self.controllers = [self._taken_out(each) for each in self.name_servers]

    @property
    def programs(self) -> list[Program]:
        return [*super().programs, *self.controllers]

    def _taken_out(self, name_server: Program) -> Program:
        of_controller = {key for key in name_server.settings if key.startswith("controller")}
        shared = {key: name_server.settings[key] for key in ("bindAddress", "httpPort")}
        settings = shared | {key: name_server.settings.pop(key) for key in of_controller}
        name_server.settings["enableControllerInNamesrv"] = "false"
        name = name_server.name.replace("namesrv", "controller")
        made = Program(name, "namesrv", self.directory, settings, name_server.controller_address)
        for each in (name_server, made):
            each.write()
        return made


class Acks(AckLog):
    """Knows the longest time between two acknowledgements."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_ms, self._last_ms = 0, 0

    def acknowledge(self, number: int, *, started_ms: int, now_ms: int, attempts: int) -> None:
        super().acknowledge(number, started_ms=started_ms, now_ms=now_ms, attempts=attempts)
        self.longest_ms = max(self.longest_ms, now_ms - (self._last_ms or now_ms))
        self._last_ms = now_ms


class Machines:
    """What ssh carries out: it installs a version, and restarts a unit with it. `restarted`: the units."""

    def __init__(
        self, cluster: Cluster, versions: Versions, paths: Mapping[str, str], directory: Path
    ) -> None:
        self._cluster, self._versions, self._paths = cluster, versions, paths
        self.socket, self.bin = directory / "machines", directory / "bin"
        self.restarted: list[tuple[str, str]] = []
        self.bin.mkdir()
        (self.bin / "ssh").write_text(SSH.format(python=sys.executable, socket=self.socket))
        (self.bin / "ssh").chmod(0o755)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with await asyncio.start_unix_server(self._answer, self.socket):
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, command = (await reader.readline()).decode().strip().partition(" ")
        form = r"sudo /opt/keelmq/bin/pip install keelmq==(\S+) && sudo systemctl restart (\S+)"
        found = re.fullmatch(form, command)
        assert found, command
        version, unit = found.groups()
        self.restarted.append((unit, host))
        of_unit = (each for each in self._cluster.programs if each.name.startswith(UNITS[unit]))
        program = next(each for each in of_unit if each.address.startswith(f"{host}:"))
        self._versions.of[program.name] = self._paths[version]
        await asyncio.to_thread(self._cluster.stop_program, program, STOP_TIMEOUT_S)
        self._cluster.start_program(program)
        writer.write(b"restarted\n")
        await writer.drain()
        writer.close()


def documented(name_servers: str, to: str) -> list[list[str]]:
    """Returns the commands of docs/machines.md, for this cluster."""
    (block,) = (
        each for each in blocks(ROOT / "docs" / "machines.md") if each.text.startswith("keelmq upgrade")
    )
    commands = [shlex.split(each)[1:] for each in block.script().splitlines()]
    assert [each[-2:-1] for each in commands] == [["0.2.0"], ["--restart"]]
    values = {commands[0][2]: name_servers, "0.2.0": to}
    return [[values.get(word, word) for word in each] for each in commands]


async def status(cluster: Cluster) -> ClusterStatus:
    async with Reach(2_000) as reach:
        return await take_status(reach, cluster.namesrv_addr.split(";"))


@asynccontextmanager
async def running(cluster: Cluster, groups: int = 1) -> AsyncIterator[None]:
    """All replicas are in sync, and there is a topic in the first group."""

    async def whole() -> str | None:
        found = await status(cluster)
        is_whole = len(found.groups) == groups and not found.problems
        is_whole = is_whole and all(len(each.sync_state_set) == 3 for each in found.groups)
        return found.groups[0].master_address if is_whole else None

    async def made(admin: AdminClient) -> bool:
        routes = [await admin.name_servers.topic_list(each.address) for each in cluster.name_servers]
        return all(TOPIC in each for each in routes)

    with cluster:
        cluster.start()
        master = await cluster.until("three in sync", whole, timeout_s=60)
        async with AdminClient() as admin:
            topic = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            await admin.brokers.update_topic(master, topic)
            await cluster.until("a route", lambda: made(admin), timeout_s=20)
        yield


@asynccontextmanager
async def traffic_of(
    cluster: Cluster, acks: Acks, credentials: Credentials | None = None
) -> AsyncIterator[None]:
    """Sends; when it is left, all sends have ended, and all messages are read back."""
    traffic = Traffic(cluster.namesrv_addr, TOPIC, acks, rate=RATE, credentials=credentials)
    traffic.start()

    async def enough(count: int) -> bool:
        traffic.check()
        return acks.acked >= count

    try:
        await cluster.until("traffic", lambda: enough(RATE), timeout_s=20)
        yield
        more = acks.acked + RATE
        await cluster.until("traffic afterwards", lambda: enough(more), timeout_s=20)
        await traffic.stop()
        await read_back(cluster.namesrv_addr, TOPIC, acks, credentials)
    finally:
        await traffic.close()


async def keelmq(machines: Machines, *arguments: str, until: str = "") -> tuple[int, list[str]]:
    """Returns the exit code and the lines of a keelmq command. until: it gets Ctrl-C at a line with this."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.keelmq",
        *arguments,
        cwd=ROOT,
        env={
            **os.environ,
            "PATH": f"{machines.bin}:{os.environ['PATH']}",
            "TMPDIR": str(machines.bin),
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    lines = []
    try:
        async for line in process.stdout:
            lines.append(line.decode().rstrip())
            print(lines[-1], flush=True)
            if until and until in lines[-1]:
                process.send_signal(signal.SIGINT)
        return await process.wait(), lines
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def steps_of(lines: list[str]) -> list[str]:
    return [each for each in lines if each.startswith("[")]


def versions_of(found: ClusterStatus) -> Iterator[str]:
    yield from (each.keelmq_version for each in found.name_servers)
    yield from (each.keelmq_version for each in found.controllers)
    yield from (each.keelmq_version for group in found.groups for each in group.replicas)


async def test_up_and_down_under_traffic(old_tree: Path, tmp_path: Path) -> None:
    paths = {OLD: str(old_tree), NEW: installed(tmp_path, NEW)}
    versions, acks = Versions(paths[OLD]), Acks()
    cluster = Cluster(tmp_path / "cluster", launcher=versions, broker_settings=SETTINGS)
    async with running(cluster):
        machines = Machines(cluster, versions, paths, tmp_path)
        async with machines.serving(), traffic_of(cluster, acks):
            of_new = ("upgrade", "-n", cluster.namesrv_addr, "--to", NEW)
            code, lines = await keelmq(machines, *of_new, until="[1/8] restart name server with controller")
            assert code == 130 and "stopped: interrupted" in lines[-1] and not machines.restarted
            _, upgrade = documented(cluster.namesrv_addr, NEW)
            code, lines = await keelmq(machines, *upgrade, until="[5/8] broker-a")
            assert code == 130 and len(steps_of(lines)) == 5, "the next run goes on with the others"
            code, lines = await keelmq(machines, *upgrade)
            assert code == 0 and len(steps_of(lines)) <= 3
            assert len(set(machines.restarted)) == len(machines.restarted) == 6
            for to in (OLD, NEW):
                machines.restarted.clear()
                show, upgrade = documented(cluster.namesrv_addr, to)
                code, plan = await keelmq(machines, *show)
                assert code == 0 and not machines.restarted
                code, lines = await keelmq(machines, *upgrade, "--timeout", "60")
                assert code == 0, "\n".join(lines)
                assert set(versions_of(await status(cluster))) == {"" if to == OLD else to}
                assert lines[-1] == f"done: every server has {to}"
                assert len(steps_of(plan)) == len(steps_of(lines)) == 8
                units = [unit for unit, _ in machines.restarted]
                name_servers, brokers = ["keelmq-namesrv"] * 3, ["keelmq-broker"] * 3
                assert units == (name_servers + brokers if to == NEW else brokers + name_servers)
                assert len(set(machines.restarted)) == 6
                code, lines = await keelmq(machines, *upgrade)
                assert code == 0 and lines == [f"nothing to do: every server has {to}"]
        nothing_is_lost(acks)


async def test_containers_under_traffic(tmp_path: Path) -> None:
    """Three containers with a replica of two groups each: a container is one step, and its masters move
    before."""
    paths = {version: installed(tmp_path, version) for version in ("0.1.9", NEW)}
    versions, acks = Versions(paths["0.1.9"]), Acks()
    cluster = ContainerCluster(
        tmp_path / "cluster",
        groups=("broker-a", "broker-b"),
        containers=3,
        launcher=versions,
        broker_settings=SETTINGS,
    )
    containers = ";".join(
        f"{each.own['brokerContainerIP']}:{each.own['listenPort']}" for each in cluster.containers
    )
    async with running(cluster, groups=2):
        machines = Machines(cluster, versions, paths, tmp_path)
        async with machines.serving(), traffic_of(cluster, acks):
            _, upgrade = documented(cluster.namesrv_addr, NEW)
            code, lines = await keelmq(machines, *upgrade, "--timeout", "60")
            assert code == 1 and "name that with --container" in lines[-1] and not machines.restarted
            code, lines = await keelmq(machines, *upgrade, "--container", containers, "--timeout", "60")
            assert code == 0, "\n".join(lines)
            assert set(versions_of(await status(cluster))) == {NEW}
            units = [unit for unit, _ in machines.restarted]
            assert units == ["keelmq-namesrv"] * 3 + ["keelmq-container"] * 3
            assert sum("handed over in" in each for each in lines) >= 2
        nothing_is_lost(acks)


async def test_a_closed_cluster_under_traffic(tmp_path: Path) -> None:
    """TLS, users and ACLs, and members that authenticate each other: the messages are those of a user who
    may send and read one topic."""
    paths = {version: installed(tmp_path, version) for version in ("0.1.9", NEW)}
    versions, acks = Versions(paths["0.1.9"]), Acks()
    hosts = tuple(versions.host(f"broker-{index}") for index in range(3))
    with secured(tmp_path, "KeelCluster", hosts=hosts) as keys:
        cluster = Cluster(
            tmp_path / "cluster",
            launcher=versions,
            namesrv_settings=keys,
            broker_settings=SETTINGS | keys,
        )
        async with running(cluster):
            await create_alice(cluster)
            machines = Machines(cluster, versions, paths, tmp_path)
            async with machines.serving(), traffic_of(cluster, acks, ALICE):
                _, upgrade = documented(cluster.namesrv_addr, NEW)
                code, lines = await keelmq(machines, *upgrade)
                assert code == 3 and not machines.restarted
                assert len(lines) == 1 and "next: if they accept only TLS, give --credentials" in lines[0]
                as_admin = ("--credentials", str(credentials_path(tmp_path)), "--timeout", "60")
                code, lines = await keelmq(machines, *upgrade, *as_admin)
                assert code == 0, "\n".join(lines)
                assert set(versions_of(await status(cluster))) == {NEW}
                units = [unit for unit, _ in machines.restarted]
                assert units == ["keelmq-namesrv"] * 3 + ["keelmq-broker"] * 3
            nothing_is_lost(acks)


async def create_alice(cluster: Cluster) -> None:
    """Name servers have users of their own; those of a group are its master's."""
    info = UserInfo(username=ALICE.access_key, password=ALICE.secret_key, user_type="Normal")
    rights = {f"Topic:{TOPIC}": ["Pub", "Sub"], "Group:*": ["Sub"]}
    entries = [PolicyEntryInfo(resource=each, actions=rights[each], decision="Allow") for each in rights]
    policies = [PolicyInfo(policy_type="Custom", entries=entries)]
    master = (await status(cluster)).groups[0].master_address
    async with AdminClient() as admin:
        for address in (master, *(each.address for each in cluster.name_servers)):
            await admin.auth.create_user(address, info)
            await admin.auth.create_acl(
                address, AclInfo(subject=f"User:{ALICE.access_key}", policies=policies)
            )


async def test_controllers_of_their_own_under_traffic(tmp_path: Path) -> None:
    paths = {version: installed(tmp_path, version) for version in ("0.1.9", NEW)}
    versions, acks = Versions(paths["0.1.9"]), Acks()
    cluster = Apart(tmp_path / "cluster", versions)
    async with running(cluster):
        machines = Machines(cluster, versions, paths, tmp_path)
        async with machines.serving(), traffic_of(cluster, acks):
            _, upgrade = documented(cluster.namesrv_addr, NEW)
            code, lines = await keelmq(machines, *upgrade, "--timeout", "60")
            assert code == 0, "\n".join(lines)
            assert set(versions_of(await status(cluster))) == {NEW}
            units = [unit for unit, _ in machines.restarted]
            first, second = ["keelmq-namesrv"] * 3, ["keelmq-controller"] * 3
            assert units == [*first, *second, *["keelmq-broker"] * 3]
            assert sum(" the leader in " in each for each in lines) == 1
        nothing_is_lost(acks)


def nothing_is_lost(acks: Acks) -> None:
    report = acks.report()
    print(report.result_line(), f"failed={report.unacknowledged} longest_gap_ms={acks.longest_ms}")
    assert report.lost == 0 and report.damaged == 0 and report.unacknowledged == 0
