"""Members that are names: not resolvable yet, or standing for another address than before."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.transport import addresses
from namesrv.plugins.controller.raft.transport.addresses import AddressBook, listen_host, resolve
from tests.support.raft_group import Group, until

REAL = socket.getaddrinfo


class FakeDns:
    """Names that a test makes and takes away. `hold` keeps every look-up waiting."""

    def __init__(self) -> None:
        self.names: dict[str, list[tuple[socket.AddressFamily, str]]] = {}
        self.asked: list[str] = []
        self.hold: threading.Event | None = None

    def put(self, name: str, address: str, *more: tuple[socket.AddressFamily, str]) -> None:
        self.names[name] = [*more, (socket.AF_INET, address)]

    def getaddrinfo(self, host: str, port: int, *args: Any, **options: Any) -> list[Any]:
        if not host.startswith("pod-"):
            return REAL(host, port, *args, **options)
        self.asked.append(host)
        if self.hold is not None:
            self.hold.wait()
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family, socket.SOCK_STREAM, 6, "", (at, port)) for family, at in self.names[host]]


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDns]:
    fake = FakeDns()
    monkeypatch.setattr(addresses.socket, "getaddrinfo", fake.getaddrinfo)
    monkeypatch.setattr(addresses, "FRESH_S", 0.05)
    yield fake
    if fake.hold is not None:
        fake.hold.set()


def named_group(root: Path) -> Group:
    group = Group(root)
    group.members = {name: (f"pod-{name}", port) for name, (_, port) in group.members.items()}
    return group


async def test_a_member_that_comes_again_from_elsewhere(dns: FakeDns) -> None:
    """Also while its old name is still being looked up."""
    book = AddressBook({"n0": ("pod-n0", 1), "n1": ("10.0.0.1", 2)})
    dns.put("pod-n0", "10.0.0.9")
    dns.hold = threading.Event()
    assert book.lookup("n0") is None
    book.learn("n0", ("10.0.0.2", 3))
    book.learn("n1", ("pod-n0", 4))
    dns.hold.set()
    assert book.lookup("n0") == (socket.AF_INET, ("10.0.0.2", 3))
    await until(lambda: book.lookup("n1") is not None)
    assert book.lookup("n1") == (socket.AF_INET, ("10.0.0.9", 4))
    await until(lambda: not book._asking)
    assert book.lookup("n0") == (socket.AF_INET, ("10.0.0.2", 3)), "the old name's answer came late"


def leads(group: Group, members: set[str]) -> bool:
    """Somebody leads, with these members."""
    return any(
        one.is_active and members <= {name, *one.status()["connected"]} for name, one in group.running.items()
    )


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("::1", "::1"),
        ("keelmq-namesrv-0.keelmq-namesrv", "0.0.0.0"),
    ],
)
def test_what_a_member_binds(host: str, bound: str) -> None:
    assert listen_host(host) == bound


def test_ipv4_first_and_a_readable_refusal(dns: FakeDns) -> None:
    dns.put("pod-0", "127.0.0.9", (socket.AF_INET6, "fd00::9"))
    assert resolve("pod-0", 5) == (socket.AF_INET, ("127.0.0.9", 5))
    with pytest.raises(ConfigError, match="cannot resolve 'pod-1'"):
        resolve("pod-1", 5)


async def test_a_resolver_that_hangs_is_asked_once(dns: FakeDns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "FRESH_S", -1.0)
    dns.hold = threading.Event()
    book = AddressBook({"n0": ("pod-0", 1), "n1": ("127.0.0.1", 2)})
    assert [book.lookup("n0") for _ in range(20)] == [None] * 20
    assert book.lookup("n1") == (socket.AF_INET, ("127.0.0.1", 2))
    assert dns.asked == ["pod-0"]
    dns.put("pod-0", "127.0.0.1")
    dns.hold.set()
    await until(lambda: book.lookup("n0") is not None, "an answer of the resolver")


async def test_members_that_resolve_late_join(dns: FakeDns, tmp_path: Path) -> None:
    """Nobody knows its own name at the start; a group forms as soon as the names are there."""
    new_group = named_group(tmp_path)
    new_group.settings["bootstrap"] = True  # else the first start would wait for all three
    async with new_group as group:
        dns.put("pod-n1", "127.0.0.1")
        await until(lambda: leads(group, {"n1", "n2"}), "a majority of two")
        dns.put("pod-n0", "127.0.0.1")
        await until(lambda: leads(group, {"n0", "n1", "n2"}), "all three")


async def test_a_member_that_comes_back_elsewhere_is_found(dns: FakeDns, tmp_path: Path) -> None:
    """n0 never dials: the others must follow its name to the new address."""
    for name in ("pod-n0", "pod-n1"):
        dns.put(name, "127.0.0.1")
    async with named_group(tmp_path) as group:
        await until(lambda: leads(group, {"n0", "n1", "n2"}), "all three")
        await group.stop("n0")
        dns.put("pod-n0", "127.0.0.2")
        await group.start("n0", listen_host="127.0.0.2")
        await until(lambda: leads(group, {"n0", "n1", "n2"}), "n0 at its new address")
