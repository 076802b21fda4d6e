"""Who gets through to the library: key, HELLO, limits; over real loopback sockets where that matters."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.codec import Hello, Ping, encode
from namesrv.plugins.controller.raft.transport.certificates import Certificates
from namesrv.plugins.controller.raft.transport.channel import ChannelError, KeyChannel, PlainChannel
from namesrv.plugins.controller.raft.transport.link import Link, LinkSettings
from namesrv.plugins.controller.raft.transport.links import Links
from namesrv.plugins.controller.raft.transport.tls import TlsChannel
from namesrv.plugins.controller.replicator import RaftReplicator, RaftSettings
from tests.support.raft_certificates import Authority
from tests.support.raft_group import SECRET, Group, ListMachine, until
from tests.support.reach_in import raft_core


def opened(
    secret: bytes, other: bytes, cluster: str = "c", other_cluster: str = "c"
) -> tuple[KeyChannel, KeyChannel]:
    dialer, listener = (
        KeyChannel(secret, cluster, dialed=True),
        KeyChannel(other, other_cluster, dialed=False),
    )
    listener.receive_data(dialer.start())
    dialer.receive_data(listener.start())
    return dialer, listener


def test_frames_arrive_whole_whatever_the_cuts() -> None:
    for size in (1, 3, 1000):
        dialer, listener = KeyChannel(SECRET, "c", dialed=True), KeyChannel(SECRET, "c", dialed=False)
        dialer.receive_data(listener.start())
        stream = (
            dialer.start()
            + dialer.encode_frame(b"one")
            + dialer.encode_frame(b"")
            + dialer.encode_frame(b"three")
        )
        frames = []
        for at in range(0, len(stream), size):
            listener.receive_data(stream[at : at + size])
            while (frame := listener.next_frame()) is not None:
                frames.append(frame)
        assert frames == [b"one", b"", b"three"]


@pytest.mark.parametrize(
    ("other", "cluster"), [(bytes(32), "c"), (SECRET, "d")], ids=["another key", "another cluster"]
)
def test_another_key_or_cluster_is_refused(other: bytes, cluster: str) -> None:
    dialer, listener = opened(SECRET, other, "c", cluster)
    listener.receive_data(dialer.encode_frame(b"hello"))
    with pytest.raises(ChannelError, match="wrong key"):
        listener.next_frame()


def test_replayed_reflected_and_altered_frames_are_refused() -> None:
    dialer, listener = opened(SECRET, SECRET)
    sealed = dialer.encode_frame(b"hello")
    listener.receive_data(sealed + sealed)
    assert listener.next_frame() == b"hello"
    with pytest.raises(ChannelError):  # replayed: the counter moved on
        listener.next_frame()
    dialer, listener = opened(SECRET, SECRET)
    dialer.receive_data(dialer.encode_frame(b"hello"))
    with pytest.raises(ChannelError):  # reflected: the other direction has another key
        dialer.next_frame()
    mirror = KeyChannel(SECRET, "c", dialed=True)
    with pytest.raises(ChannelError, match="our own nonce"):
        mirror.receive_data(mirror.start())


def test_an_unverified_peer_cannot_make_us_buffer_much() -> None:
    channel = PlainChannel()
    channel.receive_data((513).to_bytes(4, "big"))
    with pytest.raises(ChannelError, match="frame of 513 bytes"):
        channel.next_frame()


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Certificates, Certificates]:
    ca = Authority(tmp_path / "ca")
    return Certificates(ca.issue("n0"), "n0"), Certificates(ca.issue("n1", "also"), "n1")


class End:
    """One side: what it has to send, and the frames that it got."""

    def __init__(self, channel: TlsChannel) -> None:
        self.channel, self.pending, self.frames = channel, channel.start(), list[bytes]()

    def deliver(self, other: "End", size: int) -> None:
        stream, self.pending = self.pending, b""
        for at in range(0, len(stream), size):
            other.channel.receive_data(stream[at : at + size])
            other.pending += other.channel.data_to_send()
            while (frame := other.channel.next_frame()) is not None:
                other.frames.append(frame)


@pytest.mark.parametrize("size", [1, 7, 1000, 1_000_000])
def test_tls_frames_arrive_whole_whatever_the_cuts(
    certificates: tuple[Certificates, Certificates], size: int
) -> None:
    """Also one of many TLS records, and both ways."""
    dialer, listener = End(certificates[0].channel(True)), End(certificates[1].channel(False))
    for _ in range(3):
        dialer.deliver(listener, size)
        listener.deliver(dialer, size)
    assert dialer.channel.may_be("n1") and dialer.channel.may_be("also") and listener.channel.may_be("n0")
    assert not dialer.channel.may_be("n0") and not listener.channel.may_be("n1")
    frames = [b"one", b"", bytes(range(256)) * 400]
    for end, other in ((dialer, listener), (listener, dialer)):
        end.channel.frame_bytes_max = len(frames[2])
        end.pending += b"".join(end.channel.encode_frame(frame) for frame in frames)
        other.channel.frame_bytes_max = len(frames[2])
        end.deliver(other, size)
        assert other.frames == frames


@pytest.mark.parametrize(
    "first",
    [
        b"\x16\x03\x01\x40\x00\x01\xff\xff\xff",
        b"\x16\x03\x01\x00\x05\x01\x00\xff\xff\x03" + b"\x16\x03\x01\x40\x00",
    ],
    ids=["a ClientHello of 16 MB", "one in many records"],
)
def test_an_unverified_peer_cannot_make_tls_buffer_much(
    certificates: tuple[Certificates, Certificates], first: bytes
) -> None:
    channel, fed = certificates[0].channel(False), 0
    with pytest.raises(ChannelError):
        channel.receive_data(first)
        while fed < 400_000:
            channel.receive_data(bytes(16_384 - 4) + b"\x16\x03\x01\x40")
            fed += 16_384


def settings(tmp_path: Path, **changes: object) -> RaftSettings:
    members = {"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2)}
    return RaftSettings("n0", **({"members": members, "directory": tmp_path, "cluster_id": "c"} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "needs a shared secret"),
        ({"secret": b"short"}, "at least 32 bytes"),
        ({"secret": SECRET, "tls": TlsFiles(Path("c"), Path("k"), Path("t"))}, "one of them"),
        ({"insecure": True, "members": {"n0": ("127.0.0.1", 1), "n1": ("10.0.0.1", 2)}}, "loopback"),
        ({"insecure": True, "listen_host": "0.0.0.0"}, "loopback"),
        ({"members": {"n1": ("127.0.0.1", 2)}}, "is not in"),
        ({"secret": SECRET, "heartbeat_s": 0.3}, "timers"),
    ],
    ids=[
        "no secret",
        "short secret",
        "secret and certificates",
        "plain off loopback",
        "plain on all addresses",
        "not a member",
        "timers",
    ],
)
async def test_settings_that_are_refused(tmp_path: Path, changes: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        await RaftReplicator(ListMachine(), settings(tmp_path, **changes)).start()


async def test_a_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        members = {"n0": ("127.0.0.1", port), "n1": ("127.0.0.1", 2)}
        replicator = RaftReplicator(ListMachine(), settings(tmp_path, secret=SECRET, members=members))
        with pytest.raises(
            ConfigError, match=f"cannot listen for raft on 127.0.0.1:{port}: Address already in use"
        ):
            await replicator.start()
    await replicator.start()  # nothing was left locked or open
    await replicator.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is an address of its own on Linux only")
@pytest.mark.parametrize("listen_host", [None, "127.0.0.2"])
async def test_it_listens_on_its_address_and_on_no_other(tmp_path: Path, listen_host: str | None) -> None:
    group = Group(tmp_path, 3, listen_host=listen_host)
    port = group.members["n0"][1]
    if listen_host is None:
        group.members = {**group.members, "n0": ("127.0.0.2", port)}
    await group.start("n0")
    try:
        _, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    finally:
        await group.stop("n0")


async def refused_by(group: Group, name: str, reason: str) -> None:
    refused = group.running[name].status()["refusedConnections"]
    await until(
        lambda: any(reason in text for text in group.running[name].status()["refusedConnections"]),
        f"{reason} in {refused}",
    )


async def test_a_member_with_another_key_stays_outside(tmp_path: Path) -> None:
    async with Group(tmp_path, 3) as group:
        await group.active()
        await group.stop("n2")
        await group.start("n2", secret=bytes(32))
        await until(
            lambda: (
                any("wrong key" in text for text in group.running["n2"].status()["refusedConnections"])
                or any("wrong key" in text for text in group.running["n0"].status()["refusedConnections"])
            )
        )
        assert "n2" not in group.running["n0"].status()["connected"]


HELLOS = {
    "another cluster": Hello(1, "other", "n1", "n0", ""),
    "another receiver": Hello(1, "group", "n1", "n2", ""),
    "an unknown member": Hello(1, "group", "n7", "n0", ""),
    "ourselves": Hello(1, "group", "n0", "n0", ""),
    "another version": Hello(2, "group", "n1", "n0", ""),
}


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS)
async def test_a_wrong_hello_closes_the_connection(tmp_path: Path, hello: Hello) -> None:
    group = Group(tmp_path, 3, secret=None, insecure=True)
    await group.start("n0")
    reader, writer = await asyncio.open_connection(*group.members["n0"])
    writer.write(PlainChannel().encode_frame(encode(hello)))
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await refused_by(group, "n0", "HELLO")
    assert group.running["n0"].status()["connected"] == []
    await group.stop("n0")


async def test_the_newer_connection_of_a_member_replaces_the_older(tmp_path: Path) -> None:
    group = Group(tmp_path, 3, secret=None, insecure=True)
    await group.start("n0")
    hello = PlainChannel().encode_frame(encode(Hello(1, "group", "n1", "n0", "")))
    old, old_writer = await asyncio.open_connection(*group.members["n0"])
    old_writer.write(hello)
    assert await asyncio.wait_for(old.read(4), 5)
    new, new_writer = await asyncio.open_connection(*group.members["n0"])
    new_writer.write(hello)
    await asyncio.wait_for(old.read(), 5)  # up to its end
    assert await asyncio.wait_for(new.read(4), 5)
    assert group.running["n0"].status()["connected"] == ["n1"]
    old_writer.close()
    new_writer.close()
    await group.stop("n0")


class NoPoller:
    def subscribe(self, descr: int, callback: object, event_mask: int, /) -> None: ...
    def unsubscribe(self, descr: int, /) -> None: ...


class NoEvents:
    def __init__(self) -> None:
        self.down: list[str] = []

    def link_up(self, member: str) -> None: ...
    def link_frame(self, member: str, frame: bytes) -> None: ...
    def frames_end(self) -> None: ...
    def link_down(self, member: str) -> None:
        self.down.append(member)


def test_an_idle_link_is_pinged_and_a_silent_one_is_closed() -> None:
    """Else the first vote request after a quiet hour is lost with the link that nobody used."""
    clock, events = [100.0], NoEvents()
    wiring = LinkSettings(
        self_id="n0",
        members=frozenset(("n0", "n1")),
        cluster_id="group",
        listen=(socket.AF_INET, ("127.0.0.1", 0)),
        connection_timeout_s=1.6,
        retry_s=0.3,
        channel=lambda _dialed: PlainChannel(),
        lookup=lambda _member: None,
        now=lambda: clock[0],
    )
    links = Links(wiring, NoPoller(), events)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    with theirs:
        link = Link(links, ours, member=None)
        links.frame(link, encode(Hello(1, "group", "n1", "n0", "")))
        theirs.settimeout(5)
        assert theirs.recv(1000)
        clock[0] += 0.5
        links.tick()
        assert theirs.recv(1000) == PlainChannel().encode_frame(encode(Ping()))
        clock[0] += 1.2
        links.tick()
        assert events.down == ["n1"]


async def test_waking_a_closed_member_touches_no_file(tmp_path: Path) -> None:
    """The pipe's number may belong to somebody else by then: nothing may be written to it."""
    replicator = RaftReplicator(ListMachine(), settings(tmp_path, secret=SECRET))
    await replicator.start()
    core = raft_core(replicator)
    assert core is not None
    await replicator.stop()
    core.wake()
    core.submit(b"late", lambda _result, _error: None)
