"""Secrets of real programs, searched for wherever somebody without them may look: logs at DEBUG, answers to
every request code, pages and metrics of HTTP, files, and the list of processes."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from broker.config.broker_config import BrokerConfig
from cli.lab.cluster import Launcher, Program
from keelmq import Credentials, Message, Producer, TlsSettings
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation
from keelmq.remoting.operations.auth import AUTH_CREATE_USER, UserRequest
from keelmq.runtime.config import secret_keys
from keelmq.security.signer import signer_of
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from tests.support.raft_certificates import Authority
from tests.support.secured import ADMIN, MEMBER, Secured, secured

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180), pytest.mark.asyncio(loop_scope="module")]

RAFT_SECRET = "canary-raft-secret-5b1e77d0c2a94f38"
KEY_PASSWORD = "canary-key-password-90ab"
USER = Credentials("orders", "canary-user-secret-71f3")
CANARIES = {
    "initAuthenticationUser": ADMIN.secret_key,
    "innerClientAuthenticationCredentials": MEMBER.secret_key,
    "controllerRaftSecret": RAFT_SECRET,
    "tls.server.keyPassword": KEY_PASSWORD,
    "tls.client.keyPassword": KEY_PASSWORD,
}
"""What the programs of this test are configured with."""
MALFORMED = "canary-malformed-2c6d"
SWEEP_TIMEOUT_MS = 500
UNSWEPT = {RequestCode.CLEAN_BROKER_DATA}
"""It forgets the broker, and the rest of the answers would be about nothing."""


class Talkative(Launcher):
    """Programs that log everything."""

    def command(self, program: Program) -> list[str]:
        return [*super().command(program), "--log-level", "DEBUG"]


def encrypt(key: Path) -> None:
    private = load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        private.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(KEY_PASSWORD.encode())
        )
    )
    key.chmod(0o600)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Secured]:
    """A cluster with a secret in every key that may have one, after some use and abuse."""
    directory = tmp_path_factory.mktemp("secrets")
    authority = Authority(directory / "ca")
    files = authority.issue("127.0.0.1", stem="member")
    encrypt(files.key)
    keys = {
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.server.keyPassword": KEY_PASSWORD,
        "tls.client.certPath": str(files.certificate),
        "tls.client.keyPath": str(files.key),
        "tls.client.keyPassword": KEY_PASSWORD,
    }
    raft = {"controllerRaftSecretFile": "", "controllerRaftSecret": RAFT_SECRET}
    async with secured(
        directory / "servers",
        http=True,
        tls=authority,
        more=keys,
        namesrv_settings=raft,
        launcher=Talkative(),
    ) as found:
        await found.create_topic("Mine")
        await found.create_user(USER, {"Topic:Mine": ["Pub"]})
        tls = TlsSettings(ca=authority.path)
        async with Producer(found.namesrv, tls=tls, credentials=USER) as producer:
            await producer.send(Message("Mine", b"x"))
        yield found


def ports(closed: Secured) -> Iterator[str]:
    for program in closed.cluster.programs:
        yield program.address
    yield from (program.controller_address for program in closed.cluster.name_servers)


def leaks(text: str) -> list[str]:
    """Names of the secrets in a text."""
    every = {**CANARIES, "password of a user": USER.secret_key, "malformed request": MALFORMED}
    return sorted(name for name, secret in every.items() if secret in text)


async def test_every_secret_key_is_tried() -> None:
    assert secret_keys(BrokerConfig, NamesrvConfig, ControllerConfig) == CANARIES.keys()


async def test_no_answer_has_a_secret(closed: Secured) -> None:
    """Every request code, by the administrator, at every port: 26, 319, 1010, 3004, 3005 among them."""
    answered = 0
    for code in sorted(set(RequestCode) - UNSWEPT):
        operation = Operation(code, f"sweep{code}", Empty, Empty, response_body=bytes)
        for address in ports(closed):
            outcome = await closed.client.call(address, operation, Empty(), timeout_ms=SWEEP_TIMEOUT_MS)
            answered += isinstance(outcome, Ok | Failed)
            assert leaks(repr(outcome)) == [], f"{code!r} at {address}"
    assert answered > 300


async def test_users_are_shown_without_passwords(closed: Secured) -> None:
    for name, code in (("authGetUser", 3004), ("authListUser", 3005)):
        operation = Operation(code, name, UserRequest, Empty, response_body=bytes)
        for address in await closed.servers():
            outcome = await closed.client.call(address, operation, UserRequest(username=USER.access_key))
            assert isinstance(outcome, Ok) and USER.access_key.encode() in outcome.body
            assert leaks(repr(outcome)) == []


@pytest.mark.parametrize("code", [25, 318, 1009])
async def test_no_request_changes_or_repeats_a_secret(closed: Secured, code: int) -> None:
    address = {
        25: closed.cluster.brokers[0].address,
        318: closed.cluster.name_servers[0].address,
        1009: closed.cluster.name_servers[0].controller_address,
    }[code]
    operation = Operation(code, "update", Empty, Empty, request_body=bytes)
    lines = [f"{key}={MALFORMED}" for key in CANARIES]
    lines += [
        "authenticationEnabled=false",
        "tls.server.mode=disabled",
        "securityPath=/tmp",
        "configBlackList=",
    ]
    for line in lines:
        outcome = await closed.client.call(address, operation, Empty(), line.encode())
        assert isinstance(outcome, Failed) and outcome.code in (1, 16), (line, outcome)
        assert leaks(repr(outcome)) == []


async def test_malformed_requests_are_not_repeated(closed: Secured) -> None:
    """Neither in the answer nor in the log."""
    bodies = [
        f'{{"username":"u","password":"{MALFORMED}"',
        f'{{"username":["{MALFORMED}"],"password":{{"{MALFORMED}":1}}}}',
        f'["{MALFORMED}"]',
        f'{{"username":"a:b","password":"{MALFORMED}","userType":"Nobody"}}',
        f'{{"username":"u","password":"{MALFORMED * 100}"}}',
    ]
    operation = Operation(AUTH_CREATE_USER.code, "authCreateUser", UserRequest, Empty, request_body=bytes)
    for body in bodies:
        for address in await closed.servers():
            outcome = await closed.client.call(address, operation, UserRequest(username="u"), body.encode())
            assert isinstance(outcome, Failed), outcome
            assert leaks(repr(outcome)) == []


async def beginning_of(http: httpx.AsyncClient, url: str) -> str:
    """Returns the whole answer; of a stream, which has no end, the first event."""
    async with http.stream("GET", url) as answer:
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            return (await answer.aread()).decode(errors="replace")
        async for text in answer.aiter_text():
            return text
    return ""


async def test_no_page_has_a_secret(closed: Secured) -> None:
    """Every GET route that has no parameter in its path, and metrics; with the administrator's password."""
    async with httpx.AsyncClient(verify=False, auth=(ADMIN.access_key, ADMIN.secret_key)) as http:
        for program in closed.cluster.programs:
            base = f"https://{program.http_address}"
            described = await http.get(f"{base}/openapi.json")
            assert described.status_code == 200, described.text
            pages = [path for path, verbs in described.json()["paths"].items() if "get" in verbs]
            pages = [path for path in pages if "{" not in path]
            assert "/metrics" in [*pages, "/metrics"] and "/livez" in pages
            for path in [*pages, "/metrics", "/"]:
                text = await beginning_of(http, base + path)
                assert leaks(text) == [], f"{base}{path}"
            if program in closed.cluster.name_servers:
                config = {
                    each["key"]: each for each in (await http.get(f"{base}/v1/config")).json()["settings"]
                }
                assert {config[key]["value"] for key in CANARIES} == {"**********"}


