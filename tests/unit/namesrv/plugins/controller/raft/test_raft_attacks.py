"""The attack table, row by row, against a port with a shared key and against one with certificates.

Each test: an anonymous peer, or a member that lies, speaks; it is cut off, the reason is counted, nothing
happened.
"""

import asyncio
import pickle
import ssl
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from namesrv.plugins.controller.raft.api import TlsFiles
from namesrv.plugins.controller.raft.codec import AppendEntries, Hello, RequestVote, encode
from namesrv.plugins.controller.raft.transport.channel import Channel, KeyChannel, PlainChannel
from namesrv.plugins.controller.replicator import Committed
from tests.support.raft_attackers import KeyOutfit, Outfit, Talk, TlsOutfit, Touch, talk_to, tls_client
from tests.support.raft_certificates import Authority
from tests.support.raft_group import SECRET, Group, until


@pytest.fixture
def tls(tmp_path: Path) -> TlsOutfit:
    return TlsOutfit(tmp_path)


@asynccontextmanager
async def alone(group: Group, name: str = "n0") -> AsyncIterator[tuple[str, int]]:
    """Only this member runs. Its address."""
    await group.start(name)
    try:
        yield group.members[name]
    finally:
        await group.stop(name)


async def refused(group: Group, reason: str, name: str = "n0") -> None:
    """Cut off with this reason, and nobody else is linked."""
    status = group.running[name].status
    await until(lambda: status()["refusedConnections"].get(reason, 0) > 0, reason)
    assert status()["connected"] == []


def hello(sender: str = "n1", receiver: str = "n0", cluster: str = "group", version: int = 1) -> bytes:
    return encode(Hello(version, cluster, sender, receiver, ""))


def stock(message: object) -> bytes:
    """As pysyncobj's own transport frames it."""
    data = zlib.compress(pickle.dumps(message, 2), 3)
    return struct.pack("i", len(data)) + data


VOTE_ME = {"type": "request_vote", "term": 10**6, "last_log_index": 10**6, "last_log_term": 10**6}
FORGED = {"type": "append_entries", "term": 10**6, "commit_index": 3, "entries": [(b"\0x", 3, 10**6)]}
STOCK_ATTACKS: dict[str, Callable[[Path], list[object]]] = {
    "runs code": lambda boom: [Touch(boom)],
    "reads the status": lambda _: ["status"],
    "changes the members": lambda _: ["add", "10.0.0.9:1"],
    "writes as a read-only node": lambda _: ["readonly", {"type": "apply_command", "command": b"\0x"}],
    "deposes the leader": lambda _: ["127.0.0.1:9", VOTE_ME],
    "says a member's address and forges the log": lambda _: ["127.0.0.1:9", FORGED],
}


@pytest.mark.parametrize("attack", STOCK_ATTACKS.values(), ids=STOCK_ATTACKS)
@pytest.mark.promise("S12")
async def test_what_works_against_the_librarys_own_port(
    outfit: Outfit, tmp_path: Path, attack: Callable[[Path], list[object]]
) -> None:
    """X1, X2: an anonymous peer without key and certificate, before and in the place of a handshake."""
    group, boom = outfit.group(), tmp_path / "boom"
    async with group:
        leader = await group.active()
        epoch = leader.epoch
        for plain in (False, True):
            async with talk_to(group.members[leader.self_id]) as talk:
                for message in attack(boom):
                    data = stock(message)
                    talk.write(PlainChannel().encode_frame(pickle.dumps(message, 2)) if plain else data)
                talk.write(bytes(600))  # no shorter than a nonce and a frame
                await talk.until_closed()
                assert len(talk.received) <= 32, "a nonce or an alert, no answer"
        assert (leader.is_active, leader.epoch, leader.status()["term"]) == (True, epoch, epoch)
        assert await leader.append(b"x") == Committed(1)
        assert sum(leader.status()["refusedConnections"].values()) >= 2
        assert not boom.exists() and not group.fatal


