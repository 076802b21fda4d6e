"""The lines of a file of RocketMQ, as lines for a file of KeelMQ. Pure.

A line whose key means the same here is kept. Every other line stays as a comment with the reason, so nothing
is lost.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from cli.doctor.files import Kind
from keelmq.remoting.address_text import ANY_ADDRESS
from keelmq.runtime.config import SHOWN_CHARACTERS, Config, ConfigError, parse_settings, secret_keys
from keelmq.upstream.keys import look_up, nearest
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig
from proxy.server.config import ProxyConfig

MODELS: Final[Mapping[Kind, tuple[type[Config], ...]]] = {
    Kind.BROKER: (BrokerConfig,),
    Kind.CONTAINER: (ContainerConfig,),
    Kind.NAMESRV: (NamesrvConfig, ControllerConfig),
    Kind.CONTROLLER: (NamesrvConfig, ControllerConfig),
    Kind.PROXY: (ProxyConfig,),
}
RENAMED: Final = {
    "namesrv.addr": "namesrvAddr",
    "enableStartupController": "enableControllerInNamesrv",
    "jRaftGroupId": "controllerDLegerGroup",
}
_COMMENT: Final = re.compile(r"\s#.*$")
_HOME: Final = re.compile(r"\$\{user\.home\}|\$\{HOME\}|\$HOME\b")
_WITH_PORT: Final = re.compile(r"(?P<host>\[.*\]|[^:]*):(?P<port>[0-9]*)")


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


def convert(text: str, kind: Kind) -> tuple[str, list[Row]]:
    """Returns the new file and a row for each line with a key. Pure."""
    peers = _jraft_members(settings_of(text)) if kind in (Kind.CONTROLLER, Kind.NAMESRV) else {}
    rows, lines = list[Row](), list[str]()
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            lines.append(line)
            continue
        row, new = convert_line(number, stripped, MODELS[kind], peers)
        rows.append(row)
        lines += new
    return "".join(f"{line}\n" for line in lines), rows


def settings_of(text: str) -> dict[str, str]:
    """Returns the settings of the lines that are key=value."""
    found: dict[str, str] = {}
    for line in text.removeprefix("\ufeff").splitlines():
        try:
            found |= parse_settings(line, "")
        except ConfigError:
            continue
    return found


def convert_line(
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
