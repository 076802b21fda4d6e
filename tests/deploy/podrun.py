"""Runs the pods of rendered manifests without a cluster: their own commands, in network namespaces.

Each pod start gets a new network namespace with a new address (10.77.0.0/24, a bridge that is itself in a
namespace: the machine's network is not touched), a process namespace in which the program is process 1, and a
read-only root in which only the declared volumes can be written, by the declared user. A claim's folder
outlives its pods. One hosts file is the DNS: a pod's names appear PUBLISH_S after it starts, go with it, and
stand for its new address afterwards. Probes are those that the manifests declare.

Everything here runs in one thread, which is in a namespace of its own on the same bridge: see Lab.run().
Needs root and iproute2.
"""

import asyncio
import base64
import contextlib
import ctypes
import http.client
import os
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.deploy.objects import (
    Object,
    Objects,
    container,
    environment,
    expanded,
    pod_names,
    pod_spec,
    port_number,
    volume_of,
)

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("keelmq", "namesrv", "broker", "cli", "analytics")
PREFIX = "keelmq-pods"
NETWORK = "10.77.0"
CLIENT_ADDRESS = f"{NETWORK}.2"
FIRST_POD = 10
PUBLISH_S = 3.0
"""DNS is late: a pod that starts does not even know its own name."""
POLL_S = 0.1
LOG_TAIL_LINES = 15
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000

T = TypeVar("T")


class PodError(Exception):
    """Not what should have happened, with the end of the logs."""


