"""keelmq init: the files of a new cluster, for each machine as they are on it, and what to type there.

    DIR/HOST/etc/keelmq/               configuration, and the key of the controllers
    DIR/HOST/etc/systemd/system/       the units of every program; those of HOST are to be enabled
    DIR/HOST/etc/sysusers.d, tmpfiles.d  the user keelmq, and who may read the configuration

Nothing that exists is overwritten.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from cli.certificates import is_host
from cli.command_line import print
from cli.init_security import CLUSTER_NAME, new_secret, write_private
from cli.machines.layout import RAFT_KEY, SETTINGS, Machine, machines_of, name_servers, settings_of
from keelmq.remoting.address_text import bracketed
from keelmq.runtime.config import in_words

NAME = "keelmq init"
PREFIX = "/opt/keelmq"
"""Of the programs in the units of the package."""
COPIED = "keelmq-init"
"""The directory of a machine's files on that machine, in the home of whoever copies them."""


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
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the files, and create nothing")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Write configuration files and systemd units for a new cluster, and say what to type on each machine."""
    directory = Path(os.path.abspath(directory.expanduser()))
    try:
        machines = _checked(hosts, cluster, prefix)
        files = files_of(machines, cluster, prefix)
        _refuse_existing(directory)
        if not dry_run:
            _create(directory, files)
    except (InitError, OSError) as error:
        print(f"{NAME}: {in_words(error)}", file=sys.stderr)
        raise typer.Exit(1) from error
    steps = next_steps(directory, machines, prefix)
    if as_json:
        value = {
            "directory": str(directory),
            "created": not dry_run,
            "files": sorted(files),
            "next": [{"title": title, "commands": list(commands)} for title, commands in steps],
        }
        print(json.dumps(value, ensure_ascii=False))
        return
    if dry_run:
        print(f"would create in {directory}:")
        print("\n".join(sorted(files)))
        return
    print(f"created {directory}; it has the key of the controllers, so only its owner may open it")
    for title, commands in steps:
        print(f"\n# {title}")
        print("\n".join(commands))


def _checked(hosts: Sequence[str], cluster: str, prefix: str) -> tuple[Machine, ...]:
    """Raises InitError."""
    if not CLUSTER_NAME.fullmatch(cluster):
        raise InitError(f"--cluster {cluster!r} is not a name of at most 48 letters, digits, _ . and -")
    for host in hosts:
        if not is_host(host) or host.startswith("*"):
            raise InitError(f"--host {host!r} is neither a DNS name nor an IP address (no port)")
    if not prefix.startswith("/") or shlex.quote(prefix) != prefix:
        raise InitError(f"--prefix {prefix!r} is not an absolute path of letters, digits, / _ . and -")
    try:
        return machines_of(hosts)
    except ValueError as error:
        raise InitError(str(error)) from None


def files_of(machines: Sequence[Machine], cluster: str, prefix: str) -> Mapping[str, str]:
    """Returns path below DIR -> text of every file. The key is another one at each call."""
    common = {
        path: text.replace(f"={PREFIX}/", f"={prefix}/")
        for path, text in _package_files(resources.files("cli.machines") / "etc", "etc")
    }
    key = new_secret(32) + "\n"
    found: dict[str, str] = {}
    for machine in machines:
        settings = dict(settings_of(machine, machines, cluster))
        if machine.controller_id is not None:
            settings[RAFT_KEY] = key
        own = {f"{SETTINGS[1:]}/{name}": text for name, text in settings.items()}
        found |= {f"{machine.host}/{path}": text for path, text in (common | own).items()}
    return found


def _package_files(folder: Traversable, path: str) -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        below = f"{path}/{each.name}"
        if each.is_dir():
            yield from _package_files(each, below)
        else:
            yield below, each.read_text(encoding="utf-8")


def _refuse_existing(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise InitError(f"{directory} exists and is not empty: nothing was changed; choose another directory")


def _create(directory: Path, files: Mapping[str, str]) -> None:
    """Creates everything, or leaves nothing behind."""
    existed = directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    try:
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.name == RAFT_KEY:
                write_private(path, text)
            else:
                path.write_text(text, encoding="utf-8")
    except BaseException:
        for each in directory.iterdir():
            shutil.rmtree(each)
        if not existed:
            directory.rmdir()
        raise


def next_steps(directory: Path, machines: Sequence[Machine], prefix: str) -> list[tuple[str, Sequence[str]]]:
    """Returns titles with commands that can be pasted."""
    copies = [
        f"scp -rp {shlex.quote(str(directory / each.host))} {bracketed(each.host)}:{COPIED}"
        for each in machines
    ]
    steps: list[tuple[str, Sequence[str]]] = [("from here to each machine", copies)]
    for purpose in dict.fromkeys(each.purpose for each in machines):
        alike = [each for each in machines if each.purpose == purpose]
        steps.append((f"on {', '.join(each.host for each in alike)}: {purpose}", _commands(alike[0], prefix)))
    shown = shlex.quote(name_servers(machines))
    steps.append(("when all machines run", [f"{prefix}/bin/keelmq status -n {shown}"]))
    return steps


def _commands(machine: Machine, prefix: str) -> list[str]:
    checked = ["broker.conf"] if machine.controller_id is None else ["namesrv.conf", "broker.conf"]
    return [
        f"sudo python3 -m venv {prefix} && sudo {prefix}/bin/pip install keelmq",
        f"sudo cp -r {COPIED}/etc /",
        "sudo systemd-sysusers keelmq.conf && sudo systemd-tmpfiles --create keelmq.conf",
        f"sudo {prefix}/bin/keelmq doctor --offline --here "
        + " ".join(f"-c {SETTINGS}/{each}" for each in checked),
        f"sudo systemctl daemon-reload && sudo systemctl enable --now {' '.join(machine.units)}",
    ]