def secret_files(closed: Secured) -> set[Path]:
    """Files that have secrets, because programs must have them somewhere."""
    users = set(closed.cluster.directory.parent.rglob("users.json*"))
    return {program.config_path for program in closed.cluster.programs} | users


async def test_no_file_has_a_secret_that_need_not(closed: Secured) -> None:
    """Logs at DEBUG, telemetry, audit, CommitLog, raft's journal."""
    files = [path for path in closed.cluster.directory.parent.rglob("*") if path.is_file()]
    assert {program.log_path for program in closed.cluster.programs} <= set(files)
    found = {path: leaks(path.read_bytes().decode("latin-1")) for path in files}
    assert {path: names for path, names in found.items() if names and path not in secret_files(closed)} == {}


async def test_files_with_users_are_private(closed: Secured) -> None:
    users = [path for path in secret_files(closed) if path.name.startswith("users.json")]
    assert len(users) >= 2, "of the name server and of the broker"
    for path in users:
        assert path.stat().st_mode & 0o077 == 0, path


async def test_no_process_shows_a_secret(closed: Secured) -> None:
    for program in closed.cluster.programs:
        arguments = Path(f"/proc/{program.pid}/cmdline").read_bytes().decode()
        assert {"-c", "DEBUG"} <= set(arguments.split("\0")) and leaks(arguments) == []


async def test_tools_show_no_secret(closed: Secured, tmp_path: Path) -> None:
    """-p, and keelmq doctor with a good file and with one whose secrets are wrong."""
    for program in closed.cluster.programs:
        broken = tmp_path / program.config_path.name
        text = program.config_path.read_text()
        broken.write_text(text.replace('{"username": ', f'{{"{MALFORMED}" "username": '))
        commands = [
            [sys.executable, "-m", program.module, "-p", "-c", str(program.config_path)],
            [sys.executable, "-m", program.module, "-c", str(broken)],
            [sys.executable, "-m", "cli.keelmq", "doctor", "-c", str(program.config_path)],
        ]
        for command in commands:
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False, timeout=60
            )
            said = done.stdout + done.stderr
            assert said and leaks(said) == [] and "Traceback" not in said, command


async def test_a_captured_signature_is_not_the_secret(closed: Secured) -> None:
    """What crosses a plain connection: the bytes of a signed request."""
    received = bytearray()

    async def capture(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError):
            received.extend(await asyncio.wait_for(reader.read(65_536), 5))
        writer.close()

    server = await asyncio.start_server(capture, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    client = RemotingClient(signer=signer_of(ADMIN, proof=True))
    try:
        operation = Operation(26, "getBrokerConfig", Empty, Empty, response_body=bytes)
        await client.call(f"{host}:{port}", operation, Empty(), timeout_ms=1_000)
    finally:
        await client.close()
        server.close()
        await server.wait_closed()
    assert json.dumps(ADMIN.access_key).encode() in received and leaks(received.decode("latin-1")) == []