def missing() -> str | None:
    """Why pods cannot be run on this machine; None: they can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            return f"no {tool} on this machine (packages iproute2, util-linux)"
    probe = f"{PREFIX}-{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return "this machine does not allow network namespaces"
    _ip("netns", "del", probe)
    return None


@dataclass(slots=True)
class Pod:
    """One ordinal of a StatefulSet; process and address change with every start."""

    name: str
    index: int
    stateful_set: Object
    address: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    started_at: float = 0.0
    published: bool = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def main_pid(self) -> int:
        """Process 1 of the pod, by its number out here."""
        assert self.process is not None, self.name
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (pid,) = path.read_text().split()
        return int(pid)


class Lab:
    """`with Lab(objects, tmp_path) as lab: lab.run(scenario)`. Nothing is left behind the block."""

    def __init__(self, objects: Objects, directory: Path) -> None:
        self._objects, self._directory = objects, directory
        self._id = f"{PREFIX}-{os.getpid()}"
        self.pods = {
            name: Pod(name, index, each)
            for each in objects.stateful_sets
            for index, name in enumerate(pod_names(each))
        }
        self._hosts = directory / "hosts"
        self._addresses = iter(range(FIRST_POD, 255))

    def __enter__(self) -> Self:
        _remove_leftovers()
        self._write_hosts()
        _ip("netns", "add", self._netns("hub"))
        _ip("-n", self._netns("hub"), "link", "add", "br0", "type", "bridge")
        _ip("-n", self._netns("hub"), "link", "set", "br0", "up")
        self._add_host("client", CLIENT_ADDRESS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods.values():
            if pod.running:
                self.kill(pod)
        _remove(self._id)

    def run(self, scenario: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The scenario in an event loop inside the pods' network, where their names resolve."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def inside() -> None:
            try:
                self._enter_network()
                outcome.append(asyncio.run(scenario()))
            except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
                failure.append(error)

        thread = threading.Thread(target=inside, name="inside the pods' network")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    # -- pods --------------------------------------------------------------------------------------------

    def of(self, component: str) -> list[Pod]:
        label = "app.kubernetes.io/component"
        return [
            pod
            for pod in self.pods.values()
            if pod.stateful_set["spec"]["selector"]["matchLabels"][label] == component
        ]

    def start(self, pod: Pod) -> None:
        """A new address, the old claims."""
        assert not pod.running, pod.name
        pod.address = f"{NETWORK}.{next(self._addresses)}"
        pod.started_at, pod.published = time.monotonic(), False
        self._add_host(pod.name, pod.address)
        script = self._directory / f"{pod.name}.sh"
        script.write_text(self._script(pod))
        inside = ["unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", str(script)]
        with self._log(pod).open("ab") as log:
            pod.process = subprocess.Popen(
                ["ip", "netns", "exec", self._netns(pod.name), *inside],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, pod: Pod) -> None:
        """SIGKILL, as when a pod is deleted by force or runs out of memory. Its names and network go, too."""
        assert pod.process is not None
        if pod.running:
            os.kill(pod.main_pid, signal.SIGKILL)
            pod.process.wait()
        self._gone(pod)

    def lose(self, pod: Pod) -> None:
        """Its node is gone: nobody hears a last word of it."""
        self.cut(pod)
        self.kill(pod)

    def cut(self, pod: Pod) -> None:
        _ip("-n", self._netns("hub"), "link", "set", self._port(pod.name), "down")

    def terminate(self, pod: Pod) -> int:
        """SIGTERM to process 1; its exit code. PodError when the declared grace is not enough."""
        assert pod.process is not None
        grace_s = pod_spec(pod.stateful_set)["terminationGracePeriodSeconds"]
        os.kill(pod.main_pid, signal.SIGTERM)
        try:
            code = pod.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            raise PodError(f"{pod.name} still runs after {grace_s} s of grace\n{self.tail(pod)}") from None
        self._gone(pod)
        return code

    def exec(self, pod: Pod, *command: str) -> str:
        """As `kubectl exec`. What it prints; PodError for any exit code but 0."""
        inside = ["nsenter", "--target", str(pod.main_pid), "--mount", "--net", "--pid", "--root"]
        environment_of_pod = [f"{key}={value}" for key, value in self._environment(pod).items()]
        done = subprocess.run(
            [*inside, "--wd=/", "/usr/bin/env", "-i", *environment_of_pod, *_as_user(pod), *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        if done.returncode:
            raise PodError(f"{pod.name}: {shlex.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    # -- conditions --------------------------------------------------------------------------------------

    async def until(self, what: str, condition: Callable[[], Awaitable[T | None]], timeout_s: float) -> T:
        """What the condition gives once it is neither None nor False."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._publish()
            found = await condition()
            if found is not None and found is not False:
                return found
            for pod in self.pods.values():
                if pod.process is not None and pod.address and not pod.running:
                    raise PodError(f"{pod.name} ended with {pod.process.returncode}\n{self.tail(pod)}")
            if time.monotonic() > deadline:
                tails = "\n".join(self.tail(pod) for pod in self.pods.values())
                raise PodError(f"not within {timeout_s:g} s: {what}\n{tails}")
            await asyncio.sleep(POLL_S)

    async def until_ready(self, pods: Iterable[Pod], timeout_s: float) -> None:
        for pod in pods:
            for kind in ("startupProbe", "readinessProbe"):
                await self.until(f"{kind} of {pod.name}", partial(self._asked, pod, kind), timeout_s)

    async def _asked(self, pod: Pod, kind: str) -> bool:
        return await asyncio.to_thread(self.probe, pod, kind)

    def probe(self, pod: Pod, kind: str) -> bool:
        """As the kubelet asks: any status from 200 to 399 is a success, and no certificate is verified."""
        declared = container(pod.stateful_set)[kind]
        port = port_number(pod.stateful_set, declared["httpGet"]["port"])
        timeout_s = declared["timeoutSeconds"]
        connection = http.client.HTTPConnection(pod.address, port, timeout=timeout_s)
        if declared["httpGet"].get("scheme") == "HTTPS":
            unverified = ssl.create_default_context()
            unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
            connection = http.client.HTTPSConnection(pod.address, port, timeout=timeout_s, context=unverified)
        try:
            connection.request("GET", declared["httpGet"]["path"])
            return 200 <= connection.getresponse().status < 400
        except OSError:
            return False
        finally:
            connection.close()

    def connected_from(self, pod: Pod, port: int) -> set[str]:
        """Addresses with an established connection to the pod's port."""
        done = _ip(
            "netns", "exec", self._netns(pod.name), "ss", "-Htn", "state", "established", f"sport = :{port}"
        )
        return {
            line.split()[3].rpartition(":")[0].removeprefix("[::ffff:").rstrip("]")
            for line in done.splitlines()
        }

    def tail(self, pod: Pod) -> str:
        lines = self._log(pod).read_text(errors="replace").splitlines() if self._log(pod).exists() else []
        return "\n".join([f"  {pod.name}:", *(f"    {line}" for line in lines[-LOG_TAIL_LINES:])])

    # -- the machinery -----------------------------------------------------------------------------------

    def _netns(self, name: str) -> str:
        return f"{self._id}-{name}"

    def _log(self, pod: Pod) -> Path:
        return self._directory / f"{pod.name}.log"

    def _port(self, name: str) -> str:
        """The bridge's end of the cable to a host. 15 characters at most."""
        return "p-client" if name == "client" else f"p-{self.pods[name].address.rpartition('.')[2]}"

    def _add_host(self, name: str, address: str) -> None:
        host, hub = self._netns(name), self._netns("hub")
        _ip("netns", "add", host)
        _ip(
            "link",
            "add",
            self._port(name),
            "netns",
            hub,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            host,
        )
        _ip("-n", hub, "link", "set", self._port(name), "master", "br0", "up")
        _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", host, "link", "set", device, "up")

    def _gone(self, pod: Pod) -> None:
        _ip("netns", "del", self._netns(pod.name))
        pod.published, pod.address = False, ""
        self._write_hosts()

    def _publish(self) -> None:
        fresh = [
            pod
            for pod in self.pods.values()
            if pod.running and not pod.published and time.monotonic() - pod.started_at > PUBLISH_S
        ]
        for pod in fresh:
            pod.published = True
        if fresh:
            self._write_hosts()

    def _write_hosts(self) -> None:
        """In place: it is bound into every pod."""
        lines = ["127.0.0.1 localhost\n"]
        for pod in self.pods.values():
            if pod.published:
                space, service = (
                    pod.stateful_set["metadata"]["namespace"],
                    pod.stateful_set["spec"]["serviceName"],
                )
                assert self._objects.named("Service", service)["spec"]["publishNotReadyAddresses"]
                name = f"{pod.name}.{service}"
                full = f"{name}.{space}.svc"
                lines.append(f"{pod.address} {name} {name}.{space} {full} {full}.cluster.local\n")
        with self._hosts.open("w") as file:
            file.write("".join(lines))

    def _enter_network(self) -> None:
        """This thread, and those that it starts: the client's network, and the pods' names in /etc/hosts."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._netns('client')}") as netns:
            _check(libc.setns(netns.fileno(), CLONE_NEWNET))
        _check(libc.unshare(CLONE_NEWNS))
        _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
        _check(libc.mount(os.fsencode(self._hosts), b"/etc/hosts", None, MS_BIND, None))

    def _environment(self, pod: Pod) -> dict[str, str]:
        variables = environment(pod.stateful_set, index=pod.index, address=pod.address)
        if pod_spec(pod.stateful_set).get("enableServiceLinks", True):
            for service in self._objects.kind("Service"):
                variables[service["metadata"]["name"].upper().replace("-", "_") + "_SERVICE_HOST"] = (
                    "10.96.0.1"
                )
        path = f"{sys.prefix}/bin:/usr/bin:/bin"
        # as in the image: see deploy/docker/Dockerfile
        return {
            "PATH": path,
            "HOSTNAME": pod.name,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        } | variables

    def _script(self, pod: Pod) -> str:
        """What makes the pod's root and becomes its program. Runs as process 1 in namespaces of its own."""
        root = self._directory / f"{pod.name}-root"
        root.mkdir(exist_ok=True)
        lines = ["set -eu", f"root={shlex.quote(str(root))}", "mount -t tmpfs -o mode=755 tmpfs $root"]
        lines += ["mkdir -p $root/etc $root/proc $root/dev", "mount -t proc proc $root/proc"]
        lines += [
            "mount --bind /dev $root/dev",
            "cp /etc/ld.so.cache $root/etc/ || true",
            "echo 'hosts: files' > $root/etc/nsswitch.conf",
            "echo 'keelmq:x:10001:10001::/var/lib/keelmq:/bin/false' > $root/etc/passwd",
            "touch $root/etc/hosts",
            f"mount --bind {shlex.quote(str(self._hosts))} $root/etc/hosts",
        ]
        for mount in container(pod.stateful_set)["volumeMounts"]:
            source, target = shlex.quote(str(self._volume(pod, mount["name"]))), f"$root{mount['mountPath']}"
            lines += [f"mkdir -p {target}", f"mount --bind {source} {target}"]
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,bind,ro {target}")
        lines += _system_directories()  # after the volumes: the checkout may lie in /tmp
        if container(pod.stateful_set)["securityContext"]["readOnlyRootFilesystem"]:
            lines.append("mount -o remount,ro $root")
        variables = self._environment(pod)
        arguments = [expanded(each, variables) for each in container(pod.stateful_set)["args"]]
        command = [*_as_user(pod), *container(pod.stateful_set)["command"], *arguments]
        settings = [f"{key}={value}" for key, value in variables.items()]
        lines.append(f"exec env -i {shlex.join(settings)} /usr/sbin/chroot $root {shlex.join(command)}")
        return "\n".join(lines) + "\n"

    def _volume(self, pod: Pod, name: str) -> Path:
        """The folder behind a mount, with what must be in it, owned as fsGroup says."""
        volume = volume_of(pod.stateful_set, name)
        group = pod_spec(pod.stateful_set)["securityContext"]["fsGroup"]
        path = self._directory / f"{pod.name}-{name}"
        if "claim" not in volume:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(exist_ok=True)
        path.chmod(0o2775)
        os.chown(path, 0, group)
        if "configMap" in volume:
            data = self._objects.named("ConfigMap", volume["configMap"]["name"])["data"]
            for file, text in data.items():
                (path / file).write_text(text)
        if "secret" in volume:
            for file, text in _secret(self._objects.named("Secret", volume["secret"]["secretName"])).items():
                (path / file).write_bytes(text)
                (path / file).chmod(volume["secret"]["defaultMode"])
                os.chown(path / file, 0, group)
        return path


