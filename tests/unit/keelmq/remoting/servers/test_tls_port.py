"""One port for plain connections and TLS: modes, certificates, reload, and peers that break handshakes."""

import asyncio
import os
import random
import shutil
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from pytest import LogCaptureFixture, MonkeyPatch

from keelmq.remoting import connection as connection_module
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.command import RemotingCommand, encode
from keelmq.remoting.frame import FRAME_BYTES_MAX
from keelmq.remoting.operation import Call, Failed, Ok, OperationTable, Reply, Unknown
from keelmq.remoting.operations.controller import (
    GET_NEXT_BROKER_ID,
    GET_REPLICA_INFO,
    BrokerNameRequest,
    BrokerSetRequest,
    MasterInfo,
)
from keelmq.remoting.peer_limits import Limits, PeerLimits
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.remoting.write_buffers import OVER_LIMIT, STALLED, WriteBuffers
from keelmq.runtime.tls import port as port_module
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.runtime.tls.files import CertificateFiles, key_names
from keelmq.runtime.tls.port import EVICTED, FAILED, HANDSHAKES, PLAIN_REFUSED, REFUSED, TIMED_OUT, TlsPort
from tests.support.raft_certificates import Authority
from tests.support.server_parts import (
    FAST_PATH_CODE,
    RawPeer,
    address_of,
    raw_peer,
    server,
    table,
    until,
)
from tests.support.tls_parts import (
    answered,
    ask,
    client_files,
    client_hello,
    closed,
    server_files,
    server_tls,
    trusting,
)

loops = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def port_of(of: TcpServer) -> TlsPort:
    assert of.tls_port is not None
    return of.tls_port


