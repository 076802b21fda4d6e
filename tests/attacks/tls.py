"""Attacks on TLS: wrong certificates, connections without TLS, old versions, keys with typing errors."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from namesrv.plugins.controller.raft.api import TlsFiles
from tests.attacks.attacker import Attacker, request_of
from tests.attacks.chains import signed_by_client
from tests.attacks.judging import carried_out
from tests.attacks.line import GONE
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import BROKER_NAME, CLUSTER_NAME, MEMBER_NAME, Stage
from tests.support.raft_certificates import Authority

GROUP: Final = {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}
MEMBERSHIP: Final = "membership of the group"
TRAFFIC: Final = "what crosses the network"
START_S: Final = 90.0
"""A program that runs on after this serves. On a busy machine with two cores a start has taken 30 s."""


def showing(files: TlsFiles) -> ssl.SSLContext:
    """A client that shows this certificate, and trusts every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(files.certificate, files.key)
    return context


async def with_certificate(attacker: Attacker, files: TlsFiles) -> Outcome:
    """Asks for a broker id, as a member would, with this certificate."""
    return carried_out(await attacker.send("controller", request_of(1012, GROUP), tls=showing(files)))


async def with_certificate_of(attacker: Attacker, files_of: Callable[[Stage], TlsFiles]) -> Outcome:
    return await with_certificate(attacker, files_of(attacker.stage))


def own_ca_in_chain(stage: Stage) -> TlsFiles:
    files = stage.foreign.issue(MEMBER_NAME, stem="chained")
    chain = files.certificate.read_bytes() + stage.authority.pem + stage.foreign.pem
    files.certificate.write_bytes(chain)
    return files


CERTIFICATES: Final[tuple[tuple[str, str, Callable[[Stage], TlsFiles], str], ...]] = (
    (
        "foreign-certificate",
        "shows a certificate with a member's name, signed by another CA",
        lambda stage: stage.foreign.issue(MEMBER_NAME, "localhost"),
        "closed",
    ),
    (
        "same-ca-name",
        "the same, and the other CA has the name of ours",
        lambda stage: Authority(stage.directory / "twin", name="of the cluster").issue(
            MEMBER_NAME, "localhost"
        ),
        "closed",
    ),
    (
        "expired-certificate",
        "shows a member's certificate that has expired",
        lambda stage: stage.authority.issue(MEMBER_NAME, days=(-9, -1), stem="expired"),
        "closed",
    ),
    (
        "future-certificate",
        "shows a member's certificate that is not valid yet",
        lambda stage: stage.authority.issue(MEMBER_NAME, days=(1, 9), stem="future"),
        "closed",
    ),
    (
        "other-name",
        "shows a certificate of our CA that has no member's name",
        lambda stage: stage.authority.issue("orders.example", stem="orders"),
        "username cannot be null.",
    ),
    (
        "own-ca-in-chain",
        "shows a chain that begins with our CA's certificate and has the attacker's as well",
        own_ca_in_chain,
        "closed",
    ),
    (
        "end-certificate-as-ca",
        "signs a member's certificate with a client's certificate of our CA",
        lambda stage: signed_by_client(stage.authority, stage.directory / "end-as-ca", MEMBER_NAME),
        "closed",
    ),
)
for id, name, files_of, answer in CERTIFICATES:
    attack(f"tls/{id}", name, asset=MEMBERSHIP, success="it gets a broker id", answer=answer)(
        partial(with_certificate_of, files_of=files_of)
    )


@attack(
    "tls/similar-name",
    "shows certificates of our CA with names that only look like a member's",
    asset=MEMBERSHIP,
    success="it gets a broker id",
    answer="username cannot be null.",
)
async def similar_name(attacker: Attacker) -> Outcome:
    outcome = Outcome(False, "")
    names = (
        f"x{MEMBER_NAME}",
        f"{MEMBER_NAME}.evil.example",
        MEMBER_NAME.upper(),
        "*",
        f"{MEMBER_NAME},x",
        "*.example",
    )
    for at, name in enumerate(names):
        files = attacker.stage.authority.issue(name, stem=f"similar-{at}")
        outcome = await with_certificate(attacker, files)
        if outcome.succeeded:
            return Outcome(True, f"{name}: {outcome.answer}")
    return outcome


