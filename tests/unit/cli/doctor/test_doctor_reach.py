"""The doctor asks servers that answer, refuse, hang or talk nonsense, and is done in time."""

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.doctor.command import TIMEOUT_DEFAULT_MS
from cli.keelmq import app
from keelmq.health.reach import HTTP_BYTES_MAX, ROUNDS, Reach, Silent
from keelmq.health.snapshot import http_address_of, take_snapshot
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import ANYBODY, Access, Caller, CommandError, Empty, Peer, Request
from keelmq.remoting.operations.controller import GET_METADATA_INFO, ControllerMetadata
from keelmq.remoting.servers.http_port import HTTP_PORT_DISTANCE
from keelmq.runtime.tls.contexts import TlsSettings
from keelmq.security.signer import Credentials
from tests.support.admin_parts import hanging
from tests.support.fake_cluster import Server
from tests.support.ports import free_port
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import server_files

HOST = "127.0.0.1"
LATE_MS = 200


@asynccontextmanager
async def talking(answer: bytes) -> AsyncIterator[str]:
    """A server that says `answer` to whatever it hears."""

    serving: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())  # type: ignore[arg-type]
        with suppress(OSError):
            await reader.read(1)
            writer.write(answer)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"{HOST}:{port}"
    await asyncio.gather(*serving)


async def metadata(reach: Reach, address: str) -> ControllerMetadata:
    return await reach.ask(address, lambda admin, at: admin.controllers.controller_metadata(at))


async def test_an_answer() -> None:
    async def answer(_: Empty, __: object) -> ControllerMetadata:
        return ControllerMetadata(group="g", controller_leader_address="x:1")

    server = Server()
    server.table.bind(GET_METADATA_INFO, answer)
    async with server, Reach(1_000) as reach:
        assert (await metadata(reach, server.address)).group == "g"
        by_name = server.address.replace(HOST, "localhost")
        assert (await metadata(reach, by_name)).group == "g"