def _secret(secret: Object) -> dict[str, bytes]:
    return {name: base64.b64decode(text) for name, text in secret["data"].items()}


def _as_user(pod: Pod) -> list[str]:
    context = pod_spec(pod.stateful_set)["securityContext"]
    assert container(pod.stateful_set)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    return [
        *("setpriv", "--reuid", str(context["runAsUser"]), "--regid", str(context["runAsGroup"])),
        *("--groups", str(context["fsGroup"]), "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"),
    ]


def _system_directories() -> list[str]:
    """The machine's programs, our Python and our packages, at their own places, read-only."""
    lines = []
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib64"):
        if Path(name).is_symlink():
            lines.append(f"cp -P {name} $root{name}")
        elif Path(name).is_dir():
            lines += _bound(Path(name))
    # not the checkout itself: it may be closed to others
    for path in (sys.base_prefix, sys.prefix, *(str(ROOT / package) for package in PACKAGES)):
        if not Path(path).is_relative_to("/usr"):
            lines += _bound(Path(path))
    return lines


def _bound(path: Path) -> list[str]:
    quoted = shlex.quote(str(path))
    return [
        f"mkdir -p $root{quoted}",
        f"mount --bind {quoted} $root{quoted}",
        f"mount -o remount,bind,ro $root{quoted}",
    ]


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PodError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.startswith(f"{PREFIX}-")]


def _remove(lab: str) -> None:
    """Whatever runs in the namespaces of this lab, and they themselves."""
    for name in _namespaces():
        if name.startswith(f"{lab}-"):
            for pid in _ip("netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)


def _remove_leftovers() -> None:
    """Of a run that was killed: its process number, the middle of the name, is nobody's any more."""
    for name in _namespaces():
        owner = name.removeprefix(f"{PREFIX}-").partition("-")[0]
        if not Path(f"/proc/{owner}").exists():
            _remove(f"{PREFIX}-{owner}")