@asynccontextmanager
async def tls_peer(of: TcpServer) -> AsyncIterator[RawPeer]:
    """A TLS client of asyncio's own: another implementation than ours."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(*of.address, limit=2**25, ssl=context)
    try:
        yield RawPeer(reader, writer)
    finally:
        writer.transport.abort()


def fast_path(opaque: int, body: bytes = b"", e: str = "0") -> RemotingCommand:
    return RemotingCommand(FAST_PATH_CODE, opaque, ext_fields={"e": e}, body=body)


# ---- modes ----


@loops
@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"),
    [("disabled", True, False), ("permissive", True, True), ("enforcing", False, True)],
)
def test_who_is_served_in_each_mode(
    new_loop: Any, mode: Any, plain: bool, encrypted: bool, authority: Authority
) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority, mode)) as of:
            address = address_of(of)
            assert answered(await ask(address, None)) is plain
            assert answered(await ask(address, ClientTls())) is encrypted
            assert answered(await ask(address, trusting(authority))) is encrypted

    run(new_loop, story())


async def test_a_refused_client_is_told_what_to_do(authority: Authority) -> None:
    async with server(tls=ServerTls("disabled")) as of:
        outcome = await ask(address_of(of), ClientTls())
        assert isinstance(outcome, Failed)
        assert "tls.server.mode=disabled?" in outcome.remark
    executed = []

    async def execute(header: BrokerSetRequest, call: Call) -> Reply:
        executed.append(header)
        return Reply()

    of_handler = OperationTable()
    of_handler.bind(GET_NEXT_BROKER_ID, execute)
    async with server(of_handler, tls=server_tls(authority, "enforcing")) as of:
        outcome = await ask(address_of(of), None)
        assert isinstance(outcome, Unknown)
        assert port_of(of).counts == {PLAIN_REFUSED: 1}
    assert executed == []  # RocketMQ 5.4 executes the request, and refuses the answer only (#10110)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_both_versions_are_spoken(version: ssl.TLSVersion, authority: Authority) -> None:
    tls = trusting(authority)
    tls.context.maximum_version = tls.context.minimum_version = version
    async with server(tls=server_tls(authority)) as of:
        assert answered(await ask(address_of(of), tls))


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
async def test_older_versions_are_not(authority: Authority) -> None:
    tls = trusting(authority)
    tls.context.minimum_version = ssl.TLSVersion.TLSv1
    tls.context.maximum_version = ssl.TLSVersion.TLSv1_1
    tls.context.set_ciphers("ALL:@SECLEVEL=0")
    async with server(tls=server_tls(authority)) as of:
        outcome = await ask(address_of(of), tls)
        assert isinstance(outcome, Failed)
        assert "TLS" in outcome.remark


@loops
def test_a_self_signed_certificate_is_made_for_the_first_client(new_loop: Any) -> None:
    async def story() -> None:
        async with server(tls=ServerTls("permissive", self_signed=True)) as of:
            address, tls = address_of(of), port_of(of).tls
            assert answered(await ask(address, None))
            assert not tls.is_made  # nothing is paid for before
            both = await asyncio.gather(ask(address, ClientTls()), ask(address, ClientTls()))
            assert all(answered(each) for each in both)
            assert tls.is_made
            first = tls.context
            assert answered(await ask(address, ClientTls()))
            assert tls.context is first
            outcome = await ask(address, ClientTls(verify=True))
            assert isinstance(outcome, Failed)
            assert "is not signed by the CAs of this system" in outcome.remark

    run(new_loop, story())


async def test_without_any_certificate_tls_is_refused() -> None:
    async with server(tls=ServerTls("permissive")) as of:
        assert isinstance(await ask(address_of(of), ClientTls()), Failed)
        assert answered(await ask(address_of(of), None))


# ---- certificates ----


async def test_the_peer_has_the_names_of_its_certificate(authority: Authority) -> None:
    seen: list[Any] = []

    async def replica_info(_: BrokerNameRequest, call: Call) -> Reply:
        seen.append((call.peer.is_tls, call.peer.certificate_names))
        return Reply(MasterInfo())

    served = OperationTable()
    served.bind(GET_REPLICA_INFO, replica_info)
    async with server(served, tls=server_tls(authority, client_auth="optional")) as of:
        for tls in (None, trusting(authority), trusting(authority, "broker-a", "group-1")):
            client = RemotingClient(tls=tls)
            outcome = await client.call(address_of(of), GET_REPLICA_INFO, BrokerNameRequest(broker_name="b"))
            assert isinstance(outcome, Ok)
            await client.close()
    assert seen == [(False, ()), (True, ()), (True, ("broker-a", "group-1"))]


async def test_a_server_of_another_ca_is_refused(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    async with server(tls=server_tls(authority)) as of:
        outcome = await ask(address_of(of), trusting(other))
        assert isinstance(outcome, Failed)
        assert "certificate is not signed by tls.client.trustCertPath" in outcome.remark
        assert str(other.path) in outcome.remark


async def test_an_expired_server_is_refused(authority: Authority) -> None:
    async with server(tls=server_tls(authority, days=(-9, -1))) as of:
        outcome = await ask(address_of(of), trusting(authority))
        assert isinstance(outcome, Failed)
        assert "the server's certificate has expired: renew it there" in outcome.remark


@pytest.mark.parametrize(("names", "good"), [(("localhost",), True), (("elsewhere",), False)])
async def test_host_names_are_verified_where_asked_for(
    names: tuple[str, ...], good: bool, authority: Authority
) -> None:
    tls = ServerTls("permissive", server_files(authority, *names))
    async with server(tls=tls) as of:
        address = f"localhost:{of.address[1]}"
        assert answered(await ask(address, trusting(authority)))  # as RocketMQ: off by default
        outcome = await ask(address, trusting(authority, verify_hostname=True))
        assert answered(outcome) is good
        if not good:
            assert isinstance(outcome, Failed)
            assert "is for another host" in outcome.remark


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_client_certificates_that_are_required(
    version: ssl.TLSVersion, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    foreign = client_files(other, "unknown")
    of_other_ca = ClientTls(
        CertificateFiles(foreign.names, foreign.certificate, foreign.key, None, authority.path), verify=True
    )
    old = client_files(authority, "old", days=(-9, -1))
    async with server(tls=server_tls(authority, client_auth="require")) as of:
        address = address_of(of)
        for tls, good in (
            (trusting(authority, "member"), True),
            (trusting(authority), False),
            (of_other_ca, False),
            (ClientTls(old, verify=True), False),
        ):
            tls.context.maximum_version = tls.context.minimum_version = version
            outcome = await ask(address, tls)
            assert answered(outcome) is good
            if not good:  # in TLS 1.3 the client has ended its handshake before the server refuses it
                assert isinstance(outcome, Failed | Unknown)
                assert "certPath" in outcome.remark or "certificate expired" in outcome.remark
        await until(lambda: port_of(of).counts[FAILED] == 3, "all failures are counted")
        assert port_of(of).counts[HANDSHAKES] == 1


# ---- reload ----


def copied(files: CertificateFiles, to: Path) -> CertificateFiles:
    """The files where a running server reads them."""
    to.mkdir(exist_ok=True)
    found = CertificateFiles(files.names, to / "tls.crt", to / "tls.key", None, to / "ca.crt")
    for (_, path), (_, source) in zip(found.named(), files.named(), strict=True):
        shutil.copy(source, path)
    return found


async def test_new_files_are_for_new_connections(authority: Authority, tmp_path: Path) -> None:
    new = Authority(tmp_path / "new")
    files = copied(server_files(authority), tmp_path / "used")
    tls = ServerTls("enforcing", files)
    async with server(tls=tls) as of:
        address, client = address_of(of), RemotingClient(tls=trusting(authority))
        header = BrokerSetRequest(cluster_name="c", broker_name="g")
        assert answered(await client.call(address, GET_NEXT_BROKER_ID, header))
        assert not tls.check()  # nothing has changed
        copied(server_files(new), tmp_path / "used")
        assert tls.check()
        assert answered(await ask(address, trusting(new)))
        assert isinstance(await ask(address, trusting(authority)), Failed)
        assert answered(await client.call(address, GET_NEXT_BROKER_ID, header))
        assert of.connection_count == 1  # on the connection from before
        await client.close()


async def test_half_a_pair_changes_nothing_and_is_told_once(
    authority: Authority, tmp_path: Path, caplog: LogCaptureFixture
) -> None:
    files = copied(server_files(authority), tmp_path / "used")
    tls = ServerTls("enforcing", files)
    renewed = server_files(authority, "localhost", "renewed")
    assert files.certificate and files.key and renewed.certificate and renewed.key
    shutil.copy(renewed.certificate, files.certificate)
    async with server(tls=tls) as of:
        assert not tls.check()
        assert not tls.check()
        told = [
            each.message for each in caplog.records if "continues to use its old certificate" in each.message
        ]
        assert len(told) == 1
        assert f"tls.server.keyPath {files.key} is not the key of tls.server.certPath" in told[0]
        assert tls.fault is not None
        assert answered(await ask(address_of(of), trusting(authority)))
        shutil.copy(renewed.key, files.key)
        assert tls.check()
        assert tls.fault is None
        assert answered(await ask(address_of(of), trusting(authority)))


async def test_an_expired_certificate_does_not_replace_a_valid_one(
    authority: Authority, tmp_path: Path, caplog: LogCaptureFixture
) -> None:
    files = copied(server_files(authority), tmp_path / "used")
    tls = ServerTls("enforcing", files)
    copied(server_files(authority, "localhost", days=(-9, -2)), tmp_path / "used")
    async with server(tls=tls) as of:
        assert not tls.check()
        assert tls.fault == f"tls.server.certPath {files.certificate} expired 2 days ago: renew it"
        assert f"continues to use its old certificate: {tls.fault}" in caplog.text
        assert answered(await ask(address_of(of), trusting(authority)))
        copied(server_files(authority), tmp_path / "used")
        assert tls.check() and tls.fault is None


async def test_one_expired_certificate_replaces_another(authority: Authority, tmp_path: Path) -> None:
    """Clients that verify nothing are served, as RocketMQ's are by default."""
    tls = ServerTls(
        "enforcing", copied(server_files(authority, "localhost", days=(-9, -2)), tmp_path / "used")
    )
    copied(server_files(authority, "localhost", days=(-9, -1)), tmp_path / "used")
    assert tls.check() and tls.fault is None


