"""keelmq init-security: one directory with everything that closes a cluster.

    DIR/                     what every server needs, mode 700; securityPath=DIR in its own file closes it
      security.conf          keys of all programs; broker.conf, namesrv.conf, controller.conf: of one
      ca.crt server.* member.*   certificates of the ports, and of the connections to other members
      member.json http-tokens raft.key
    DIR/admin/               what an administrator needs: credentials.yml, a certificate, clear HTTP tokens
    DIR/keep-offline/        the key of the CA

Folders are not for servers: `scp DIR/*` and `kubectl create secret --from-file=DIR` leave them out. Nothing
that exists is overwritten. Users and ACLs are state of the servers and not in it: it can be copied again.
"""

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cli.certificates import (
    CaDaysOption,
    CertificatesError,
    DaysOption,
    Role,
    is_host,
    issue,
    new_authority,
    read_authority,
)
from cli.command_line import print
from keelmq.runtime.config import in_words

ADMIN, OFFLINE = "admin", "keep-offline"
CREDENTIALS = "credentials.yml"
ADMINISTRATOR, MEMBER = "admin", "keelmq-member"
SECRET_BYTES = 24
PRIVATE_DIRECTORY, PRIVATE_FILE = 0o700, 0o600

CLUSTER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,48}")
_HERE = "${securityPath}"


class InitSecurityError(Exception):
    """Nothing was created; the text is one line that says why."""


@dataclass(frozen=True)
class SecurityOptions:
    """The options of the command line. `days`, `ca_days`: validity of the certificates and of the CA."""

    cluster: str
    hosts: tuple[str, ...]
    days: int = 365
    ca_days: int = 3_650


def init_security(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to create; it must not exist, or be empty")
    ],
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="brokerClusterName")],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="HOST",
            help="A DNS name or IP address of a server, as clients connect to it; may be given several times",
        ),
    ],
    days: DaysOption = 365,
    ca_days: CaDaysOption = 3_650,
    force: Annotated[
        bool, typer.Option("--force", help="Rename an existing DIR to DIR.<date>, and create a new one")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Create certificates, users, secrets and settings: securityPath=DIR applies them."""
    # Absolute: the programs may be started elsewhere.
    directory = Path(os.path.abspath(directory.expanduser()))
    try:
        options = SecurityOptions(cluster, tuple(dict.fromkeys(hosts)), days, ca_days)
        moved = create(directory, options, force=force)
    except (InitSecurityError, CertificatesError, OSError) as error:
        print(f"keelmq init-security: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error
    steps = next_steps(directory, options)
    if as_json:
        print(json.dumps(_as_value(directory, moved, steps), ensure_ascii=False))
        return
    if moved is not None:
        print(f"moved what was there to {moved}")
    print(f"created {directory}, which only its owner may open: copy it to each server without its folders")
    print(f"  {ADMIN}/         for administrators: {CREDENTIALS}, HTTP tokens, a client certificate")
    print(f"  {OFFLINE}/  the key of the CA: whoever has it can create members and servers")
    for title, commands in steps:
        print(f"\n# {title}")
        print("\n".join(commands))


def create(directory: Path, options: SecurityOptions, *, force: bool = False) -> Path | None:
    """Creates the directory; returns where one was moved that was there before. A failure leaves nothing
    behind. Raises InitSecurityError, CertificatesError, OSError."""
    _check(options)
    moved = None
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        if not force:
            raise InitSecurityError(
                f"{directory} exists and is not empty: nothing was changed; --force moves it away and starts "
                "over, which gives every user, member and server new secrets"
            )
        moved = directory.with_name(f"{directory.name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
        directory.rename(moved)
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE_DIRECTORY)
    directory.chmod(PRIVATE_DIRECTORY)
    try:
        _write_all(directory, options)
    except BaseException:
        for path in directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if not existed:
            directory.rmdir()
        if moved is not None:
            moved.rename(directory)
        raise
    return moved


def _check(options: SecurityOptions) -> None:
    if not CLUSTER_NAME.fullmatch(options.cluster):
        raise InitSecurityError(
            f"--cluster {options.cluster!r} is not a name of at most 48 letters, digits, _ . and -"
        )
    for host in options.hosts:
        if not is_host(host):
            raise InitSecurityError(f"--host {host!r} is neither a DNS name nor an IP address (no port)")


def _write_all(directory: Path, options: SecurityOptions) -> None:
    admin, offline = directory / ADMIN, directory / OFFLINE
    for folder in (admin, offline):
        folder.mkdir(mode=PRIVATE_DIRECTORY)
    _certificates(directory, options)
    password, member_secret = new_secret(), new_secret()
    tokens = {"administer": new_secret(), "read": new_secret()}
    texts = {
        "security.conf": _lines(_common(password)),
        "broker.conf": _lines(_broker()),
        "namesrv.conf": _lines(_namesrv(options)),
        "controller.conf": _lines(_controller()),
        "member.json": json.dumps({"accessKey": MEMBER, "secretKey": member_secret}) + "\n",
        "http-tokens": "".join(
            f"{role} {ADMINISTRATOR if role == 'administer' else 'metrics'} sha256:{_hashed(token)}\n"
            for role, token in tokens.items()
        ),
        "raft.key": new_secret(32) + "\n",
        f"{ADMIN}/{CREDENTIALS}": _credentials(password),
        **{f"{ADMIN}/http-{role}.token": token + "\n" for role, token in tokens.items()},
    }
    for name, text in texts.items():
        write_private(directory / name, text)
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(PRIVATE_FILE)


def _certificates(directory: Path, options: SecurityOptions) -> None:
    """The CA's key is only in the folder that no server gets."""
    admin, offline = directory / ADMIN, directory / OFFLINE
    new_authority(offline, options.ca_days)
    authority = read_authority(offline)
    for folder in (directory, admin):
        shutil.copyfile(offline / "ca.crt", folder / "ca.crt")
    issue(authority, directory, "server", options.hosts, options.days, Role.SERVER)
    issue(authority, directory, "member", [member_name(options.cluster)], options.days, Role.CLIENT)
    issue(authority, admin, "admin", [f"admin.{options.cluster}"], options.days, Role.CLIENT)


def member_name(cluster: str) -> str:
    """Returns the name in the certificate that members show to each other."""
    return f"member.{cluster}"


def _common(password: str) -> Iterable[str]:
    user = json.dumps({"username": ADMINISTRATOR, "password": password}, separators=(",", ":"))
    return (
        "# Defaults of every program with securityPath; its own file overrides them. docs/security.md",
        "",
        "# Requests must be signed by a user, whose ACL says what it may do.",
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        "# The first user, created while there is none; to change its password: mqadmin updateUser.",
        f"initAuthenticationUser={user}",
        "",
        "# What the servers of this cluster sign their own requests with.",
        f"innerClientAuthenticationCredentialsFile={_HERE}/member.json",
        "",
        "# HTTP: a token that administers and one that reads, both in admin, or a user's password.",
        f"httpTokensFile={_HERE}/http-tokens",
        "",
        "# TLS only, at the ports and between the servers. Both keep plain clients out: C++ 1.2 and Node.js",
        "# clients have no TLS, for them set tls.server.mode=permissive.",
        "tls.server.mode=enforcing",
        f"tls.server.certPath={_HERE}/server.crt",
        f"tls.server.keyPath={_HERE}/server.key",
        f"tls.server.trustCertPath={_HERE}/ca.crt",
        "tls.server.need.client.auth=optional",
        "tls.enable=true",
        f"tls.client.certPath={_HERE}/member.crt",
        f"tls.client.keyPath={_HERE}/member.key",
        f"tls.client.trustCertPath={_HERE}/ca.crt",
    )


def _broker() -> Iterable[str]:
    return (
        "# TLS between a master and its slaves, which also prove that they are members.",
        "haTlsMode=enforcing",
        "haTlsEnable=true",
    )


def _namesrv(options: SecurityOptions) -> Iterable[str]:
    return (
        "# Cluster:<name> in ACLs.",
        f"authorizationCluster={options.cluster}",
    )


def _controller() -> Iterable[str]:
    return (
        "# How the controllers of a group know each other.",
        f"controllerRaftSecretFile={_HERE}/raft.key",
    )


def _credentials(password: str) -> str:
    """RocketMQ's mqadmin reads the same file (conf/tools.yml); it ignores `tls`."""
    return "\n".join(
        [
            "# For mqadmin and keelmq: --credentials FILE, or KEELMQ_CREDENTIALS=FILE.",
            f"accessKey: {ADMINISTRATOR}",
            f'secretKey: "{password}"',  # quoted: YAML would read some as numbers
            "tls: {ca: ca.crt, certificate: admin.crt, key: admin.key}",
            "",
        ]
    )


def _lines(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])


