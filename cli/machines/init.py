"""keelmq init: the files of a new cluster, for each machine as they are on it, and what to type there.

    DIR/HOST/etc/keelmq/               configuration, and the key of the controllers, or with --secure
    DIR/HOST/etc/keelmq/security/      certificates and secrets of this machine: securityPath
    DIR/HOST/etc/systemd/system/       the units of every program; those of HOST are to be enabled
    DIR/HOST/etc/sysusers.d, tmpfiles.d  the user keelmq, and who may read the configuration
    DIR/admin, client, keep-offline    with --secure: what stays with the operator (cli/security_files.py)

Nothing that exists is overwritten.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from cli.command_line import print
from cli.init_security import check_server_name
from cli.machines.earlier import EarlierFilesError, read_secret, read_security
from cli.machines.layout import (
    CONSOLE_CREDENTIALS,
    RAFT_KEY,
    SECURITY,
    SETTINGS,
    Machine,
    machines_of,
    name_servers,
    settings_of,
)
from cli.private_tree import is_in_use, write_tree
from cli.security_files import (
    ADMIN,
    CLIENT,
    CLUSTER_NAME,
    CREDENTIALS,
    OFFLINE,
    RAFT_SECRET_BYTES,
    Security,
    Server,
    credentials_text,
    new_secret,
    new_security,
)
from keelmq.remoting.address_text import bracketed
from keelmq.runtime.config import in_words

NAME = "keelmq init"
PREFIX = "/opt/keelmq"
"""Of the programs in the units of the package."""
COPIED = "keelmq-init"
"""The directory of a machine's files on that machine, in the home of whoever copies them."""

CLIENT_USER, CONSOLE_USER = "client", "console"
"""With --secure: of applications, and of keelmq-console. Users are state of the servers, so the operator
creates them once these run."""


class InitError(Exception):
    """Nothing was created; the text is one line that says why."""


