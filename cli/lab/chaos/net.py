"""A private network for the programs of a cluster, in which links can be cut.

This process moves into a new network namespace, which is the hub (a bridge), and into a new mount namespace;
every host is another network namespace with a link to the hub. None of it is visible from outside, and
the kernel removes all of it when its last process ends, however it ends. Addresses: 10.77.0.0/24, in
these namespaces only. Needs Linux, iproute2, nftables, and root or the right to make user namespaces.
"""

import ctypes
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

NETWORK = "10.77.0"
OUR_HOST = "client"
OUR_ADDRESS = f"{NETWORK}.1"
FIRST_ADDRESS = 10
LAST_ADDRESS = 250
TABLE = "chaos"
FILL_TRIES = 20
PROBE_TIMEOUT_S = 10
CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000


class NetError(Exception):
    """A network command failed; the text has the command and its error."""


@functools.cache
def missing() -> str | None:
    """Returns why this machine cannot have such a network; None: it can. Tries it in a separate process."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    for tool, package in (("ip", "iproute2"), ("nft", "nftables"), ("mount", "util-linux")):
        if shutil.which(tool) is None:
            return f"there is no {tool} on this machine (package {package})"
    trial = (
        "from cli.lab.chaos.net import Net; from pathlib import Path; import tempfile\n"
        "with tempfile.TemporaryDirectory() as d:\n"
        " n = Net(Path(d)); n.enter(); n.add('a'); n.add('b'); n.cut([('a', 'b')])"
    )
    tried = subprocess.run(
        [sys.executable, "-c", trial],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROBE_TIMEOUT_S,
        cwd=Path(__file__).parents[3],
    )
    if tried.returncode == 0:
        return None
    reason = tried.stderr.strip().splitlines()[-1:] or ["unknown reason"]
    return f"this machine does not permit network namespaces ({reason[0]})"


class Net:
    """Call enter() once, in a process without threads: the process stays inside. Then add hosts by name."""

    def __init__(self, directory: Path) -> None:
        self._hosts_file = directory / "hosts"
        self._addresses: dict[str, str] = {OUR_HOST: OUR_ADDRESS}
        self._used = 0
        self._mounts: list[Path] = []
        self._cuts: list[tuple[str, str]] = []

    def enter(self) -> None:
        """Moves this process into the new namespaces and makes the hub. NetError or OSError: not
        permitted."""
        libc = ctypes.CDLL(None, use_errno=True)
        uid, gid = os.geteuid(), os.getegid()
        flags = CLONE_NEWNS | CLONE_NEWNET | (0 if uid == 0 else CLONE_NEWUSER)
        _check(libc.unshare(flags), "unshare")
        if uid != 0:
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "mount --make-private")
        names = Path("/run/netns")
        place = names if names.is_dir() or os.access("/run", os.W_OK) else Path("/run")
        place.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(place))  # the names of hosts are private as well
        self._write_hosts()
        _check(libc.mount(os.fsencode(self._hosts_file), b"/etc/hosts", None, MS_BIND, None), "mount hosts")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "br0", "type", "bridge")
        _run("ip", "addr", "add", f"{OUR_ADDRESS}/24", "dev", "br0")
        _run("ip", "link", "set", "br0", "up")
        _add_filter(OUR_HOST)

    def add(self, host: str) -> str:
        """Adds a host; returns its address."""
        cable = self.cable(host)
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "link", "set", cable, "master", "br0", "up")
        for device in ("lo", "eth0"):
            _run("ip", "-n", host, "link", "set", device, "up")
        _add_filter(host)
        return self.move(host)

    def move(self, host: str) -> str:
        """Gives a host a new, unused address; its name resolves to it. Returns the address."""
        self._used += 1
        if FIRST_ADDRESS + self._used > LAST_ADDRESS:
            self._used = 1
        address = f"{NETWORK}.{FIRST_ADDRESS + self._used}"
        assert address not in self._addresses.values()
        _run("ip", "-n", host, "addr", "flush", "dev", "eth0")
        _run("ip", "-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
        self._addresses[host] = address
        self._write_hosts()
        return address

    def withdraw(self, host: str) -> None:
        """Takes a host's address away, and its name does not resolve any more, until move()."""
        _run("ip", "-n", host, "addr", "flush", "dev", "eth0")
        del self._addresses[host]
        self._write_hosts()

    def address(self, host: str) -> str:
        """Returns the host's current IP address. KeyError: there is no such host."""
        return self._addresses[host]

    def cable(self, host: str) -> str:
        """Returns the name of the hub's device that leads to the host."""
        name = f"p-{host}"
        assert len(name) <= 15, name  # the kernel's limit
        return name

    def command(self, host: str) -> list[str]:
        """Returns the command prefix that runs a program on the host."""
        return ["ip", "netns", "exec", host]

    # -- cuts --------------------------------------------------------------------------------------------

    def unplug(self, host: str) -> None:
        """Disconnects a host from all others."""
        _run("ip", "link", "set", self.cable(host), "down")

    def plug(self, host: str) -> None:
        """Connects a host again after unplug()."""
        _run("ip", "link", "set", self.cable(host), "up")

    def cut(self, ways: Sequence[tuple[str, str]]) -> None:
        """Drops packets of each (from, to). The opposite direction is a separate pair."""
        self._cuts += ways
        for source, target in ways:
            self._drop(source, target)

    def heal(self, ways: Sequence[tuple[str, str]]) -> None:
        """Undoes a cut() of these ways. Another cut of the same way stays."""
        for way in ways:
            self._cuts.remove(way)
        for host in {target for _, target in ways}:
            _inside(host, "nft", "flush", "chain", "inet", TABLE, "input")
            for source in {source for source, target in self._cuts if target == host}:
                self._drop(source, host)

    def _drop(self, source: str, target: str) -> None:
        rule = ("ip", "saddr", self.address(source), "drop")
        _inside(target, "nft", "add", "rule", "inet", TABLE, "input", *rule)

    # -- disks -------------------------------------------------------------------------------------------

    def mount_disk(self, path: Path, disk_bytes: int) -> None:
        """Mounts a file system in memory at `path`. It is gone with this process: see give_back()."""
        path.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={disk_bytes},mode=755", "tmpfs", str(path))
        self._mounts.append(path)

    def fill_disk(self, path: Path) -> None:
        """Leaves no free block: the disk shrinks to its content, at once and without using memory."""
        for _ in range(FILL_TRIES):
            space = os.statvfs(path)
            used_bytes = (space.f_blocks - space.f_bfree) * space.f_frsize
            try:
                return _run("mount", "-o", f"remount,size={used_bytes}", str(path))
            except NetError as error:  # its content has grown meanwhile
                problem = error
        raise problem

    def free_disk(self, path: Path, disk_bytes: int) -> None:
        """Gives a filled disk its size back (bytes)."""
        _run("mount", "-o", f"remount,size={disk_bytes}", str(path))

    def give_back(self, wanted: str) -> None:
        """Unmounts each disk; files that match the pattern are copied to the real disk, others are lost."""
        for path in self._mounts:
            rescued = path.with_name(path.name + ".rescued")
            for found in path.glob(wanted):
                target = rescued / found.relative_to(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copytree(found, target) if found.is_dir() else shutil.copy2(found, target)
            _run("umount", "--lazy", str(path))
            if rescued.exists():
                path.rmdir()
                rescued.rename(path)
        self._mounts.clear()

    # -- ours --------------------------------------------------------------------------------------------

    def _write_hosts(self) -> None:
        """Writes in place: the file is mounted over /etc/hosts, and running programs see the change."""
        lines = ["127.0.0.1 localhost\n"]
        lines += [f"{address} {host}\n" for host, address in self._addresses.items()]
        with self._hosts_file.open("w") as file:
            file.write("".join(lines))


def _add_filter(host: str) -> None:
    _inside(host, "nft", "add", "table", "inet", TABLE)
    hook = "{ type filter hook input priority 0 ; }"
    _inside(host, "nft", "add", "chain", "inet", TABLE, "input", hook)


def _inside(host: str, *command: str) -> None:
    """Runs a command on a host. This process is the hub: its own commands need no namespace."""
    _run(*([] if host == OUR_HOST else ["ip", "netns", "exec", host]), *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetError(f"{' '.join(command)}: {done.stderr.strip()}")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