@pytest.mark.promise("S12")
async def test_a_member_that_says_pickles_is_dropped_from(outfit: Outfit, tmp_path: Path) -> None:
    """X3: the key, or a certificate, is no right to run code: after HELLO a pickle is no message, either."""
    group, boom = outfit.group(), tmp_path / "boom"
    bomb = pickle.dumps(Touch(boom), 2)
    async with alone(group) as address, talk_to(address) as talk:
        channel = outfit.channel("n1")
        assert await talk.open(channel)
        append = AppendEntries(1, 2, ((b"\x02" + bomb, 2, 1),), prev_index=1, prev_term=0)
        library = msg_with(bomb)
        await talk.say(channel, hello(), bomb, library, encode(append))
        status = group.running["n0"].status
        await until(lambda: status()["invalidFrames"] == 3, "three frames that are no messages")
        assert status()["running"] and status()["connected"] == ["n1"]
    assert not boom.exists() and not group.fatal


def msg_with(bomb: bytes) -> bytes:
    return encode({"type": "apply_command", "command": bomb})


@pytest.mark.promise("S12")
async def test_a_pickle_in_the_place_of_hello(outfit: Outfit, tmp_path: Path) -> None:
    group, boom = outfit.group(), tmp_path / "boom"
    async with alone(group) as address, talk_to(address) as talk:
        channel = outfit.channel("n1")
        assert await talk.open(channel)
        await talk.say(channel, pickle.dumps(Touch(boom), 2))
        await talk.until_closed()
        await refused(group, "not a message")
    assert not boom.exists()


HELLOS: dict[str, tuple[bytes, str]] = {
    "another cluster": (hello(cluster="other"), "HELLO for another cluster"),
    "another receiver": (hello(receiver="n2"), "HELLO for another member"),
    "ourselves": (hello(sender="n0"), "HELLO for another member"),
    "another version": (hello(version=9), "no HELLO of our version"),
    "no HELLO first": (encode(RequestVote(9, 9, 9)), "no HELLO of our version"),
}


@pytest.mark.parametrize(("frame", "reason"), HELLOS.values(), ids=HELLOS)
async def test_a_wrong_hello_of_somebody_with_credentials(outfit: Outfit, frame: bytes, reason: str) -> None:
    group = outfit.group()
    async with alone(group) as address, talk_to(address) as talk:
        # a name that is not in the certificate would be refused first
        channel = outfit.channel("n0" if frame == hello(sender="n0") else "n1")
        assert await talk.open(channel)
        await talk.say(channel, frame, encode(RequestVote(10**6, 10**6, 10**6)))
        assert await talk.until_closed(channel) == []
        await refused(group, reason)


async def test_another_members_certificate(tls: TlsOutfit) -> None:
    """What a shared key cannot tell: n2, with its own good certificate, says that it is n1."""
    group = tls.group()
    async with alone(group) as address, talk_to(address) as talk:
        channel = tls.channel("n2")
        assert await talk.open(channel)
        await talk.say(channel, hello(sender="n1"), encode(RequestVote(10**6, 10**6, 10**6)))
        assert await talk.until_closed(channel) == []
        await refused(group, "certificate of another member")
        assert group.running["n0"].status()["term"] < 10**6


UNVERIFIED_PEERS: dict[str, tuple[Callable[[TlsOutfit], Channel], str]] = {
    "no certificate": (lambda o: tls_client(None, o.ca.path), "no certificate"),
    "of another CA, with a member's name": (
        lambda o: tls_client(Authority(o.root / "evil").issue("n1"), o.ca.path),
        "certificate of another CA",
    ),
    "of another CA of the same name": (
        lambda o: tls_client(Authority(o.root / "evil", name="ca").issue("n1"), o.ca.path),
        "certificate of another CA",
    ),
    "expired": (lambda o: tls_client(o.ca.issue("n1", days=(-9, -1)), o.ca.path), "certificate expired"),
    "of the future": (
        lambda o: tls_client(o.ca.issue("n1", days=(1, 9)), o.ca.path),
        "certificate not valid yet",
    ),
    "for servers only": (
        lambda o: tls_client(o.ca.issue("n1", usage=[ExtendedKeyUsageOID.SERVER_AUTH]), o.ca.path),
        "certificate for another purpose",
    ),
    "for clients only, as of an application with a controller's name": (
        lambda o: tls_client(o.ca.issue("n1", usage=[ExtendedKeyUsageOID.CLIENT_AUTH]), o.ca.path),
        "certificate for another purpose",
    ),
    "TLS 1.2": (
        lambda o: tls_client(o.files("n1"), o.ca.path, maximum_version=ssl.TLSVersion.TLSv1_2),
        "no TLS 1.3 of ours",
    ),
    "a shared key": (lambda _: KeyChannel(SECRET, "group", dialed=True), "no TLS 1.3 of ours"),
}