async def test_links_that_are_switched_are_a_change(authority: Authority, tmp_path: Path) -> None:
    """As Kubernetes writes secrets. The dates of the files are the same."""
    used = tmp_path / "used"
    for name, names in (("one", ("localhost",)), ("two", ("localhost", "two"))):
        copied(server_files(authority, *names), tmp_path / name)
        for path in (tmp_path / name).iterdir():
            os.utime(path, (1_000, 1_000))
    used.symlink_to(tmp_path / "one")
    tls = ServerTls(
        "enforcing",
        CertificateFiles(key_names("tls.server"), used / "tls.crt", used / "tls.key", None, used / "ca.crt"),
    )
    used.unlink()
    used.symlink_to(tmp_path / "two")
    assert tls.check()


async def test_the_task_of_a_program_reloads(
    authority: Authority, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    monkeypatch.setattr("keelmq.runtime.tls.files.RELOAD_PERIOD_S", 0.01)
    tls = ServerTls("enforcing", copied(server_files(authority), tmp_path / "used"))
    task = asyncio.create_task(tls.run())
    before = tls.context
    copied(server_files(Authority(tmp_path / "new")), tmp_path / "used")
    await until(lambda: tls.context is not before, "the new files are in use")
    task.cancel()


async def test_a_client_reads_its_ca_again_before_it_gives_up(authority: Authority, tmp_path: Path) -> None:
    new, ca = Authority(tmp_path / "new"), tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    tls = ClientTls(CertificateFiles(key_names("tls.client"), trust=ca), verify=True)
    async with server(tls=server_tls(new)) as of:
        assert isinstance(await ask(address_of(of), tls), Failed)
        ca.write_bytes(authority.pem + new.pem)
        assert answered(await ask(address_of(of), tls))


# ---- peers that break handshakes ----


@loops
def test_connections_without_a_handshake_end_by_their_deadlines(new_loop: Any, authority: Authority) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority)) as of:
            port = port_of(of)
            port.first_byte_ms, port.handshake_ms = 60, 60
            hello = client_hello()
            for beginning in (b"", hello[:1], hello[:-1], hello):
                async with raw_peer(of) as peer:
                    peer.writer.write(beginning)
                    await closed(peer.reader)
            await until(lambda: not port.waiting, "nothing waits")
            assert port.counts == {TIMED_OUT: 4}
            assert of.connection_count == 0
            port.first_byte_ms = port.handshake_ms = 60_000
            assert answered(await ask(address_of(of), ClientTls()))

    run(new_loop, story())


