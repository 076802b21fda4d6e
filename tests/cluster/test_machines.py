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
SIGN_IN = (
    f"{PREFIX}/bin/python",
    "-c",
    """
import json, ssl, sys, urllib.request
from pathlib import Path
from cli.credentials import read_credentials
page, admin = sys.argv[1], Path(sys.argv[2])
with_cookies = [urllib.request.HTTPCookieProcessor()]
if page.startswith("https"):
    trusted = ssl.create_default_context(cafile=admin / "ca.crt")
    with_cookies.append(urllib.request.HTTPSHandler(context=trusted))
opener = urllib.request.build_opener(*with_cookies)
if sys.argv[2]:
    user = read_credentials(admin / "credentials.yml").credentials
    body = json.dumps({"user": user.access_key, "password": user.secret_key}).encode()
    asked = urllib.request.Request(f"{page}/v1/console/login", body, {"content-type": "application/json"})
    opener.open(asked, timeout=20).close()
print(opener.open(f"{page}/v1/console/status", timeout=20).read().decode())
""",
)
"""Logs in to a console as the administrator, and prints the state of the cluster: the page, and the directory
with the credentials ("": does not log in)."""
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
        done = self._done(command, environ)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *command: str, environ: Mapping[str, str] | None = None) -> str:
        """Returns what a command that must fail says."""
        done = self._done(command, environ)
        assert done.returncode != 0, f"{shlex.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _done(
        self, command: tuple[str, ...], environ: Mapping[str, str] | None
    ) -> subprocess.CompletedProcess[str]:
        given = environ or {"PATH": os.environ["PATH"], "HOME": str(self.directory / "home")}
        line = [*self._command, *command]
        return subprocess.run(line, env=given, capture_output=True, text=True, timeout=150)

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


@pytest.fixture
def machines(environment: Path, network: Network, tmp_path: Path) -> Iterator[list[Machine]]:
    hosts = [network.address(number) for number in range(3)]
    found = [Machine(tmp_path / host, environment, network.prefix(n)) for n, host in enumerate(hosts)]
    try:
        yield found
    finally:
        for machine in found:
            machine.stop()


def install(machines: list[Machine], hosts: list[str], files: Path, *arguments: str) -> list[list[str]]:
    """Does on each machine what `keelmq init` prints; returns the commands of its last steps."""
    options = [word for host in hosts for word in ("--host", host)]
    files.mkdir()
    written = machines[0].run(f"{PREFIX}/bin/keelmq", "init", str(files), *options, *arguments, "--json")
    _copies, (title, commands), *others = (each.values() for each in json.loads(written)["next"])
    assert title.startswith(f"on {', '.join(hosts)}: ")
    install, *configure, enable = (command.replace("sudo ", "") for command in commands)
    assert install == f"python3 -m venv {PREFIX} && {PREFIX}/bin/pip install keelmq"  # the fixture
    reload, units = enable.split(" && ")
    assert reload == "systemctl daemon-reload" and units.startswith("systemctl enable --now ")
    for host, machine in zip(hosts, machines, strict=True):
        shutil.copytree(files / host, machine.directory / "home" / COPIED)
        for command in configure:
            machine.run("sh", "-c", command)
        for unit in units.split()[3:]:
            machine.start(unit)
    return [found for _title, found in others]


def test_three_machines_by_what_is_typed(machines: list[Machine], network: Network, tmp_path: Path) -> None:
    hosts = [network.address(number) for number in range(3)]
    ((status,),) = install(machines, hosts, tmp_path / "files")
    lose_the_master(machines, hosts, environ_of(machines[0]))
    assert "Traceback" not in "".join(log.read_text() for log in tmp_path.glob("*/*.log"))
    machines[0].start("keelmq-console")
    assert "nothing is wrong" in machines[0].run("sh", "-c", status)