@pytest.mark.parametrize(("make", "reason"), UNVERIFIED_PEERS.values(), ids=UNVERIFIED_PEERS)
async def test_a_certificate_that_is_not_good(
    tls: TlsOutfit, make: Callable[[TlsOutfit], Channel], reason: str
) -> None:
    group = tls.group()
    async with alone(group) as address, talk_to(address) as talk:
        channel = make(tls)
        if await talk.open(channel):  # TLS 1.3: the client is through before it is judged
            await talk.say(channel, hello())
            assert await talk.until_closed(channel) == []
        await refused(group, reason)


KEYS: dict[str, tuple[Callable[[Path], Channel], str]] = {
    "another key": (lambda _: KeyChannel(bytes(32), "group", dialed=True), "wrong key, or altered bytes"),
    "of another cluster": (lambda _: KeyChannel(SECRET, "other", dialed=True), "wrong key, or altered bytes"),
    "no key": (lambda _: PlainChannel(), "frame too long"),
    "a certificate": (
        lambda root: tls_client(Authority(root).issue("n1"), root / "ca.crt"),
        "frame too long",
    ),
}


@pytest.mark.parametrize(("make", "reason"), KEYS.values(), ids=KEYS)
async def test_a_key_that_is_not_ours(tmp_path: Path, make: Callable[[Path], Channel], reason: str) -> None:
    group = KeyOutfit(tmp_path).group()
    async with alone(group) as address, talk_to(address) as talk:
        channel = make(tmp_path / "ca")
        if await talk.open(channel):
            await talk.say(channel, hello(), b"x" * 400)
        await talk.until_closed()
        await refused(group, reason)


async def test_a_replayed_conversation(outfit: Outfit) -> None:
    """What a member said to n0 once, byte for byte, is worth nothing on another connection."""
    group = outfit.group()
    async with alone(group) as address:
        channel = outfit.channel("n1")
        async with talk_to(address) as talk:
            assert await talk.open(channel)
            await talk.say(channel, hello(), encode(RequestVote(9, 9, 9)))
            await until(lambda: group.running["n0"].status()["connected"] == ["n1"])
            recorded = bytes(talk.sent)
        await until(lambda: group.running["n0"].status()["connected"] == [])
        async with talk_to(address) as talk:
            talk.write(recorded)
            await talk.until_closed()
        reason = "wrong key, or altered bytes" if outfit.kind == "key" else "no TLS 1.3 of ours"
        await refused(group, reason)


async def test_everything_that_we_say_comes_back(outfit: Outfit) -> None:
    """Reflected: at the listener as at the dialer, who takes the mirror for n0."""
    group = outfit.group()

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(4096):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(mirror, "127.0.0.1", 0)
    async with server:
        group.members = {**group.members, "n0": server.sockets[0].getsockname()}
        async with alone(group, "n2") as address:
            async with talk_to(address) as talk:
                if (
                    outfit.kind == "tls"
                ):  # its listener speaks second: it gets its dialer's words, from the mirror
                    talk.write(bytes(32))
                else:
                    talk.write(await talk.read())
                await talk.until_closed()
            reason = "our own nonce came back" if outfit.kind == "key" else "no TLS 1.3 of ours"
            seen = group.running["n2"].status
            await until(lambda: seen()["refusedConnections"].get(reason, 0) >= 2, "both sides")
            assert seen()["connected"] == []