async def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """localhost is ::1 first on many machines, and servers listen on 127.0.0.1."""
    both = [(0, 0, 0, "", ("127.0.0.2", 0)), (0, 0, 0, "", (HOST, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    async with talking(b"HTTP/1.1 200 OK\r\n\r\n{}") as address, Reach(1_000) as reach:
        assert (await reach.get(address.replace(HOST, "two.example"), "/")).status == 200
        with pytest.raises(Silent, match=r"bytes|lost|frame"):  # reached, by the second address
            await metadata(reach, address.replace(HOST, "two.example"))


@pytest.mark.parametrize("address", ["", "h", "h:x", "h:99999", ":1"])
async def test_an_address_that_is_none(address: str) -> None:
    """What servers announce is not ours to trust."""
    async with Reach(1_000) as reach:
        with pytest.raises(Silent, match="is not host:port"):
            await metadata(reach, address)
        with pytest.raises(Silent, match="is not host:port"):
            await reach.get(address, "/")


async def test_a_refusal_is_told_by_name() -> None:
    async with Server() as server, Reach(1_000) as reach:
        with pytest.raises(Silent, match="REQUEST_CODE_NOT_SUPPORTED"):
            await metadata(reach, server.address)


async def test_a_server_that_closes_a_connection_without_tls() -> None:
    """As one does that takes TLS only: to start it is no advice."""
    async with talking(b"") as address, Reach(1_000) as reach:
        with pytest.raises(Silent, match="lost") as closed:
            await metadata(reach, address)
        assert closed.value.was_plain
    with hanging() as address:
        async with Reach(100) as reach:
            with pytest.raises(Silent) as hung:
                await metadata(reach, address)
    assert not hung.value.was_plain
    async with Reach(1_000) as reach:
        with pytest.raises(Silent, match="refused") as dead:
            await metadata(reach, f"{HOST}:1")
        assert not dead.value.was_plain


class Strict(Access):
    """An Access that knows one user."""

    def admit(self, request: Request, peer: Peer) -> Caller:
        if request.ext_fields.get("AccessKey") != "admin":
            raise CommandError(ResponseCode.NO_PERMISSION, "username cannot be null.")
        return ANYBODY


async def test_a_server_that_wants_signatures() -> None:
    async def answer(_: Empty, __: object) -> ControllerMetadata:
        return ControllerMetadata(group="g", controller_leader_address="x:1")

    server = Server()
    server.table.bind(GET_METADATA_INFO, answer)
    server.table.access = Strict()
    async with server, Reach(1_000) as anonymous, Reach(1_000, Credentials("admin", "swordfish")) as reach:
        assert (await metadata(reach, server.address)).group == "g"
        with pytest.raises(Silent, match=r"NO_PERMISSION, username cannot be null\. .*--credentials FILE"):
            await metadata(anonymous, server.address)


@asynccontextmanager
async def hearing(
    *, port: int = 0, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A listener that keeps the head of each HTTP request and answers {}; yields its port and the heads."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if (begin := await reader.readexactly(3)) == b"GET":  # or the hello of TLS
                heads.append(begin + await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve, HOST, port, ssl=context) as server:
        yield server.sockets[0].getsockname()[1], heads


PASSWORD = b"Authorization: Basic YWRtaW46c3dvcmRmaXNo\r\n"


async def test_a_password_goes_only_over_verified_tls(tmp_path: Path) -> None:
    """Not in plain, not even to this machine: anybody may listen on the port of a program that is down."""
    authority = Authority(tmp_path / "ca")
    files = server_files(authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    verified, unverified = TlsSettings(ca=str(authority.path)), TlsSettings()
    admin = Credentials("admin", "swordfish")
    for of_server, of_client, credentials, is_sent in (
        (None, None, admin, False),
        (None, verified, admin, False),
        (context, unverified, admin, False),
        (context, verified, None, False),
        (context, verified, admin, True),
    ):
        async with (
            hearing(context=of_server) as (port, heads),
            Reach(1_000, credentials, tls=of_client or False) as reach,
        ):
            await reach.get(f"{HOST}:{port}", "/v1/groups", as_user=True)
            await reach.get(f"{HOST}:{port}", "/readyz")
        assert [PASSWORD in head for head in heads] == [is_sent, False]


async def test_a_server_that_requires_a_certificate(tmp_path: Path) -> None:
    """With TLS 1.3 its alert arrives after the client's handshake, with the first bytes that are read."""
    authority = Authority(tmp_path / "ca")
    files = server_files(authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.path)
    context.load_cert_chain(files.certificate, files.key)
    context.verify_mode = ssl.CERT_REQUIRED

    def refuse(listener: socket.socket) -> None:
        accepted, _ = listener.accept()
        with context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False) as connection:
            with suppress(ssl.SSLError):
                connection.do_handshake()
            with suppress(ConnectionError):
                while socket.socket.recv(connection, 4_096):  # closed first, its reset could pass the alert
                    pass

    with socket.create_server((HOST, 0)) as listener:
        refusing = asyncio.create_task(asyncio.to_thread(refuse, listener))
        async with Reach(5_000, tls=TlsSettings(ca=str(authority.path))) as reach:
            with pytest.raises(Silent, match=r"^tlsv13 alert certificate required$"):
                await reach.get(f"{HOST}:{listener.getsockname()[1]}", "/readyz")
        await refusing


async def test_a_password_goes_to_no_port_that_was_guessed(tmp_path: Path) -> None:
    """The listener even has a certificate of the cluster; no name server answers at the port before it."""
    authority = Authority(tmp_path / "ca")
    files = server_files(authority)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.certificate, files.key)
    http_port = free_port()
    tls = TlsSettings(ca=str(authority.path))
    async with (
        hearing(port=http_port, context=context) as (_, heads),
        Reach(1_000, Credentials("admin", "swordfish"), tls=tls) as reach,
    ):
        await take_snapshot(reach, [f"{HOST}:{http_port - HTTP_PORT_DISTANCE}"], [], {})
    assert heads and not any(b"Authorization" in head for head in heads)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"httpPort": "-1"}, None),
        ({"httpPort": "8088"}, 8088),
        ({"httpPort": "0"}, "distance"),
        ({"httpPort": "0", "listenPort": "0"}, None),
        ({"httpPort": "no number"}, None),
        ({"httpPort": "70000"}, None),
        ({}, None),
    ],
)
def test_the_http_port_is_the_one_that_the_name_server_names(
    settings: dict[str, str], expected: int | str | None
) -> None:
    port = 9876 + HTTP_PORT_DISTANCE if expected == "distance" else expected
    assert http_address_of(f"{HOST}:9876", settings) == (None if port is None else f"{HOST}:{port}")


async def test_nobody_there() -> None:
    async with Reach(1_000) as reach:
        with pytest.raises(Silent, match=r"^connection refused$"):
            await metadata(reach, f"{HOST}:1")
        with pytest.raises(Silent, match=r"^connection refused$"):
            await reach.get(f"{HOST}:1", "/")


async def test_a_server_that_hangs() -> None:
    with hanging() as address:
        async with Reach(LATE_MS) as reach:
            began = time.monotonic()
            with pytest.raises(Silent, match="no answer"):
                await metadata(reach, address)
            with pytest.raises(Silent, match="no answer"):
                await reach.get(address, "/")
            assert time.monotonic() - began < 3 * LATE_MS / 1000


async def test_all_rounds_together_have_a_limit() -> None:
    with hanging() as address:
        async with Reach(LATE_MS) as reach:
            began = time.monotonic()
            for _ in range(3 * ROUNDS):
                with pytest.raises(Silent):
                    await reach.get(address, "/")
            assert time.monotonic() - began < (ROUNDS + 1) * LATE_MS / 1000


