"""`keelmq convert-config`: makes files of KeelMQ from files of RocketMQ, and reports what became of each key.

A line whose key means the same here is kept. Every other line stays in the new file as a comment with the
reason, so nothing is lost. Exit codes: 0 every file is converted; 1 a key asks for a feature that is missing,
or is unknown, or the result would not start; 2 usage.
"""

import functools
import json
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
import yaml

from broker.config.broker_config import ANY_ADDRESS, BrokerConfig
from broker.container.config import ContainerConfig
from cli.command_line import print, refused
from cli.doctor.files import Kind, kind_of, load
from keelmq.health.findings import Level
from keelmq.runtime.config import (
    SHOWN_CHARACTERS,
    Config,
    ConfigError,
    parse_settings,
    read_named,
    secret_keys,
)
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.printable import printable_line
from keelmq.upstream.keys import look_up, nearest, verdicts
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

MODELS: Final[Mapping[Kind, tuple[type[Config], ...]]] = {
    Kind.BROKER: (BrokerConfig,),
    Kind.CONTAINER: (ContainerConfig,),
    Kind.NAMESRV: (NamesrvConfig, ControllerConfig),
    Kind.CONTROLLER: (NamesrvConfig, ControllerConfig),
}
ENCODINGS: Final = ("utf-8", "gb18030")
"""gb18030 reads any bytes: files with comments in Chinese."""
RENAMED: Final = {
    "namesrv.addr": "namesrvAddr",
    "enableStartupController": "enableControllerInNamesrv",
    "jRaftGroupId": "controllerDLegerGroup",
}
_COMMENT: Final = re.compile(r"\s#.*$")
_HOME: Final = re.compile(r"\$\{user\.home\}|\$\{HOME\}|\$HOME\b")
_WITH_PORT: Final = re.compile(r"(?P<host>\[.*\]|[^:]*):(?P<port>[0-9]*)")
_PROGRAM: Final = re.compile(r"\bmq(namesrv|broker|controller|proxy)")


class Verdict(StrEnum):
    """What became of a line."""

    KEPT = "kept"
    CHANGED = "changed"
    NO_EFFECT = "without effect"
    MISSING = "missing here"
    UNKNOWN = "unknown"


class Row(msgspec.Struct, frozen=True, rename="camel"):
    """One line of a file that has a key. `note`: why it is not as it was."""

    line: int
    key: str
    verdict: Verdict
    note: str


class Converted(msgspec.Struct, frozen=True, rename="camel"):
    """One file. `problems`: why the new file would not start."""

    file: str
    program: str
    rows: list[Row]
    problems: list[str]
    output: str | None


def convert(text: str, kind: Kind) -> tuple[str, list[Row]]:
    """Returns the new file and a row for each line with a key. Pure."""
    peers = _jraft_members(_settings(text)) if kind in (Kind.CONTROLLER, Kind.NAMESRV) else {}
    rows, lines = list[Row](), list[str]()
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            lines.append(line)
            continue
        row, new = _row(number, stripped, MODELS[kind], peers)
        rows.append(row)
        lines += new
    return "".join(f"{line}\n" for line in lines), rows


def _settings(text: str) -> dict[str, str]:
    """Returns the settings of the lines that are key=value."""
    found: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        try:
            found |= parse_settings(line, "")
        except ConfigError:
            continue
    return found


def _row(
    number: int, line: str, models: Sequence[type[Config]], peers: Mapping[str, str]
) -> tuple[Row, Sequence[str]]:
    """Returns the row of a line, and the lines for the new file."""
    try:
        ((key, value),) = parse_settings(line, "").items()
    except ConfigError:
        row = Row(number, line[:SHOWN_CHARACTERS], Verdict.UNKNOWN, "not key=value")
        return row, (f"# not key=value: {line}",)
    if key in peers:
        note = f"{peers[key].partition('=')[0]} of a controller group that is not jRaft's"
        return Row(number, key, Verdict.CHANGED, note), (f"# changed, {note}: {line}", peers[key])
    secret = secret_keys(*models)  # these may have any characters
    plain, notes = (value, []) if key in secret else _repaired(value)
    known = {field.alias or name for model in models for name, field in model.model_fields.items()}
    name = RENAMED.get(key, key)
    if name != key:
        notes.append(f"is {name} here")
    if name in known:
        if name in ("brokerIP1", "brokerIP2"):
            if with_port := _WITH_PORT.fullmatch(plain):
                plain = with_port["host"].strip("[]")
                notes.append(f"the port {with_port['port']} is that of listenPort or haListenPort")
            if plain in ANY_ADDRESS:
                why = "nothing can connect to it: the address is detected"
                return Row(number, key, Verdict.CHANGED, why), (f"# {why}: {line}",)
        if not notes:
            return Row(number, key, Verdict.KEPT, ""), (line,)
        note = "; ".join(notes)
        row = Row(number, key, Verdict.CHANGED, note)
        return row, (f"# changed, {note}: {line}", f"{name}={plain}")
    classes = frozenset(each for model in models for each in model.UPSTREAM)
    foreign = look_up(name, plain, classes)
    if foreign is None:
        close = nearest(name, known | set(RENAMED), classes)
        note = f"no release of RocketMQ has it{f'; did you mean {close}?' if close else ''}"
        return Row(number, key, Verdict.UNKNOWN, note), (f"# unknown, {note}: {line}",)
    verdict = Verdict.MISSING if foreign.is_refused else Verdict.NO_EFFECT
    return Row(number, key, verdict, foreign.why), (f"# {verdict}, {foreign.why}: {line}",)