@asynccontextmanager
async def relay_to(goal: tuple[str, int]) -> AsyncIterator[tuple[str, int]]:
    """Hands on every byte, both ways. Its address."""

    async def pump(source: asyncio.StreamReader, drain: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            drain.write(data)
        drain.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*goal)
        await asyncio.gather(pump(reader, back), pump(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


@pytest.mark.parametrize("target", ["n2", "n1"])
async def test_a_relay_between_two_ports(outfit: Outfit, target: str) -> None:
    """What n2 dials as n0 ends at its own listener, or at n1's: both are who they are, neither is n0."""
    group = outfit.group()
    honest = group.members
    reason = "HELLO for another member" if outfit.kind == "key" else "certificate of another member"
    async with relay_to(honest[target]) as address:
        try:
            await group.start("n1")
            group.members = {**honest, "n0": address}
            await group.start("n2")
            ends = [group.running[name].status for name in ("n2", target)]
            await until(lambda: any(reason in end()["refusedConnections"] for end in ends), reason)
            assert not any("n0" in end()["connected"] for end in ends)
        finally:
            for name in list(group.running):
                await group.stop(name)


@asynccontextmanager
async def false_member(make: Callable[[], Channel], talks: list[Talk]) -> AsyncIterator[tuple[str, int]]:
    """Listens in a member's place; shakes hands, says HELLO as n0."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk, channel = Talk(reader, writer), make()
        talks.append(talk)
        try:
            if await talk.open(channel):
                talk.frames += await talk.until_closed(channel)
        finally:  # also when the test ends first
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()


def tls_server(files: TlsFiles, trust: Path) -> Channel:
    from namesrv.plugins.controller.raft.transport.tls import TlsChannel

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(trust)
    return TlsChannel(context, dialed=False)


FALSE_SERVERS: dict[str, tuple[Callable[[TlsOutfit], Channel], str]] = {
    "with another member's certificate": (
        lambda o: tls_server(o.files("n1"), o.ca.path),
        "certificate of another member",
    ),
    "of another CA": (
        lambda o: tls_server(Authority(o.root / "evil").issue("n0"), o.ca.path),
        "certificate of another CA",
    ),
    "for clients only": (
        lambda o: tls_server(o.ca.issue("n0", usage=[ExtendedKeyUsageOID.CLIENT_AUTH]), o.ca.path),
        "certificate for another purpose",
    ),
}


@pytest.mark.parametrize(("make", "reason"), FALSE_SERVERS.values(), ids=FALSE_SERVERS)
async def test_who_answers_at_a_members_address(
    tls: TlsOutfit, make: Callable[[TlsOutfit], Channel], reason: str
) -> None:
    """The dialer judges, too: before a word of HELLO left."""
    group, talks = tls.group(), list[Talk]()
    async with false_member(lambda: make(tls), talks) as address:
        group.members = {**group.members, "n0": address}
        async with alone(group, "n2"):
            await refused(group, reason, "n2")
    assert all(talk.frames == [] for talk in talks)


async def test_a_refused_member_hears_why(tls: TlsOutfit, caplog: pytest.LogCaptureFixture) -> None:
    """Both logs say it: the operator may look at either."""
    caplog.set_level("INFO")
    group = tls.group()
    group.settings["bootstrap"] = True
    group.own["n2"] = {"tls": Authority(tls.root / "other").issue("n2")}
    async with group:
        await group.active()
        n2, n0 = group.running["n2"].status, group.running["n0"].status
        await until(lambda: n2()["refusedConnections"].get("certificate of another CA", 0) > 0)
        await until(lambda: n0()["refusedConnections"].get("our certificate or TLS was refused", 0) > 0)
        assert "n2" not in n0()["connected"]
    assert "unknown ca" in caplog.text


async def test_a_group_with_certificates_lives(tls: TlsOutfit) -> None:
    """Commits, fail-over, a restart, a new certificate for a member while it runs, frames of many records."""
    async with tls.group() as group:
        leader = await group.active()
        assert await leader.append(b"x" * 200_000) == Committed(1)
        await group.stop(leader.self_id)
        second = await group.active()
        assert await second.append(b"2") == Committed(2)
        await group.start(leader.self_id)
        await group.converged(2)
        tls.files(second.self_id)
        other = next(name for name in group.running if name not in (second.self_id, leader.self_id))
        await group.stop(other)
        await group.start(other)
        await group.converged(2)
        assert await (await group.active()).append(b"3") == Committed(3)
        await group.converged(3)
        assert not group.fatal