async def test_http() -> None:
    head = b"HTTP/1.1 503 x\r\nDate: Thu, 01 Jan 1970 00:00:10 GMT\r\nContent-Length: 9\r\n\r\n"
    async with talking(head + b'{"a": 1}\n') as address, Reach(1_000) as reach:
        answer = await reach.get(address, "/readyz")
    assert (answer.status, answer.json()) == (503, {"a": 1})
    assert answer.clock_ms is not None and answer.clock_ms < -1_000_000_000_000


async def test_http_in_chunks() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with talking(head + b'4\r\n{"a"\r\n4\r\n: 1}\r\n0\r\n\r\n') as address, Reach(1_000) as reach:
        assert (await reach.get(address, "/readyz")).json() == {"a": 1}


async def test_of_a_long_answer_only_a_part_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    async with talking(head + bytes(2 * HTTP_BYTES_MAX)) as address, Reach(10_000) as reach:
        answer = await reach.get(address, "/readyz")
    assert HTTP_BYTES_MAX <= len(answer.body) < 1.1 * HTTP_BYTES_MAX


@pytest.mark.parametrize("refusal", [401, 403, 404])
async def test_a_program_without_health_for_us_is_asked_for_readiness(refusal: int) -> None:
    """An older one tells everything in /readyz; one that refuses /v1/health whether it is ready."""
    plugin = b'{"ready": true, "plugins": {"controller": {"address": "n0:1"}}}'
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1])
        is_refused = asked[-1] != b"/readyz"
        writer.write(b"HTTP/1.1 %d x\r\n\r\n%b" % (refusal if is_refused else 200, plugin))
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server, Reach(1_000) as reach:
        address, silent = f"{HOST}:{server.sockets[0].getsockname()[1]}", f"{HOST}:1"
        seen = await take_snapshot(reach, [silent], [], {silent: address})
    assert asked == [b"/v1/health", b"/readyz"]
    assert seen.plugins == [(address, {"address": "n0:1"})]


@pytest.mark.parametrize("answer", [b"", b"220 mail ESMTP\r\n", b"\x00\x00\x00\x04\xff\xff\xff\xff"])
async def test_something_else_answers(answer: bytes) -> None:
    async with talking(answer) as address, Reach(1_000) as reach:
        with pytest.raises(Silent, match="does not speak HTTP"):
            await reach.get(address, "/")
        with pytest.raises(Silent):
            await metadata(reach, address)


async def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    async with Reach(1_000) as reach:
        with pytest.raises(Silent, match=r"nosuch\.example does not resolve"):
            await metadata(reach, "nosuch.example:9876")


async def test_a_resolver_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be cancelled; it must hold neither the answer nor the exit."""
    over = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        over.wait(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    async with Reach(LATE_MS) as reach:
        with pytest.raises(Silent, match=r"slow\.example was not resolved"):
            await reach.resolve("slow.example")
    assert time.monotonic() - began < 2
    over.set()


def test_a_resolver_that_hangs_does_not_hold_the_exit() -> None:
    code = (
        "import socket, threading, cli.keelmq;"
        "socket.getaddrinfo = lambda *_, **__: threading.Event().wait(60);"
        "cli.keelmq.main()"
    )
    command = [sys.executable, "-c", code, "doctor", "-n", "slow.example:9876", "--timeout", "200"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "slow.example was not resolved" in done.stdout, done


def run(*args: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["doctor", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_dead_hosts_cost_less_than_five_seconds() -> None:
    with ExitStack() as stack:
        addresses = [stack.enter_context(hanging()) for _ in range(12)]
        began = time.monotonic()
        code, stdout, _ = run("-n", ";".join(addresses[:6]), "-a", ";".join(addresses[6:]))
        took_s = time.monotonic() - began
    assert code == 1 and took_s < 5 and TIMEOUT_DEFAULT_MS * ROUNDS < 5_000
    assert stdout.count("FAILED") == 2  # six name servers in one line, six controllers in another
    assert all(address in stdout for address in addresses)


def test_json(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\nbrokerNam=c\n")
    code, stdout, _ = run("-c", str(path), "--offline", "--json")
    value = json.loads(stdout)
    assert code == 1 and value["ok"] is False and value["failed"] == 1
    (finding,) = value["findings"]
    assert finding["level"] == "failed" and finding["check"] == "config.loads"
    assert finding["subject"] == "broker.conf" and "brokerName" in finding["text"] and finding["next"]


def test_quiet_shows_what_is_not_ok(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        f"brokerName=b\nbindAddress=127.0.0.1\nlistenPort=0\nhttpPort=-1\nstorePathRootDir={tmp_path}\n"
        "mappedFileSizeCommitLog=65536\n"
    )
    code, stdout, _ = run("-c", str(path), "--offline", "-q")
    assert code == 0 and "ok  " not in stdout
    assert [line.split()[0] for line in stdout.splitlines()] == ["warning", "doctor:"]  # namesrvAddr is empty


@pytest.mark.parametrize(
    "args", [(), ("-n", "localhost"), ("-c", "x", "--kind", "mqnosuch"), ("-n", "h:1", "--timeout", "1")]
)
def test_usage(args: tuple[str, ...]) -> None:
    assert run(*args)[0] == 2