async def test_a_handshake_byte_by_byte_has_one_deadline(authority: Authority) -> None:
    async with server(tls=server_tls(authority)) as of:
        port = port_of(of)
        port.handshake_ms = 100
        async with raw_peer(of) as peer:
            ended = asyncio.create_task(closed(peer.reader))
            for byte in client_hello():
                if ended.done():
                    break
                peer.writer.write(bytes((byte,)))
                await asyncio.wait({ended}, timeout=0.005)
            assert await ended is not None
        assert port.counts == {TIMED_OUT: 1}


async def test_waiting_connections_are_bounded(authority: Authority, caplog: LogCaptureFixture) -> None:
    async with server(tls=server_tls(authority)) as of:
        port = port_of(of)
        port.waiting_max = 5
        anonymous_clients = [await asyncio.open_connection(*of.address) for _ in range(20)]
        await until(lambda: port.counts[EVICTED] == 15, "the oldest are gone")
        assert len(port.waiting) == 5
        assert answered(await ask(address_of(of), None))
        assert answered(await ask(address_of(of), ClientTls()))
        assert len([each for each in caplog.records if "wait for a handshake" in each.message]) == 1
        for _, writer in anonymous_clients:
            writer.close()
        await until(lambda: not port.waiting, "nothing waits")


async def test_handshakes_of_an_address_are_limited(authority: Authority, caplog: LogCaptureFixture) -> None:
    """Whoever repeats a captured hello pays nothing, and the server a handshake."""
    limits = PeerLimits(Limits(unauthenticated_requests_per_s=5))
    async with server(tls=server_tls(authority), limits=limits) as of:
        port = port_of(of)
        anonymous_clients = [await asyncio.open_connection(*of.address) for _ in range(20)]
        for _, writer in anonymous_clients:
            writer.write(client_hello())
        await until(lambda: port.counts[REFUSED] >= 5, "more than twice the rate are refused")
        assert "too many TLS handshakes" in caplog.text
        assert answered(await ask(address_of(of), None)), "plain connections are not concerned"
        for _, writer in anonymous_clients:
            writer.close()
        await until(lambda: not port.waiting, "nothing waits")