def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory to create; it must not exist, or be empty")
    ],
    hosts: Annotated[
        list[str],
        typer.Option(
            "--host",
            metavar="HOST",
            help="A machine: its address, or a name that machines and clients resolve; 1, 3, or 3 for each "
            "broker group. The first three have the name servers and controllers",
        ),
    ],
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="brokerClusterName")
    ] = "DefaultCluster",
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix", metavar="DIR", help="Python environment on the machines that has KeelMQ installed"
        ),
    ] = PREFIX,
    secure: Annotated[
        bool,
        typer.Option(
            "--secure",
            help="TLS, signed requests and ACLs from the start, with certificates for each machine",
        ),
    ] = False,
    secure_like: Annotated[
        Path | None,
        typer.Option(
            "--secure-like",
            metavar="OLD",
            help="--secure with the CAs, secrets and users of the files in OLD, for more machines, or new "
            "certificates",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files, and create nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Write configuration files and systemd units for a new cluster, and say what to type on each machine."""
    directory = Path(os.path.abspath(directory.expanduser()))
    try:
        machines = _checked(hosts, cluster, prefix)
        security = _security(secure, secure_like, cluster)
        files = files_of(machines, cluster, prefix, security, _passwords(secure_like))
        if is_in_use(directory):
            raise InitError(
                f"{directory} exists and is not empty: nothing was changed; choose another directory"
            )
        if not dry_run:
            write_tree(directory, files, is_private=_is_private)
    except (InitError, EarlierFilesError, OSError) as error:
        print(f"{NAME}: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error
    steps = next_steps(directory, machines, prefix, cluster if security is not None else None)
    if as_json:
        found = {"directory": str(directory), "created": not dry_run, "files": sorted(files)}
        shown = [{"title": title, "commands": list(commands)} for title, commands in steps]
        print(json.dumps(found | {"next": shown}, ensure_ascii=False))
        return
    if dry_run:
        print(f"would create in {directory}:")
        print("\n".join(sorted(files)))
        return
    _tell(directory, steps, security is not None)


def _tell(directory: Path, steps: Sequence[tuple[str, Sequence[str]]], is_secure: bool) -> None:
    has = "the keys and passwords of the cluster" if is_secure else "the key of the controllers"
    print(f"created {directory}; it has {has}, so only its owner may open it")
    if is_secure:
        print(
            f"  {ADMIN}/         for administrators: {CREDENTIALS}, HTTP tokens, the passwords of two users"
        )
        print(f"  {CLIENT}/        for applications: {CREDENTIALS}, and the certificate of the CA")
        print(f"  {OFFLINE}/  the keys of the CAs: they issue certificates of servers and members")
    for title, commands in steps:
        print(f"\n# {title}")
        print("\n".join(commands))


def _checked(hosts: Sequence[str], cluster: str, prefix: str) -> tuple[Machine, ...]:
    """Raises InitError."""
    if not CLUSTER_NAME.fullmatch(cluster):
        raise InitError(f"--cluster {cluster!r} is not a name of at most 48 letters, digits, _ . and -")
    for host in hosts:
        why = check_server_name(host)
        if why is not None or host.startswith("*"):
            raise InitError(why or f"--host {host!r} names several machines: give each its own --host")
    if not prefix.startswith("/") or shlex.quote(prefix) != prefix:
        raise InitError(f"--prefix {prefix!r} is not an absolute path of letters, digits, / _ . and -")
    try:
        return machines_of(hosts)
    except ValueError as error:
        raise InitError(str(error)) from None


def files_of(
    machines: Sequence[Machine],
    cluster: str,
    prefix: str,
    security: Security | None = None,
    passwords: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Returns path below DIR -> text of every file. `security` None: everything is open. `passwords` None:
    new ones. The keys are others at each call."""
    common = {
        path: text.replace(f"={PREFIX}/", f"={prefix}/")
        for path, text in _package_files(resources.files("cli.machines") / "etc", "etc")
    }
    key = new_secret(RAFT_SECRET_BYTES) + "\n"
    passwords = passwords or {user: new_secret() for user in (CLIENT_USER, CONSOLE_USER)}
    found: dict[str, str] = {} if security is None else _kept(security, passwords)
    for machine in machines:
        settings = dict(settings_of(machine, machines, cluster, is_secure=security is not None))
        if security is not None:
            closing = security.of_server(Server((machine.host,), machine.controller_id))
            closing[CONSOLE_CREDENTIALS] = credentials_text(
                CONSOLE_USER, passwords[CONSOLE_USER], "{ca: ca.crt}"
            )
            settings |= {f"{SECURITY}/{name}": text for name, text in closing.items()}
        elif machine.controller_id is not None:
            settings[RAFT_KEY] = key
        own = {f"{SETTINGS[1:]}/{name}": text for name, text in settings.items()}
        found |= {f"{machine.host}/{path}": text for path, text in (common | own).items()}
    return found


def _kept(security: Security, passwords: Mapping[str, str]) -> dict[str, str]:
    """Returns what no machine gets."""
    administrators = security.of_administrators()
    administrators |= {_password_file(user): password + "\n" for user, password in passwords.items()}
    client = security.of_client(CLIENT_USER, passwords[CLIENT_USER])
    return {
        **security.kept_offline(with_raft=True),
        **{f"{ADMIN}/{name}": text for name, text in administrators.items()},
        **{f"{CLIENT}/{name}": text for name, text in client.items()},
    }


def _security(is_wanted: bool, earlier: Path | None, cluster: str) -> Security | None:
    """Raises EarlierFilesError."""
    if earlier is not None:
        return read_security(earlier.expanduser(), cluster)
    return new_security(cluster) if is_wanted else None


def _passwords(earlier: Path | None) -> Mapping[str, str] | None:
    """Raises EarlierFilesError."""
    if earlier is None:
        return None
    try:
        return {
            user: read_secret(earlier.expanduser() / ADMIN / _password_file(user))
            for user in (CLIENT_USER, CONSOLE_USER)
        }
    except (OSError, ValueError) as error:
        raise EarlierFilesError(in_words(error)) from None


def _password_file(user: str) -> str:
    return f"{user}.password"


def _is_private(name: str) -> bool:
    """Whether a file is for its owner alone: everything but settings without secrets, and units."""
    path = Path(name)
    return path.name == RAFT_KEY or path.parent.name == SECURITY or path.parts[0] in (ADMIN, CLIENT, OFFLINE)


def _package_files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        below = f"{path}/{each.name}"
        if each.is_dir():
            yield from _package_files(each, below)
        else:
            yield below, each.read_text(encoding="utf-8")


def next_steps(
    directory: Path, machines: Sequence[Machine], prefix: str, secured: str | None = None
) -> list[tuple[str, Sequence[str]]]:
    """Returns titles with commands that can be pasted. `secured`: the name of a cluster with security on."""
    copies = [
        f"scp -rp {shlex.quote(str(directory / each.host))} {bracketed(each.host)}:{COPIED}"
        for each in machines
    ]
    steps: list[tuple[str, Sequence[str]]] = [("from here to each machine", copies)]
    is_secure = secured is not None
    for purpose in dict.fromkeys(each.purpose for each in machines):
        alike = [each for each in machines if each.purpose == purpose]
        steps.append(
            (
                f"on {', '.join(each.host for each in alike)}: {purpose}",
                _commands(alike[0], prefix, is_secure),
            )
        )
    shown = shlex.quote(name_servers(machines))
    then = [f"{prefix}/bin/keelmq status -n {shown}"]
    if secured is not None:
        then = [
            f"export KEELMQ_CREDENTIALS={shlex.quote(str(directory / ADMIN / CREDENTIALS))}",
            *_create_users(directory, secured, shown),
            f"keelmq status -n {shown}",
        ]
    title = "when all machines run" if secured is None else "from here, when all machines run"
    steps.append((title, then))
    if secured is not None:
        here = shlex.quote(str(directory))
        away = f"(umask 077; tar -C {here} -cf {OFFLINE}.tar {OFFLINE}) && rm -r {here}/{OFFLINE}"
        steps.append(("keep the keys of the CAs on a medium that no server reads", [away]))
    return steps


def _create_users(directory: Path, cluster: str, name_servers: str) -> list[str]:
    """Returns the commands that create the users of applications and of the console, with their ACLs."""
    to = f"-c {cluster} -n {name_servers}"
    rights = {
        CLIENT_USER: "-r 'Topic:*,Group:*' -a Pub,Sub",
        CONSOLE_USER: f"-r Cluster:{cluster} -a Get",
    }
    commands = []
    for user, granted in rights.items():
        file = shlex.quote(str(directory / ADMIN / _password_file(user)))
        commands += [
            f"mqadmin createUser -u {user} --passwordFile {file} {to}",
            f"mqadmin createAcl -s User:{user} {granted} -d Allow {to}",
        ]
    return commands


def _commands(machine: Machine, prefix: str, is_secure: bool) -> list[str]:
    checked = ["broker.conf"] if machine.controller_id is None else ["namesrv.conf", "broker.conf"]
    return [
        f"sudo python3 -m venv {prefix} && sudo {prefix}/bin/pip install keelmq",
        f"sudo cp -r {COPIED}/etc /" + (f" && rm -r {COPIED}" if is_secure else ""),
        "sudo systemd-sysusers keelmq.conf && sudo systemd-tmpfiles --create keelmq.conf",
        f"sudo {prefix}/bin/keelmq doctor --offline --here "
        + " ".join(f"-c {SETTINGS}/{each}" for each in checked),
        f"sudo systemctl daemon-reload && sudo systemctl enable --now {' '.join(machine.units)}",
    ]