def new_secret(size: int = SECRET_BYTES) -> str:
    """Hexadecimal: nothing in it means anything to a shell or to a properties file."""
    return secrets.token_hex(size)


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write_private(path: Path, text: str) -> None:
    """Creates a file that only its owner may open. Raises OSError, also if it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w") as file:
        file.write(text)


def next_steps(directory: Path, options: SecurityOptions) -> list[tuple[str, Sequence[str]]]:
    """Returns the operator's next steps: titles with commands that can be pasted."""
    here, loopback = shlex.quote(str(directory)), ("127.0.0.1", "::1", "localhost")
    remote = [host for host in options.hosts if host not in loopback and not host.startswith("*")]
    steps: list[tuple[str, Sequence[str]]] = []
    if remote:
        steps.append(
            (
                "on each server: the files of this directory, not its folders",
                [
                    line
                    for host in remote
                    for line in (
                        f"ssh {host} mkdir -p -m 700 {here}",
                        f"scp -p {here}/* {host}:{here}/",
                    )
                ],
            )
        )
    steps += [
        (
            "one line in the file of each name server, controller and broker; then restart them",
            [f"echo securityPath={here} >> namesrv.conf", f"echo securityPath={here} >> broker.conf"],
        ),
        (
            "administrators",
            [f"export KEELMQ_CREDENTIALS={here}/{ADMIN}/{CREDENTIALS}", "keelmq doctor -c broker.conf"],
        ),
        (
            "when all servers have their files, take the key of the CA off this machine",
            [f"(umask 077; tar -C {here} -cf {OFFLINE}.tar {OFFLINE}) && rm -r {here}/{OFFLINE}"],
        ),
    ]
    return steps


def _as_value(
    directory: Path, moved: Path | None, steps: Sequence[tuple[str, Sequence[str]]]
) -> dict[str, object]:
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())
    return {
        "directory": str(directory),
        "moved": None if moved is None else str(moved),
        "files": files,
        "next": [{"title": title, "commands": list(commands)} for title, commands in steps],
    }