def test_three_secure_machines_by_what_is_typed(
    machines: list[Machine], network: Network, tmp_path: Path
) -> None:
    """Unsigned requests are refused, a fail-over works, and no machine has a key of another."""
    hosts = [network.address(number) for number in range(3)]
    files = tmp_path / "files"
    then, _keys_of_the_cas = install(machines, hosts, files, "--secure")
    keys = [
        {key for path in (machine.directory / "etc" / "keelmq").rglob("*.key") for key in [path.read_bytes()]}
        for machine in machines
    ]
    assert [len(each) for each in keys] == [3, 3, 3] and len(set().union(*keys)) == 9
    here = environ_of(machines[0])
    administrator = here | {"KEELMQ_CREDENTIALS": str(files / "admin" / "credentials.yml")}
    client = here | {"KEELMQ_CREDENTIALS": str(files / "client" / "credentials.yml")}
    until("three in sync", lambda: members_in_sync(machines[0], hosts, administrator) == 3)
    *create_users, status = then
    machines[0].run("sh", "-ec", "\n".join(create_users), environ=here)
    lose_the_master(machines, hosts, administrator, client)
    send = [
        f"{PREFIX}/bin/mqadmin",
        "sendMessage",
        "-n",
        f"{hosts[0]}:9876",
        "-t",
        "orders",
        "-p",
        "unsigned",
    ]
    assert "lost" in machines[0].refused(*send)
    with_tls = [send[0], "--tls-ca", str(files / "client" / "ca.crt"), *send[1:]]
    assert "username cannot be null" in machines[0].refused(*with_tls)
    update = ["updateTopic", "-n", f"{hosts[0]}:9876", "-c", "DefaultCluster", "-t", "mine"]
    assert "NO_PERMISSION" in machines[0].refused(send[0], *update, environ=client)
    machines[0].start("keelmq-console")
    assert "401" in machines[0].refused(*SIGN_IN, "http://127.0.0.1:8082", "")
    for page in ("http://127.0.0.1:8082", f"https://{hosts[0]}:19876"):
        shown = machines[0].run(*SIGN_IN, page, str(files / "admin"))
        assert "broker-a" in shown and "NO_PERMISSION" not in shown, shown
    shown = machines[0].run("sh", "-ec", f"{create_users[0]}\n{status}", environ=here)
    assert "nothing is wrong" in shown
    assert "Traceback" not in "".join(log.read_text() for log in tmp_path.glob("*/*.log"))


def environ_of(machine: Machine) -> dict[str, str]:
    """Of somebody who has KeelMQ in the PATH."""
    return {"PATH": f"{PREFIX}/bin:{os.environ['PATH']}", "HOME": str(machine.directory / "home")}


def members_in_sync(machine: Machine, hosts: list[str], environ: Mapping[str, str]) -> int:
    controllers = ";".join(f"{host}:9878" for host in hosts)
    command = ("getSyncStateSet", "-a", controllers, "-b", "broker-a", "--json")
    shown = json.loads(machine.run(f"{PREFIX}/bin/mqadmin", *command, environ=environ))
    return len(shown["broker-a"]["inSyncReplicas"])


def lose_the_master(
    machines: list[Machine],
    hosts: list[str],
    administrator: Mapping[str, str],
    client: Mapping[str, str] | None = None,
) -> None:
    """kill -9: another one takes messages, and has those from before. Then the old one is started again.
    `administrator`, `client`: the environments of their commands."""
    name_servers = ";".join(f"{host}:9876" for host in hosts)
    controllers = ";".join(f"{host}:9878" for host in hosts)

    def mqadmin(*command: str, environ: Mapping[str, str] = administrator) -> str:
        return machines[0].run(f"{PREFIX}/bin/mqadmin", *command, environ=environ)

    def group() -> dict[str, object]:
        shown = mqadmin("getSyncStateSet", "-a", controllers, "-b", "broker-a", "--json")
        found: dict[str, object] = json.loads(shown)["broker-a"]
        return found

    def in_sync() -> int:
        return members_in_sync(machines[0], hosts, administrator)

    until("three in sync", lambda: in_sync() == 3)
    mqadmin("updateTopic", "-n", name_servers, "-c", "DefaultCluster", "-t", "orders")
    user = administrator if client is None else client
    mqadmin("sendMessage", "-n", name_servers, "-t", "orders", "-p", "before", environ=user)
    address = str(group()["masterAddress"])
    master = machines[hosts.index(address.partition(":")[0])]
    master.kill("keelmq-broker")
    until("another master", lambda: group()["masterAddress"] not in ("", None, address))
    mqadmin("sendMessage", "-n", name_servers, "-t", "orders", "-p", "after", environ=user)
    read = mqadmin("consumeMessage", "-n", name_servers, "-t", "orders", environ=user)
    assert "BODY: before" in read and "BODY: after" in read
    master.start("keelmq-broker")
    until("three in sync again", lambda: in_sync() == 3)


def test_the_units_of_the_wheel_are_those_of_the_checkout(environment: Path) -> None:
    (installed,) = environment.glob("lib/python*/site-packages/cli/machines/etc")
    files = {path.relative_to(ETC): path.read_bytes() for path in ETC.rglob("*") if path.is_file()}
    assert {p.relative_to(installed): p.read_bytes() for p in installed.rglob("*") if p.is_file()} == files