@loops
@pytest.mark.parametrize("garbage", [b"\x16" + bytes(300), b"\x16\x03\x01\x00\x05hello", b"\x16" * 40_000])
def test_garbage_after_the_first_byte(new_loop: Any, garbage: bytes, authority: Authority) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority)) as of:
            async with raw_peer(of) as peer:
                peer.writer.write(garbage)
                assert len(await closed(peer.reader)) < 100  # an alert at most
            await until(lambda: port_of(of).counts[FAILED] == 1, "it is counted")
            assert not port_of(of).waiting
            assert answered(await ask(address_of(of), ClientTls()))

    run(new_loop, story())


class Recorded:
    """A TLS client in memory; `sent` is all that it sends for `plain`."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.layer = context.wrap_bio(self.incoming, self.outgoing)

    async def handshake(self, peer: RawPeer) -> None:
        while True:
            try:
                self.layer.do_handshake()
            except ssl.SSLWantReadError:
                peer.writer.write(self.outgoing.read())
                self.incoming.write(await peer.reader.read(65_536))
            else:
                peer.writer.write(self.outgoing.read())
                return

    def records(self, plain: bytes) -> bytes:
        left = memoryview(plain)
        while left:
            left = left[self.layer.write(left) :]
        return self.outgoing.read()

    def decrypted(self) -> bytes:
        found = b""
        while True:
            try:
                found += self.layer.read(65_536)
            except ssl.SSLWantReadError:
                return found


@pytest.mark.parametrize("seed", range(60))
async def test_damaged_records(seed: int, authority: Authority) -> None:
    """Of the handshake, and after it. The connection ends; nothing else happens."""
    dice = random.Random(seed)

    def damaged(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(dice.randint(1, 8)):
            changed[dice.randrange(1, len(changed))] = dice.randrange(256)
        if dice.random() < 0.3:
            del changed[dice.randrange(1, len(changed)) :]
        return bytes(changed) + dice.randbytes(dice.choice((0, 0, 5, 40_000)))

    errors: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with server(tls=server_tls(authority)) as of:
        port_of(of).handshake_ms = 100
        async with raw_peer(of) as peer:
            if seed % 2:
                recorded = Recorded()
                await recorded.handshake(peer)
                data = damaged(recorded.records(encode(fast_path(1, bytes(dice.randrange(20_000))))))
            else:
                data = damaged(client_hello())
            peer.writer.write(data)
            peer.writer.write_eof()
            assert len(await closed(peer.reader)) < 100_000
        await until(lambda: not port_of(of).waiting and of.connection_count == 0, "it is gone")
        assert answered(await ask(address_of(of), ClientTls()))
    assert errors == []


# ---- data ----


@pytest.mark.slow
@loops
def test_large_and_many_messages(new_loop: Any, authority: Authority) -> None:
    """Frames of several records, of one record, and many in one."""

    async def story() -> None:
        async with server(tls=server_tls(authority)) as of, tls_peer(of) as peer:
            body = random.Random(1).randbytes(FRAME_BYTES_MAX - 4_096)
            answer = await peer.ask(fast_path(1, body))
            assert answer.body == body
            peer.write(*(fast_path(n, b"x" * (n % 700)) for n in range(5_000)))
            answers = [await peer.read() for _ in range(5_000)]
            assert [each.opaque for each in answers] == list(range(5_000))
            assert all(each.body == b"x" * (each.opaque % 700) for each in answers)

    run(new_loop, story())


@loops
def test_the_records_of_one_read_are_one_batch(new_loop: Any, authority: Authority) -> None:
    """A record has 16 KiB at most, and plain TCP would read all of this at once."""

    async def story() -> None:
        async with server(tls=server_tls(authority)) as of, raw_peer(of) as peer:
            recorded = Recorded()
            await recorded.handshake(peer)
            await until(lambda: of.connection_count == 1, "the handshake is over")
            frames = b"".join(encode(fast_path(n, bytes(400))) for n in range(140))
            peer.writer.write(recorded.records(frames))
            (connection,) = of.connections
            async with asyncio.timeout(5):
                answers = b""
                while answers.count(b'"opaque":') < 140:
                    recorded.incoming.write(await peer.reader.read(65_536))
                    answers += recorded.decrypted()
            assert connection.activity <= 6, "two or three reads, as many writes; ten would be records"

    run(new_loop, story())


@loops
def test_a_peer_that_does_not_read_is_bounded(new_loop: Any, authority: Authority) -> None:
    async def story() -> None:
        buffers = WriteBuffers()
        async with (
            server(tls=server_tls(authority), stalled_ms=60_000, write_buffers=buffers) as of,
            tls_peer(of) as peer,
        ):
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.write(*(fast_path(n, bytes(1_000_000)) for n in range(40)))
            await until(lambda: buffers.held_bytes > 0, "the server sees that it does not read")
            (connection,) = of.connections
            assert connection.is_paused()
            assert connection_module.WRITE_HIGH_BYTES < connection.unsent_bytes() < 6_000_000
            buffers.bytes_max = 100_000
            buffers.look(of.connections, 1)
            assert buffers.given_up == {OVER_LIMIT: 1}
            await until(lambda: of.connection_count == 0, "it is gone")
            assert buffers.held_bytes == 0

    run(new_loop, story())


@loops
def test_a_peer_that_takes_nothing_is_aborted(new_loop: Any, authority: Authority) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority), stalled_ms=120) as of, tls_peer(of) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.write(*(fast_path(n, bytes(1_000_000)) for n in range(40)))
            await until(lambda: of.write_buffers.given_up == {STALLED: 1}, "it is given up")

    run(new_loop, story())


@loops
def test_a_paused_peer_gets_all_when_it_reads_again(new_loop: Any, authority: Authority) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority)) as of, tls_peer(of) as peer:
            peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
            peer.write(*(fast_path(n, bytes(300_000)) for n in range(60)))
            await until(
                lambda: any(each.is_paused() for each in of.connections), "the server has stopped reading"
            )
            peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert [(await peer.read()).opaque for _ in range(60)] == list(range(60))

    run(new_loop, story())


async def test_a_plain_connection_has_no_layer(authority: Authority, monkeypatch: MonkeyPatch) -> None:
    """After its first read nothing of the port is called again."""
    reads: list[int] = []
    updated = port_module.BufferedWaiting.buffer_updated

    def counted(self: port_module.BufferedWaiting, nbytes: int) -> None:
        reads.append(nbytes)
        updated(self, nbytes)

    monkeypatch.setattr(port_module.BufferedWaiting, "buffer_updated", counted)
    async with server(tls=server_tls(authority)) as of, raw_peer(of) as peer:
        for n in range(5):
            assert (await peer.ask(fast_path(n, b"a"))).body == b"a"
        (connection,) = of.connections
        assert connection.activity == 10
        assert not connection.is_tls
    assert len(reads) == 1


@loops
@pytest.mark.parametrize("pieces", [1, 3])
def test_the_first_read_of_a_plain_connection_is_not_lost(
    new_loop: Any, pieces: int, authority: Authority
) -> None:
    async def story() -> None:
        async with server(tls=server_tls(authority)) as of, raw_peer(of) as peer:
            data = encode(fast_path(7, b"body")) * 30
            for at in range(0, len(data), len(data) // pieces + 1):
                peer.writer.write(data[at : at + len(data) // pieces + 1])
                await asyncio.sleep(0)
            assert [(await peer.read()).opaque for _ in range(30)] == [7] * 30

    run(new_loop, story())


async def test_a_close_notify_ends_the_connection(authority: Authority) -> None:
    ended: list[int] = []
    async with server(tls=server_tls(authority), on_closed=ended.append) as of:
        async with tls_peer(of) as peer:
            assert (await peer.ask(fast_path(1, b"a"))).body == b"a"
            peer.writer.close()
            await until(lambda: len(ended) == 1, "the server has noticed")
        assert of.connection_count == 0


async def test_close_ends_handshakes(authority: Authority) -> None:
    async with server(table(), tls=server_tls(authority)) as of:
        reader, writer = await asyncio.open_connection(*of.address)
        writer.write(client_hello()[:20])
        await until(lambda: len(port_of(of).waiting) == 1, "it waits")
    assert await closed(reader) == b""
    writer.close()