@attack(
    "tls/plain",
    "connects without TLS to every remoting port",
    asset=TRAFFIC,
    success="a port answers",
    answer="closed",
)
async def plain(attacker: Attacker) -> Outcome:
    answer = None
    for server in ("namesrv", "controller", "follower", "broker", "vip", "replica"):
        answer = await attacker.send(server, request_of(1_000_000), tls=None)
        if answer.code != -1:
            return Outcome(True, f"{server}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "tls/plain-http",
    "connects without TLS to every HTTP port",
    asset=TRAFFIC,
    success="a port answers",
    answer="closed",
)
async def plain_http(attacker: Attacker) -> Outcome:
    answer = None
    for server in ("namesrv", "controller", "broker"):
        answer = await attacker.http(server, "GET", "/livez", scheme="http")
        if answer.code != -1:
            return Outcome(True, f"{server}: {answer}")
    return Outcome(False, str(answer))


async def _handshake(attacker: Attacker, ciphers: str, *, version: ssl.TLSVersion) -> Outcome:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    # TLS 1.0 is deprecated in Python, too, which warns of it.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = min(version, ssl.TLSVersion.TLSv1_2)
        context.maximum_version = version
    context.set_ciphers(ciphers)
    for server in ("broker", "namesrv", "controller"):
        answer = await attacker.send(server, request_of(1_000_000), tls=context)
        if answer.code != -1:
            return Outcome(True, f"{server}: {answer}")
    return Outcome(False, str(answer))


for id, name, ciphers, version in (
    ("downgrade", "offers TLS 1.0 and 1.1 only", "ALL:@SECLEVEL=0", ssl.TLSVersion.TLSv1_1),
    (
        "weak-ciphers",
        "offers only ciphers without encryption, without a certificate, or that are broken",
        "eNULL:aNULL:3DES:RC4:EXPORT:LOW:@SECLEVEL=0",
        ssl.TLSVersion.TLSv1_2,
    ),
    (
        "no-forward-secrecy",
        "offers only ciphers whose traffic can be read later with the server's key",
        "kRSA:@SECLEVEL=0",
        ssl.TLSVersion.TLSv1_2,
    ),
):
    attack(
        f"tls/{id}",
        name,
        asset=TRAFFIC,
        success="the handshake succeeds",
        answer="closed",
        open=False,
    )(partial(_handshake, ciphers=ciphers, version=version))


@attack(
    "tls/stolen-id",
    "a certified client without a member's name registers under the id of a replica (1003)",
    asset=MEMBERSHIP,
    success="it is registered",
    answer="username cannot be null.",
    open=False,  # while the owner of the id works
)
async def stolen_id(attacker: Attacker) -> Outcome:
    files = attacker.stage.authority.issue("thief.example", stem="thief")
    fields = {**GROUP, "brokerId": 2, "brokerAddress": "127.0.0.1:6667"}
    return carried_out(await attacker.send("controller", request_of(1003, fields), tls=showing(files)))


@attack(
    "tls/other-check-code",
    "takes the id of a replica again, with a check code of its own (1013)",
    asset=MEMBERSHIP,
    success="the id is the attacker's",
    answer="username cannot be null.",
    open=False,
)
async def other_check_code(attacker: Attacker) -> Outcome:
    fields = {**GROUP, "appliedBrokerId": 1, "registerCheckCode": f"{attacker.source}:6666;1"}
    return carried_out(await attacker.ask("controller", 1013, fields))


# -- programs that are started ---------------------------------------------------------------------------


