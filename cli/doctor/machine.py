"""This machine: whether it has the ports, directories and limits that its configuration files need.

For files of other machines, run the doctor there.
"""

import hashlib
import os
import resource
import shutil
import socket
import stat
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from broker.app.start_check import start_refusal
from broker.config.broker_config import BrokerConfig
from cli.doctor.files import ConfigFile, Kind
from keelmq.health.findings import Finding, Level, count, failed, ok, warning
from keelmq.remoting.addresses import is_loopback
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.listener_settings import ListenersConfig
from keelmq.runtime.compiled import built
from keelmq.runtime.config import ConfigError

OPEN_FILES_MIN = 4_096
FREE_BYTES_MIN = 64 << 20
DISK_USED_WARNING = 0.85
KV_DEFAULT = Path("~/namesrv/kvConfig.json")
WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Port:
    """`role`: "namesrv", "controller", "broker", "container", "fast" or "http" answer requests; "raft", "HA"
    and "gRPC" do not."""

    role: str
    host: str
    number: int


class Owner(Enum):
    """The program that answers at a port of a file, as far as its answer shows."""

    ITSELF = "the program of the file"
    WITHHELD = "a server that answers only to credentials, or only over TLS"
    ANOTHER = "another program"


Probe = Callable[[ConfigFile, Port], Awaitable[Owner]]
"""Returns whether this file's own program answers at the port."""


def host_of(file: ConfigFile) -> str:
    """Returns the address of the machine that a file is for; "" if it fits any machine."""
    if file.controller is not None:
        return file.controller.request_addresses[file.controller.controller_d_leger_self_id][0]
    if file.broker is not None:
        chosen = file.broker.broker_ip1 or file.broker.bind_address
    elif file.container is not None:
        chosen = file.container.broker_container_ip or file.container.bind_address
    elif file.proxy is not None:
        chosen = file.proxy.proxy_address or file.proxy.bind_address
    else:
        assert file.namesrv is not None
        chosen = file.namesrv.bind_address
    return "" if chosen in WILDCARDS else chosen


