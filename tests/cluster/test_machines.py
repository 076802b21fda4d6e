"""keelmq init: three machines from the wheel and the written files, by what it says to type, and a fail-over.

A machine is a network namespace with its own /etc, /var/lib and /opt. The commands that keelmq init prints
are carried out there, but for sudo, for scp (the files are copied), and for systemctl: the test starts
ExecStart of the units that are to be enabled, as their user and without capabilities.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from cli.machines.init import COPIED, PREFIX
from tests.cluster.netns import Network, why_not
from tests.deploy.test_systemd import COMMON, ETC, settings

ROOT = Path(__file__).parents[2]
UV = ROOT / ".tools" / "bin" / "uv"
SCRIPT = Path(__file__).with_name("machine.sh")
TOOLS = ("setpriv", "unshare", "systemd-sysusers", "systemd-tmpfiles")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
DEADLINE_S = 120.0
POLL_S = 0.2

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
    pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}"),
]


class Machine:
    """`prefix`: in front of a command line, to run it in its namespaces. `python`: where Python is, whose
    parent directories only root may open."""

    def __init__(
        self, directory: Path, environment: Path, prefix: tuple[str, ...], python: str = sys.base_prefix
    ) -> None:
        self.directory = directory
        self._command = [*prefix, "sh", str(SCRIPT), str(directory), str(environment), python]
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("opt/keelmq", "var-lib", "home"):
            (directory / name).mkdir(parents=True)
        shutil.copytree("/etc", directory / "etc", symlinks=True, ignore=shutil.ignore_patterns("keelmq*"))

    def run(self, *command: str, environ: Mapping[str, str] | None = None) -> str:
        given = environ or {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home")}
        line = [*self._command, *command]
        done = subprocess.run(line, env=given, capture_output=True, text=True, timeout=150)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, unit: str) -> None:
        """As systemd starts it; returns once it is ready."""
        common = settings(COMMON)["Service"]
        service = settings(self.directory / "etc" / "systemd" / "system" / f"{unit}.service")["Service"]
        user, group, state = common["User"], common["Group"], common["StateDirectory"]
        self.run("install", "-d", "-m", "750", "-o", user, "-g", group, f"/var/lib/{state}")
        environ = {"PATH": "/usr/bin:/bin"}
        if (file := service.get("EnvironmentFile")) is not None:
            lines = self.run("cat", file).splitlines()
            environ |= dict(shlex.split(line)[0].split("=", 1) for line in lines if not line.startswith("#"))
        limits = (
            "--reuid",
            user,
            "--regid",
            group,
            "--clear-groups",
            "--bounding-set=-all",
            "--no-new-privs",
        )
        command = [
            *self._command,
            "setpriv",
            *limits,
            "--pdeathsig",
            "KILL",
            *shlex.split(service["ExecStart"]),
        ]
        with self.log(unit).open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        self._started[unit] = process
        until(f"{unit} is ready", lambda: "ready: " in self.log(unit).read_text(), process, self.log(unit))

    def log(self, unit: str) -> Path:
        return self.directory / f"{unit}.log"

    def kill(self, unit: str) -> None:
        process = self._started.pop(unit)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in self._started.values():
            process.terminate()
        for unit in list(self._started):
            self.kill(unit)


def until(
    what: str,
    holds: Callable[[], bool],
    process: subprocess.Popen[bytes] | None = None,
    log: Path | None = None,
) -> None:
    """Fails if it does not hold in time, or if the process ends before."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        told = f"{what}: not within {DEADLINE_S} s; {log.read_text() if log else ''}"
        assert time.monotonic() < end and (process is None or process.poll() is None), told
        threading.Event().wait(POLL_S)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment at PREFIX that has the wheel and the packages that it names, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    hooks = os.environ | {"HATCH_BUILD_NO_HOOKS": "true"}
    done = subprocess.run(build, cwd=ROOT, env=hooks, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    (folder / "environment").mkdir(mode=0o755)
    builder = Machine(folder / "builder", folder / "environment", ("unshare", "--mount"), python="")
    into = ("--quiet", "--python", f"{PREFIX}/bin/python")
    base = f"{sys.base_prefix}/bin/python3"
    builder.run(str(UV), "venv", "--quiet", "--allow-existing", "--python", base, PREFIX, environ=os.environ)
    for packages in (
        ("--require-hashes", "-r", str(ROOT / "requirements" / "run.txt")),
        ("--no-deps", str(wheel)),
    ):
        install = (str(UV), "pip", "install", *into, "--compile-bytecode", *packages)
        builder.run(*install, environ=os.environ)
    builder.run(str(UV), "pip", "check", *into)
    return folder / "environment"


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(3) as network:
        yield network


def test_three_machines_by_what_is_typed(environment: Path, network: Network, tmp_path: Path) -> None:
    hosts = [network.address(number) for number in range(3)]
    machines = [Machine(tmp_path / host, environment, network.prefix(n)) for n, host in enumerate(hosts)]
    options = [word for host in hosts for word in ("--host", host)]
    (tmp_path / "files").mkdir()
    written = machines[0].run(f"{PREFIX}/bin/keelmq", "init", str(tmp_path / "files"), *options, "--json")
    (_copies, (title, commands), (_then, (status,))) = (each.values() for each in json.loads(written)["next"])
    assert title.startswith(f"on {', '.join(hosts)}: ")
    install, *configure, enable = (command.replace("sudo ", "") for command in commands)
    assert install == f"python3 -m venv {PREFIX} && {PREFIX}/bin/pip install keelmq"  # the fixture
    reload, units = enable.split(" && ")
    assert reload == "systemctl daemon-reload" and units.startswith("systemctl enable --now ")
    try:
        for host, machine in zip(hosts, machines, strict=True):
            shutil.copytree(tmp_path / "files" / host, machine.directory / "home" / COPIED)
            for command in configure:
                machine.run("sh", "-c", command)
            for unit in units.split()[3:]:
                machine.start(unit)
        lose_the_master(machines, hosts)
        assert "Traceback" not in "".join(log.read_text() for log in tmp_path.glob("*/*.log"))
        machines[0].start("keelmq-console")
        assert "nothing is wrong" in machines[0].run("sh", "-c", status)
    finally:
        for machine in machines:
            machine.stop()


def lose_the_master(machines: list[Machine], hosts: list[str]) -> None:
    """kill -9: another one takes messages, and has those from before. Then the old one is started again."""
    name_servers = ";".join(f"{host}:9876" for host in hosts)
    controllers = ";".join(f"{host}:9878" for host in hosts)

    def mqadmin(*command: str) -> str:
        return machines[0].run(f"{PREFIX}/bin/mqadmin", *command)

    def group() -> dict[str, object]:
        shown = mqadmin("getSyncStateSet", "-a", controllers, "-b", "broker-a", "--json")
        found: dict[str, object] = json.loads(shown)["broker-a"]
        return found

    def in_sync() -> int:
        members = group()["inSyncReplicas"]
        assert isinstance(members, list)
        return len(members)

    until("three in sync", lambda: in_sync() == 3)
    mqadmin("updateTopic", "-n", name_servers, "-c", "DefaultCluster", "-t", "orders")
    mqadmin("sendMessage", "-n", name_servers, "-t", "orders", "-p", "before")
    address = str(group()["masterAddress"])
    master = machines[hosts.index(address.partition(":")[0])]
    master.kill("keelmq-broker")
    until("another master", lambda: group()["masterAddress"] not in ("", None, address))
    mqadmin("sendMessage", "-n", name_servers, "-t", "orders", "-p", "after")
    read = mqadmin("consumeMessage", "-n", name_servers, "-t", "orders")
    assert "BODY: before" in read and "BODY: after" in read
    master.start("keelmq-broker")
    until("three in sync again", lambda: in_sync() == 3)


def test_the_units_of_the_wheel_are_those_of_the_checkout(environment: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages/cli/machines/etc")
    files = {path.relative_to(ETC): path.read_bytes() for path in ETC.rglob("*") if path.is_file()}
    assert {p.relative_to(installed): p.read_bytes() for p in installed.rglob("*") if p.is_file()} == files