async def started(directory: Path, module: str, *settings: str) -> tuple[bool, str]:
    """Starts a program with these settings; returns whether it serves, and what it wrote."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "program.conf"
    path.write_text("\n".join([*settings, ""]))
    return await asyncio.to_thread(_run, [sys.executable, "-m", module, "-c", str(path)], directory)


def _run(command: Sequence[str], directory: Path) -> tuple[bool, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("KEELMQ_")}
    try:
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=START_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        return True, f"it serves: {error.stdout!r}"
    return False, f"exit code {done.returncode}: {done.stdout}{done.stderr}"


async def refuses_to_start(attacker: Attacker, name: str, secret: str, *settings: str) -> Outcome:
    """The program must end at once, say why in a line, and show neither a traceback nor the secret."""
    directory = attacker.stage.directory / name
    base = (
        "bindAddress=127.0.0.1",
        "listenPort=0",
        "httpPort=-1",
        f"kvConfigPath={directory}/kv.json",
        "tls.server.mode=enforcing",
    )
    serves, text = await started(directory, "namesrv", *base, *settings)
    bad = serves or "Traceback" in text or secret in text or "exit code 0" in text
    return Outcome(bad, text.replace(str(attacker.stage.directory), "..."))


def encrypted(files: TlsFiles, password: bytes) -> Path:
    """Encrypts the key in a file beside it."""
    key = load_pem_private_key(files.key.read_bytes(), None)
    path = files.key.with_suffix(".encrypted")
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)))
    return path


@attack(
    "tls/key-password",
    "waits for a typing error: the key is encrypted, and tls.server.keyPassword is wrong",
    asset=TRAFFIC,
    success="the program serves, or shows a traceback or the password",
    answer="tls.server.keyPassword",
    open=False,
)
async def key_password(attacker: Attacker) -> Outcome:
    files = attacker.stage.authority.issue("localhost", stem="typing-error")
    key = encrypted(files, b"the-right-password")
    return await refuses_to_start(
        attacker,
        "key-password",
        "the-wrong-password",
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={key}",
        "tls.server.keyPassword=the-wrong-password",
    )


@attack(
    "tls/key-of-another",
    "waits for an exchanged file: the key belongs to another certificate",
    asset=TRAFFIC,
    success="the program serves, or shows a traceback",
    answer="tls.server",
    open=False,
)
async def key_of_another(attacker: Attacker) -> Outcome:
    files = attacker.stage.authority.issue("localhost", stem="one")
    other = attacker.stage.authority.issue("localhost", stem="two")
    other.key.chmod(0o600)
    return await refuses_to_start(
        attacker,
        "key-of-another",
        "PRIVATE KEY",
        f"tls.server.certPath={files.certificate}",
        f"tls.server.keyPath={other.key}",
    )


@attack(
    "tls/credentials",
    "waits for a typing error: innerClientAuthenticationCredentials is not JSON",
    asset="the members' secret",
    success="the program serves, or shows a traceback or the secret",
    answer="innerClientAuthenticationCredentials",
    open=False,
)
async def credentials(attacker: Attacker) -> Outcome:
    secret = "the-members-secret-key"
    return await refuses_to_start(
        attacker,
        "credentials",
        secret,
        f'innerClientAuthenticationCredentials={{"accessKey":"m","secretKey":"{secret}"',
    )


@attack(
    "tls/key-for-others",
    "reads the server's key as another user of the machine: its file is open to everybody",
    asset=TRAFFIC,
    success="the program serves, and says nothing",
    open=False,
)
async def key_for_others(attacker: Attacker) -> Outcome:
    directory = attacker.stage.directory / "users-for-others"
    directory.mkdir()
    path = directory / "users.json"
    path.write_text('{"users": [{"username": "a", "password": "its-secret-key"}]}')
    path.chmod(0o644)
    return await refuses_to_start(
        attacker, "users-for-others", "its-secret-key", "authenticationEnabled=true", f"usersPath={directory}"
    )


@attack(
    "tls/silent-handshake",
    "begins a handshake on each port and never ends it",
    asset="the service for others",
    success="the port serves nobody else meanwhile",
    open=False,
)
async def silent_handshake(attacker: Attacker) -> Outcome:
    lines = []
    try:
        for server in ("broker", "namesrv", "controller"):
            for _ in range(20):
                context = attacker.dial(server, tls=None)
                line = await context.__aenter__()
                lines.append(context)
                await line.send(b"\x16\x03\x01\x02\x00\x01")
        answer = await attacker.stage.ask("broker", 26)
        return Outcome(answer.code != 0, f"others are served: {answer}")
    except (*GONE, TimeoutError) as error:
        return Outcome(False, f"connection closed: {type(error).__name__}")
    finally:
        for context in lines:
            await context.__aexit__(None, None, None)