def is_ours(address: str) -> bool:
    """Returns whether this machine has this IP address. Binding a datagram socket sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def http_port_of(file: ConfigFile) -> int | None:
    """Returns the HTTP port of a name server or controller; None: no HTTP, 0: the system chooses."""
    assert file.namesrv is not None
    bound = file.namesrv.listen_port
    if file.kind is Kind.CONTROLLER and file.controller is not None:
        bound = file.controller.request_addresses[file.controller.controller_d_leger_self_id][1]
    return file.namesrv.http_listen_port(bound)


def ports_of(file: ConfigFile) -> list[Port]:
    """Returns the fixed ports of a file; port 0 is left out."""
    found: list[Port] = []
    if file.namesrv is not None:
        host, listen = file.namesrv.bind_address, file.namesrv.listen_port
        if file.kind is Kind.NAMESRV:
            found.append(Port("namesrv", host, listen))
            found += _further(file.namesrv)
        found.append(Port("http", file.namesrv.http_bind_address or host, http_port_of(file) or 0))
    if file.controller is not None:
        self_id = file.controller.controller_d_leger_self_id
        for role, members in (
            ("controller", file.controller.request_addresses),
            ("raft", file.controller.raft_addresses),
        ):
            host, number = members[self_id]
            found.append(Port(role, host if is_loopback(host) else "0.0.0.0", number))
    if file.broker is not None:
        host, listen = file.broker.bind_address, file.broker.listen_port
        found.append(Port("broker", host, listen))
        found += _further(file.broker)
        found.append(Port("fast", host, max(file.broker.fast_listen_port, 0)))
        if file.broker.has_ha_port and listen:
            found.append(Port("HA", host, file.broker.ha_port))
        if file.broker.enable_proxy:
            found.append(Port("gRPC", host, file.broker.grpc_server_port))
        http = http_listen_port(file.broker.http_port, listen_port=listen, bound_port=listen)
        found.append(Port("http", file.broker.http_bind_address or host, http or 0))
    if file.container is not None:
        host, listen = file.container.bind_address, file.container.listen_port
        found.append(Port("container", host, listen))
        found.append(Port("fast", host, max(file.container.fast_listen_port, 0)))
        http = http_listen_port(file.container.http_port, listen_port=listen, bound_port=listen)
        found.append(Port("http", file.container.http_bind_address or host, http or 0))
    if file.proxy is not None:
        host, listen = file.proxy.bind_address, file.proxy.grpc_server_port
        found.append(Port("gRPC", host, listen))
        http = http_listen_port(file.proxy.http_port, listen_port=listen, bound_port=listen)
        found.append(Port("http", file.proxy.http_bind_address or host, http or 0))
    return [port for port in found if port.number]


def _further(config: ListenersConfig) -> list[Port]:
    return [Port(f"listener {name}", *at) for name, at in config.further_listeners.items()]


async def check_ports(file: ConfigFile, probe: Probe) -> list[Finding]:
    """Returns one OK if all ports of the file are free or its own program has them, one warning if a server
    has them that does not identify itself, else a failure per taken port."""
    ports = ports_of(file)
    taken = [port for port in ports if not _is_free(port)]
    if not taken:
        numbers = ", ".join(f"{port.number} ({port.role})" for port in ports)
        return [ok("machine.ports", file.name, f"free: {numbers}")] if ports else []
    owners = [await probe(file, port) for port in taken if _answers(file, port)]
    numbers = ", ".join(str(port.number) for port in taken)
    if Owner.ITSELF in owners:
        text = f"in use by {file.kind} itself, which is running: {numbers}"
        return [ok("machine.ports", file.name, text)]
    if Owner.WITHHELD in owners:
        text = (
            f"in use by {owner_of(taken[0].number)}, which does not say who it is without credentials or TLS"
        )
        step = (
            "give the cluster's credentials and CA, and doctor tells whether it is this file's own program: "
            "keelmq --tls-ca FILE doctor -c FILE --credentials FILE"
        )
        return [warning("machine.ports", file.name, f"{numbers}: {text}", step)]
    found = []
    for port in taken:
        text = f"port {port.number} ({port.role}) is in use by {owner_of(port.number)}"
        found.append(failed("machine.ports", file.name, text, "stop that program, or choose another port"))
    return found


def _answers(file: ConfigFile, port: Port) -> bool:
    """Returns whether the program shows at this port who it is. A proxy has only HTTP for that."""
    return port.role == "http" if file.proxy is not None else port.role not in ("raft", "HA", "gRPC", "http")


def _is_free(port: Port) -> bool:
    family = socket.AF_INET6 if ":" in port.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((port.host, port.number))
            probe.listen(1)
        except OSError:
            return False
    return True


def owner_of(port: int) -> str:
    """Returns the process that listens on a port, as far as Linux shows it; other users' only to root."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in (line.split() for line in lines):
            if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if any(os.readlink(link) in inodes for link in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                return f"process {process.name} ({command.strip()[:80]})"
        except OSError:
            continue  # it has ended, or is another user's
    return "another program (as its owner or root: ss -ltnp shows it)"


def check_directories(file: ConfigFile) -> list[Finding]:
    """Returns findings about the directories of a file: writable, with room, and of the same broker."""
    found: list[Finding] = []
    for label, path, needed in _directories(file):
        found += _directory(file.name, label, path, needed)
    if file.broker is not None and not count(found, Level.FAILED):
        found += _store(file.name, file.broker)
    return found


def _own_paths(file: ConfigFile) -> Iterator[tuple[str, Path]]:
    """Yields (key, path) of files and directories that no other process may use."""
    if file.broker is not None:
        yield "storePathRootDir", file.broker.store_path_root_dir
    if file.container is not None:
        yield "containerStatePath", file.container.state_path
    if file.controller is not None:
        yield "controllerStorePath", file.controller.directory
    if file.namesrv is not None and file.kind is Kind.NAMESRV:
        yield "kvConfigPath", (file.namesrv.kv_config_path or KV_DEFAULT).expanduser()


def _directories(file: ConfigFile) -> Iterator[tuple[str, Path, int]]:
    """Yields (key, directory, free bytes that it needs at least)."""
    if file.broker is not None:
        needed = 2 * file.broker.mapped_file_size_commit_log + FREE_BYTES_MIN
        yield "storePathRootDir", file.broker.store_path_root_dir, needed
        if file.broker.store_path_epoch_file is not None:
            yield "storePathEpochFile", file.broker.store_path_epoch_file.parent, 0
    if file.container is not None:
        yield "containerStatePath", file.container.state_path.parent, 0
    if file.controller is not None:
        yield "controllerStorePath", file.controller.directory, FREE_BYTES_MIN
    if file.namesrv is not None and file.kind is Kind.NAMESRV:
        for key, stored in (
            ("kvConfigPath", file.namesrv.kv_config_path or KV_DEFAULT),
            ("configStorePath", file.namesrv.config_store_path),
        ):
            if stored is not None:
                yield key, stored.expanduser().parent, 0


def _directory(name: str, key: str, path: Path, needed: int) -> Iterator[Finding]:
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        step = "name a directory, or remove that file"
        yield failed("machine.directories", name, f"{key}: {there} is not a directory", step)
        return
    if not os.access(there, os.W_OK | os.X_OK):
        step = f"{_user()} cannot write there: make it writable for the program's user, or choose another"
        yield failed("machine.directories", name, f"{key}: {there} is not writable", step)
        return
    disk = shutil.disk_usage(there)
    used = disk.used / (disk.used + disk.free)  # as df: blocks reserved for root are not free
    room = f"{key}: {path}, {_size(disk.free)} free ({used:.0%} used)"
    if disk.free < needed:
        step = f"at least {_size(needed)} are needed: free space, or choose another disk"
        yield failed("machine.directories", name, room, step)
    elif used > DISK_USED_WARNING:
        yield warning("machine.directories", name, room, "free space before it is full")
    else:
        yield ok("machine.directories", name, room)


def _store(name: str, broker: BrokerConfig) -> Iterator[Finding]:
    """Whether the broker would start with the existing files, by the checks of its start."""
    if (refusal := start_refusal(broker)) is not None:
        step = "its start would be refused, and change nothing: do what this says, and check again"
        yield failed("machine.directories", name, refusal, step)


def check_shared(files: Sequence[ConfigFile]) -> list[Finding]:
    """Returns findings about programs with the same port or directory: a failure if all are on this machine
    for certain (loopback addresses), else a warning."""
    wanted: dict[str, list[ConfigFile]] = defaultdict(list)
    for file in files:
        for port in ports_of(file):
            wanted[f"port {port.number}"].append(file)
        for key, path in _own_paths(file):
            wanted[f"{key} {path}"].append(file)
    found = []
    for what, users in wanted.items():
        if len(users) < 2:
            continue
        names = ", ".join(user.name for user in users)
        if all(is_loopback(host_of(user)) for user in users):
            step = "give each its own: they all run on this machine"
            found.append(failed("machine.ports", names, f"the same {what}", step))
        else:
            step = "acceptable on different machines; on one machine give each its own"
            found.append(warning("machine.ports", names, f"the same {what}", step))
    return found


def check_secrets(files: Sequence[ConfigFile]) -> list[Finding]:
    """Returns findings about keys of the raft port: present, long enough, private, the same in all files."""
    found: list[Finding] = []
    digests: dict[bytes, list[str]] = defaultdict(list)
    for file in files:
        controller = file.controller
        if controller is None or (
            controller.controller_raft_secret is None and controller.controller_raft_secret_file is None
        ):
            continue
        try:
            secret = controller.read_secret() or b""
        except ConfigError as error:
            make = "(umask 077; head -c 32 /dev/urandom | base64 > controller.secret)"
            step = f"create one file for all controllers: {make}"
            found.append(failed("config.secret", file.name, str(error), step))
            continue
        digests[hashlib.sha256(secret).digest()].append(file.name)
        found += _private_secret(file.name, controller.controller_raft_secret_file)
    if len(digests) > 1:
        text = " and ".join(", ".join(names) for names in digests.values())
        step = "copy one key to all controllers: they refuse each other otherwise"
        found.append(failed("config.secret", "controllerRaftSecretFile", f"different keys: {text}", step))
    return found


def _private_secret(name: str, path: Path | None) -> Iterator[Finding]:
    if path is None:
        step = "move it to a file of its own, mode 600, and name that in controllerRaftSecretFile"
        yield warning("config.secret", name, "the key of the raft port is in the file itself", step)
        return
    yield check_private(name, path) or ok("config.secret", name, f"{path}: long enough and private")


def check_private(name: str, path: Path) -> Finding | None:
    """Returns the problem of a key that others can read or change; None: they cannot."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o022:
        text = f"{path} (mode {mode:o}) can be changed by others, who could then join the controllers"
        return failed("config.secret", name, text, f"chmod 600 {path}, and create a new key")
    if mode & 0o004:
        text = f"{path} (mode {mode:o}) can be read by others"
        return warning("config.secret", name, text, f"chmod 600 {path} (in a pod: defaultMode 0400)")
    return None


def check_open_files() -> Finding:
    """Returns a warning if the hard limit of open files is below OPEN_FILES_MIN."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES_MIN:
        step = "raise it: `ulimit -Hn 65536`, LimitNOFILE= in systemd"
        return warning(
            "machine.open-files", "this machine", f"at most {hard} open files, one per connection", step
        )
    shown = "open files have no limit" if hard == resource.RLIM_INFINITY else f"at most {hard} open files"
    return ok("machine.open-files", "this machine", f"{shown} (the programs raise their soft limit)")


def check_compiled() -> Finding:
    """Returns an OK in any case: without a C compiler the modules are interpreted."""
    count, total = built()
    text = f"{count} of {total} modules of the data path are compiled"
    if count < total:
        text += (
            "; the others are interpreted: a send costs more (gcc and Python's headers, then ./run, or pip)"
        )
    return ok("machine.compiled", "this machine", text)


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit in ("bytes", "KiB") else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