def _repaired(value: str) -> tuple[str, list[str]]:
    """Returns the value as its author means it, and what was changed."""
    notes = []
    if (plain := _COMMENT.sub("", value)) != value:
        notes.append("without the comment behind the value")
    if len(plain) > 1 and plain[0] == plain[-1] and plain[0] in "\"'":
        plain = plain[1:-1]
        notes.append("without quotes")
    if (path := _HOME.sub("~", plain)) != plain:
        plain = path
        notes.append("~ is the home directory")
    return plain, notes


def _jraft_members(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the lines of a controller group in place of those of the jRaft group, by jRaft's keys. Members
    get the ids n0, n1, ... in the order of jRaftInitConf; jRaftControllerRPCAddr has the addresses at which
    they answer requests."""
    raft = [each.strip() for each in settings.get("jRaftInitConf", "").split(",") if each.strip()]
    requests = [
        each.strip() for each in settings.get("jRaftControllerRPCAddr", "").split(",") if each.strip()
    ]
    own = settings.get("jRaftServerId", "")
    if not raft or len(raft) != len(requests) or own not in raft:
        return {}
    return {
        "controllerType": "controllerType=DLedger",
        "jRaftInitConf": "controllerRaftPeers=" + ";".join(f"n{i}-{each}" for i, each in enumerate(raft)),
        "jRaftControllerRPCAddr": "controllerDLegerPeers="
        + ";".join(f"n{i}-{each}" for i, each in enumerate(requests)),
        "jRaftServerId": f"controllerDLegerSelfId=n{raft.index(own)}",
    }


def convert_acl(content: Mapping[str, object]) -> list[Row]:
    """Returns the rows of a plain_acl.yml, which programs here read as it is."""
    accounts = content.get("accounts")
    listed = accounts if isinstance(accounts, list) else []
    names = [str(each.get("accessKey", "")) for each in listed if isinstance(each, dict)]
    note = "aclEnable=true reads this file; migrateAuthFromV1Enabled=true makes users and ACLs 2.0 of it"
    rows = [Row(0, f"account {name}", Verdict.KEPT, note) for name in names]
    if content.get("globalWhiteRemoteAddresses"):
        note = "ACL 1.0 admits these addresses without an account; users and ACLs 2.0 have nothing like it"
        rows.insert(0, Row(0, "globalWhiteRemoteAddresses", Verdict.KEPT, note))
    return rows


def convert_compose(content: Mapping[str, object]) -> list[Row]:
    """Returns the rows of the services in a compose file that run RocketMQ: a proxy, and the environment
    variables."""
    services = content.get("services")
    rows = []
    for service, settings in (services if isinstance(services, dict) else {}).items():
        if not isinstance(settings, dict):
            continue
        given = settings.get("environment") or {}
        listed = given if isinstance(given, dict | list) else []
        names = [str(each).partition("=")[0] for each in listed]
        image, command = str(settings.get("image", "")).lower(), str(settings.get("command", ""))
        is_rocketmq = "rocketmq" in image or "NAMESRV_ADDR" in names or _PROGRAM.search(command)
        if image and not is_rocketmq:
            continue  # a database, a cache: whatever else the file starts
        if "mqproxy" in command or "--enable-proxy" in command:
            proxy = verdicts().missing["enableProxy"]
            rows.append(Row(0, f"{service} proxy", Verdict.MISSING, f"{proxy.why}; start the other services"))
        if "dashboard" in image or "console" in image:
            note = "a setting of RocketMQ's dashboard, which works with name servers and brokers here"
            rows += [Row(0, f"{service} {name}", Verdict.KEPT, note) for name in names]
            continue
        rows += [_variable(f"{service} {name}", name) for name in names]
    return rows


def _variable(shown: str, name: str) -> Row:
    if name == "NAMESRV_ADDR":
        return Row(0, shown, Verdict.KEPT, "mqbroker and mqadmin read it, too")
    if name.startswith(("JAVA_", "JDK_", "JVM_", "MAX_HEAP", "MAX_POSSIBLE_HEAP", "HEAP_")):
        return Row(0, shown, Verdict.NO_EFFECT, "there is no Java")
    if name == "TZ":
        return Row(0, shown, Verdict.KEPT, "")
    key = _keys_by_variable().get(name.replace("_", "").replace(".", "").lower())
    if key is None:
        note = "no program reads it; write the setting into the program's file, or as KEELMQ_ + key"
    else:
        note = f"no program reads it; write {key} into the program's file, or KEELMQ_{key} here"
    return Row(0, shown, Verdict.UNKNOWN, note)


@functools.cache
def _keys_by_variable() -> Mapping[str, str]:
    """Returns the keys of all programs by the name that a variable for them would have, without
    underscores."""
    models = dict.fromkeys(model for of_kind in MODELS.values() for model in of_kind)
    keys = [field.alias or name for model in models for name, field in model.model_fields.items()]
    return {"clustername": "brokerClusterName", **{key.lower(): key for key in keys}}


def convert_config(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="Files of RocketMQ: *.conf, plain_acl.yml, docker-compose.yml"),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Write the new files there (default: only report)"
        ),
    ] = None,
    kind: Annotated[
        Kind | None, typer.Option("--kind", help="Program that the files are for (default: from their keys)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of lines")] = False,
) -> None:
    """Turn configuration files of RocketMQ into files of KeelMQ, and report what became of each key.

    Changes none of the given files. A line that does not apply here stays in the new file as a comment.
    """
    _check_targets(files, output)
    converted = [_convert_file(path, output, kind) for path in files]
    if as_json:
        print(json.dumps({"files": msgspec.to_builtins(converted)}, ensure_ascii=False))
    else:
        for each in converted:
            _print(each)
    raise typer.Exit(0 if all(map(_is_whole, converted)) else 1)


def _check_targets(files: Sequence[Path], output: Path | None) -> None:
    """Refuses to overwrite a file, before anything is written."""
    targets = [] if output is None else [output / path.name for path in files if not _is_yaml(path)]
    for target in targets:
        if target.exists() or targets.count(target) > 1:
            raise typer.BadParameter(f"{target} would be overwritten: give another --output")


def _is_yaml(path: Path) -> bool:
    return path.suffix in (".yml", ".yaml")


def _is_whole(converted: Converted) -> bool:
    left = {Verdict.MISSING, Verdict.UNKNOWN} & {row.verdict for row in converted.rows}
    return not left and not converted.problems


def _convert_file(path: Path, output: Path | None, kind: Kind | None) -> Converted:
    try:
        text = _decoded(read_named(path))
        is_private = not path.stat().st_mode & 0o077  # it may have secrets, and so has the new file
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}") from error
    if _is_yaml(path):
        return Converted(str(path), "", _of_yaml(path, text), [], None)
    settings = _settings(text)
    kind = kind or kind_of({RENAMED.get(key, key): value for key, value in settings.items()})
    if kind is None:
        raise typer.BadParameter(
            f"{path}: its keys do not show which program it is for: give --kind, one of {', '.join(Kind)}"
        )
    new, rows = convert(text, kind)
    with tempfile.TemporaryDirectory(prefix="keelmq-convert-") as scratch:
        target = (output or Path(scratch)) / path.name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, new.encode(), keep_backup=False, private=is_private)
        except OSError as error:
            raise refused(f"{target} cannot be written: {error.strerror}") from error
        _, findings = load(target, kind, target.name)
    # Without --output, the reader knows nothing of the directory of the new file.
    problems = [each.text.replace(f"{target.parent}/", "") for each in findings if each.level is Level.FAILED]
    return Converted(str(path), kind, rows, problems, str(target) if output else None)


def _decoded(content: bytes) -> str:
    for encoding in ENCODINGS[:-1]:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return content.decode(ENCODINGS[-1], errors="replace")


def _of_yaml(path: Path, text: str) -> list[Row]:
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise typer.BadParameter(f"{path}: not YAML: {str(error).splitlines()[0]}") from error
    if isinstance(content, dict) and "services" in content:
        return convert_compose(content)
    if isinstance(content, dict) and {"accounts", "globalWhiteRemoteAddresses"} & content.keys():
        return convert_acl(content)
    raise typer.BadParameter(f"{path}: neither a plain_acl.yml nor a compose file")


def _print(converted: Converted) -> None:
    counts = ", ".join(
        f"{count} {verdict}" for verdict in Verdict if (count := _count(converted.rows, verdict))
    )
    print(f"{converted.file}: {converted.program or 'YAML'}; {counts or 'no settings'}")
    for row in converted.rows:
        if row.verdict is not Verdict.KEPT:
            where = f"line {row.line}, " if row.line else ""
            print(printable_line(f"  {where}{row.key}: {row.verdict}: {row.note}"))
    for problem in converted.problems:
        print(printable_line(f"  would not start: {problem}"))
    if converted.output:
        print(f"  written: {converted.output}")


def _count(rows: Iterable[Row], verdict: Verdict) -> int:
    return sum(row.verdict is verdict for row in rows)
