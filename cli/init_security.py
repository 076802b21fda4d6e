"""keelmq init-security: one directory with everything that closes a cluster.

    DIR/HOST/                what this server needs, and no other: copy it there; securityPath names the copy
      security.conf          keys of all programs; broker.conf, namesrv.conf, controller.conf: of one
      ca.crt server.* member.*   certificates of the ports, and of the connections to other members
      member.json http-tokens raft.key
    DIR/admin/               what an administrator needs: credentials.yml, a certificate, clear HTTP tokens
    DIR/keep-offline/        the key of the CA

With one server, and with --together, the files of DIR/HOST are in DIR itself: folders are not for servers,
and `scp DIR/*` and `kubectl create secret --from-file=DIR` leave them out. Nothing that exists is
overwritten. Users and ACLs are state of the servers and not in it: it can be copied again.
"""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from cli.certificates import CA_DAYS, DAYS, CaDaysOption, DaysOption, is_host
from cli.command_line import print
from cli.private_tree import is_in_use, write_tree
from cli.security_files import (
    ADMIN,
    CLIENT,
    CLUSTER_NAME,
    CREDENTIALS,
    OFFLINE,
    Server,
    new_security,
)
from keelmq.remoting.address_text import bracketed
from keelmq.runtime.config import in_words

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class InitSecurityError(Exception):
    """Nothing was created; the text is one line that says why."""


@dataclass(frozen=True)
class SecurityOptions:
    """The options of the command line. `hosts`: one for each server, with all names of that server, separated
    by commas. `days`, `ca_days`: validity of the certificates and of the CA."""

    cluster: str
    hosts: tuple[str, ...]
    days: int = DAYS
    ca_days: int = CA_DAYS
    together: bool = False

    @property
    def servers(self) -> Mapping[str, tuple[str, ...]]:
        """Folder -> names of the server whose files are in it. "" is the directory itself, for one server,
        or for all of them together, as a wildcard name requires."""
        names = [tuple(host.split(",")) for host in self.hosts]
        every = tuple(dict.fromkeys(name for each in names for name in each))
        if self.together or len(names) == 1 or any(name.startswith("*") for name in every):
            return {"": every}
        return {each[0]: each for each in names}


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
            help="A server: its DNS name or IP address, as clients connect to it, or several of them "
            "separated by commas; may be given several times",
        ),
    ],
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="One private key for all servers (one Secret for all pods); a HOST with * implies it",
        ),
    ] = False,
    days: DaysOption = DAYS,
    ca_days: CaDaysOption = CA_DAYS,
    force: Annotated[
        bool, typer.Option("--force", help="Rename an existing DIR to DIR.<date>, and create a new one")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Create certificates, users, secrets and settings: securityPath=DIR applies them."""
    # Absolute: the programs may be started elsewhere.
    directory = Path(os.path.abspath(directory.expanduser()))
    try:
        options = SecurityOptions(cluster, tuple(dict.fromkeys(hosts)), days, ca_days, together)
        moved = create(directory, options, force=force)
    except (InitSecurityError, OSError) as error:
        print(f"keelmq init-security: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error
    steps = next_steps(directory, options)
    if as_json:
        print(json.dumps(_as_value(directory, moved, steps), ensure_ascii=False))
        return
    if moved is not None:
        print(f"moved what was there to {moved}")
    shared = "" in options.servers
    what = "it to each server without its folders" if shared else "to each server the folder with its name"
    print(f"created {directory}, which only its owner may open: copy {what}")
    print(f"  {ADMIN}/         for administrators: {CREDENTIALS}, HTTP tokens, a client certificate")
    print(f"  {OFFLINE}/  the key of the CA: whoever has it can create members and servers")
    for title, commands in steps:
        print(f"\n# {title}")
        print("\n".join(commands))


def create(directory: Path, options: SecurityOptions, *, force: bool = False) -> Path | None:
    """Creates the directory; returns where one was moved that was there before. A failure leaves nothing
    behind. Raises InitSecurityError, OSError."""
    _check(options)
    moved = None
    if is_in_use(directory):
        if not force:
            raise InitSecurityError(
                f"{directory} exists and is not empty: nothing was changed; --force moves it away and starts "
                "over, which gives every user, member and server new secrets"
            )
        moved = directory.with_name(f"{directory.name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}")
        directory.rename(moved)
    try:
        write_tree(directory, files_of(options), is_private=lambda name: True)
    except BaseException:
        if moved is not None:
            moved.rename(directory)
        raise
    return moved


def files_of(options: SecurityOptions) -> Mapping[str, str]:
    """Returns path below DIR -> text of every file. The secrets are others at each call."""
    security = new_security(options.cluster, days=options.days, ca_days=options.ca_days)
    found = dict(security.kept_offline(with_raft=False))
    found |= {f"{ADMIN}/{name}": text for name, text in security.of_administrators().items()}
    for folder, names in options.servers.items():
        of_server = security.of_server(Server(names, shares_raft_key=True))
        found |= {f"{folder}/{name}".lstrip("/"): text for name, text in of_server.items()}
    return found


def check_server_name(host: str) -> str | None:
    """Returns why no server can have this name; None: it can."""
    if not is_host(host):
        return f"--host {host!r} is neither a DNS name nor an IP address (no port)"
    if host in (ADMIN, CLIENT, OFFLINE):
        return f"--host {host!r} is the name of a folder beside those of the servers; use a longer name"
    return None


def _check(options: SecurityOptions) -> None:
    if not CLUSTER_NAME.fullmatch(options.cluster):
        raise InitSecurityError(
            f"--cluster {options.cluster!r} is not a name of at most 48 letters, digits, _ . and -"
        )
    for host in (name for each in options.hosts for name in each.split(",")):
        if (why := check_server_name(host)) is not None:
            raise InitSecurityError(why)
    first = [host.split(",")[0] for host in options.hosts]
    if twice := next((name for name in first if first.count(name) > 1), None):
        raise InitSecurityError(f"--host {twice!r} is given for two servers")


def next_steps(directory: Path, options: SecurityOptions) -> list[tuple[str, Sequence[str]]]:
    """Returns the operator's next steps: titles with commands that can be pasted."""
    here = shlex.quote(str(directory))
    shared = "" in options.servers
    steps: list[tuple[str, Sequence[str]]] = []
    copies = list(_copies(directory, options))
    if copies:
        title = "the files of this directory, not its folders" if shared else "the files of its own folder"
        steps.append((f"on each server: {title}", copies))
    for path, where in _places(directory, options):
        line = f"echo securityPath={shlex.quote(str(path))} >>"
        title = f"one line in the file of each name server, controller and broker{where}; then restart them"
        steps.append((title, [f"{line} namesrv.conf", f"{line} broker.conf"]))
    steps += [
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


def _copies(directory: Path, options: SecurityOptions) -> Iterator[str]:
    """Copies to the same path on each machine that is not this one."""
    here = shlex.quote(str(directory))
    for host in (each.split(",")[0] for each in options.hosts):
        if host not in _LOOPBACK and not host.startswith("*"):
            source = here if "" in options.servers else shlex.quote(str(directory / host))
            yield f"ssh {host} mkdir -p -m 700 {here}"
            yield f"scp -p {source}/* {bracketed(host)}:{here}/"


def _places(directory: Path, options: SecurityOptions) -> Iterator[tuple[Path, str]]:
    """Yields securityPath, and of which servers; servers of this machine use the files where they are."""
    local = [name for name in options.servers if name in _LOOPBACK]
    if len(local) < len(options.servers):
        yield directory, " on another machine than this" if local else ""
    for name in local:
        yield directory / name, f" of {name}"


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
