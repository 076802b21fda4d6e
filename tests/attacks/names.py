"""Attacks by names and settings with tricks in them: paths, control characters, lengths, newlines.

They come after the check of users, so here the attacker may do everything: an administrator whose tool is
careless, or one of our own members."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, Identity
from tests.attacks.judging import seen
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import BROKER_NAME, CLUSTER_NAME, MEMBER, send_fields

FILES: Final = "files of the machine"
MARK: Final = "escape-mark"
PATHS: Final = (
    f"../{MARK}",
    f"../../../../../../tmp/{MARK}",
    f"/tmp/{MARK}",
    f"a/../../{MARK}",
    f"..\\{MARK}",
    f"{MARK}\0x",
    f"{MARK}\nx",
    f"{MARK}\x01x\x02",
    ".",
    "..",
    "a/b",
    "x" * 5_000,
    f"%RETRY%../{MARK}",
    f"%DLQ%../../{MARK}",
    f"\u202e{MARK}",
    "\ud7ff\uffff",
    "~root",
    "$(id)",
)
"""None of them is a name of a topic or group. CON and NUL are, and harmless outside of Windows."""
CONFIG_LINE: Final = "injectedKey"
INTO_LINES: Final = (
    f"%s=04\\n{CONFIG_LINE}=1",
    f"%s=04\\u000a{CONFIG_LINE}=1",
    f"%s=04\r{CONFIG_LINE}=1",
    f"%s=04\x85{CONFIG_LINE}=1",
    f"%s=04\u2028{CONFIG_LINE}=1",
    f"{CONFIG_LINE}=1\n%s=04",
)


def escaped(attacker: Attacker) -> list[str]:
    """Files whose names an attack has made, outside of the directories for topics; in /tmp, too."""
    inside = ("consumequeue", "batchconsumequeue")
    places = [attacker.stage.directory, *(attacker.stage.directory.parents[:2]), Path("/tmp")]
    found = {path for place in places for path in place.glob(f"*{MARK}*")}
    for root, folders, files in os.walk(attacker.stage.directory):
        found |= {Path(root, name) for name in (*folders, *files) if MARK in name}
    return sorted(str(path) for path in found if not any(part in inside for part in path.parts))


async def all_refused(
    attacker: Attacker, answers: Iterator[tuple[str, Answer]] | list[tuple[str, Answer]]
) -> Outcome:
    """The attack succeeds if a name was taken, or if there is a file."""
    answer = Answer(0)
    for name, answer in answers:
        if answer.code == 0:
            return Outcome(True, f"{name[:60]!r}: {answer}")
    files = escaped(attacker)
    return Outcome(bool(files), f"files: {files}" if files else str(answer)[:200])


@attack(
    "name/topic",
    "creates topics whose names are paths, or have control characters (17)",
    asset=FILES,
    success="a topic is created, or a file outside of the store",
    open=False,
)
async def topic(attacker: Attacker) -> Outcome:
    answers = []
    for name in PATHS:
        fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        answers.append((name, await _power(attacker, 17, fields)))
    return await all_refused(attacker, answers)


async def _power(attacker: Attacker, code: int, fields: dict[str, object], body: bytes = b"") -> Answer:
    return await attacker.ask("broker", code, fields, body, by=attacker.stage.power, proof=True)


@attack(
    "name/topics",
    "creates such topics in a list (18)",
    asset=FILES,
    success="a topic is created, or a file outside of the store",
    open=False,
)
async def topics(attacker: Attacker) -> Outcome:
    answers = []
    for name in PATHS:
        body = json.dumps({"topicConfigList": [{"topicName": name}]}).encode()
        answers.append((name, await _power(attacker, 18, {}, body)))
    return await all_refused(attacker, answers)


@attack(
    "name/sent-topic",
    "sends to topics with such names, which sending creates (310)",
    asset=FILES,
    success="a topic is created, or a file outside of the store",
    open=False,
)
async def sent_topic(attacker: Attacker) -> Outcome:
    answers = [(name, await _power(attacker, 310, send_fields(name), b"x")) for name in PATHS]
    return await all_refused(attacker, answers)


@attack(
    "name/group",
    "creates groups with such names (200)",
    asset=FILES,
    success="a group is created, or a file outside of the store",
    open=False,
)
async def group(attacker: Attacker) -> Outcome:
    answers = []
    for name in PATHS:
        answers.append((name, await _power(attacker, 200, {}, json.dumps({"groupName": name}).encode())))
    return await all_refused(attacker, answers)


@attack(
    "name/dead-letters",
    "has a dead-letter topic made for a group with such a name (36)",
    asset=FILES,
    success="the message is stored, or a file outside of the store",
    open=False,
)
async def dead_letters(attacker: Attacker) -> Outcome:
    offset = attacker.stage.offsets[0]
    answers = []
    for name in PATHS:
        fields = {"offset": offset, "group": name, "delayLevel": -1}
        answers.append((name, await _power(attacker, 36, fields)))
    return await all_refused(attacker, answers)


@attack(
    "name/kv",
    "stores keys of the name server under namespaces and keys that are paths (100)",
    asset=FILES,
    success="there is a file outside of the name server's own",
    open=False,
)
async def kv(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for name in PATHS:
        fields = {"namespace": name, "key": name, "value": name}
        answer = await attacker.ask("namesrv", 100, fields, by=attacker.stage.power, proof=True)
    files = escaped(attacker)
    return Outcome(bool(files), f"files: {files}" if files else str(answer)[:200])


@attack(
    "name/broker",
    "registers brokers and clusters with such names at the controller (1012, 1013)",
    asset=FILES,
    success="there is a file outside of the controller's own",
    open=False,
)
async def broker(attacker: Attacker) -> Outcome:
    by = MEMBER if attacker.stage.is_closed else None
    answer = Answer(0)
    for name in (*PATHS, "a#b", "a;b", "a@b"):
        for fields in (
            {"clusterName": CLUSTER_NAME, "brokerName": name},
            {"clusterName": name, "brokerName": "b"},
        ):
            answer = await attacker.ask("controller", 1012, fields, by=by, proof=True)
            more = {**fields, "appliedBrokerId": 1, "registerCheckCode": f"{name};1"}
            answer = await attacker.ask("controller", 1013, more, by=by, proof=True)
    files = escaped(attacker)
    return Outcome(bool(files), f"files: {files}" if files else str(answer)[:200])


def injected(attacker: Attacker) -> list[str]:
    """Files with a line that sets the injected key."""
    found = []
    for root, _, files in os.walk(attacker.stage.directory):
        for name in files:
            path = Path(root, name)
            if path.stat().st_size < 1_000_000 and path.suffix != ".log":
                lines = path.read_bytes().replace(b"\r", b"\n").splitlines()
                if any(line.startswith(CONFIG_LINE.encode()) for line in lines):
                    found.append(str(path))
    return found


async def into_lines(attacker: Attacker, server: str, code: int, keys: tuple[str, ...]) -> Outcome:
    """Values with line ends in all forms: none may become a line of a file that is read at the next start."""
    answer = Answer(0)
    for form in INTO_LINES:
        for key in keys:
            answer = await attacker.ask(
                server, code, {}, (form % key).encode(), by=attacker.stage.power, proof=True
            )
    files = injected(attacker)
    return Outcome(bool(files), f"files: {files}" if files else str(answer)[:200])


for id, name, server, code, keys in (
    (
        "name/broker-setting",
        "hides another setting behind a line end in a value (25)",
        "broker",
        25,
        ("deleteWhen", "fileReservedTime"),
    ),
    ("name/namesrv-setting", "the same at the name server (318)", "namesrv", 318, ("supportActingMaster",)),
    (
        "name/controller-setting",
        "the same at the controller (1009)",
        "controller",
        1009,
        ("enableElectUncleanMaster",),
    ),
):
    attack(
        id,
        name,
        asset="settings",
        success="a file has the hidden setting in a line of its own",
        open=False,
    )(partial(into_lines, server=server, code=code, keys=keys))

SECURITY_KEYS: Final = (
    b"authenticationEnabled=false\n",
    b"authorizationEnabled=false\n",
    b"authenticationWhitelist=310,11\n",
    b"initAuthenticationUser={}\n",
    b"innerClientAuthenticationCredentials={}\n",
    b"memberCertificateNames=evil\n",
    b"tls.server.mode=permissive\n",
    b"securityPath=/tmp\n",
    b"usersPath=/tmp\n",
    b"storePathRootDir=/tmp\n",
    b"kvConfigPath=/tmp/x\n",
    b"controllerStorePath=/tmp\n",
)


@attack(
    "name/security-settings",
    "switches security off, or moves files, by a request for settings (25, 318, 1009)",
    asset="settings",
    success="a server takes one of them, even from an administrator",
    open=False,
)
async def security_settings(attacker: Attacker) -> Outcome:
    answer, power = Answer(0), attacker.stage.power
    for server, code in (("broker", 25), ("namesrv", 318), ("controller", 1009)):
        for line in SECURITY_KEYS:
            answer = await attacker.ask(server, code, {}, line, by=power, proof=True)
            if answer.code == 0:
                return Outcome(True, f"{code} {line!r}: {answer}")
    return Outcome(False, str(answer)[:200])


@attack(
    "name/log-lines",
    "forges lines of the log: line ends in names of users, topics and clients",
    asset="what operators read",
    success="a log has a line that the attacker has written",
    open=False,
)
async def log_lines(attacker: Attacker) -> Outcome:
    forged = "2026-01-01 00:00:00.000 INFO forged-line"
    for server in ("broker", "namesrv", "controller"):
        for name in (f"x\n{forged}", f"x\r{forged}", f"x\u2028{forged}"):
            attacker.move()
            await attacker.ask(server, 26, {"topic": name, "b": name}, by=Identity(name, "s"))
            await attacker.ask(server, 1012, {"clusterName": name, "brokerName": name}, by=None)
            await attacker.send(server, request_of(34, {}, json.dumps({"clientID": name}).encode()))
    for program in attacker.stage.cluster.programs:
        for line in program.log_path.read_text(errors="replace").replace("\r", "\n").splitlines():
            if line.startswith(forged):
                return seen(True, Answer(0, f"{program.name}: {line[:80]}"))
    return Outcome(False, "no such line")


@attack(
    "name/client-properties",
    "puts separators into properties and keys, to make others of them",
    asset="alice's messages",
    success="the broker stores a message that a zero byte ends",
    open=False,
)
async def client_properties(attacker: Attacker) -> Outcome:
    text = f"KEYS\x01a\0b\x02{BROKER_NAME}\x01\x02"
    answer = await _power(attacker, 310, send_fields("alice-properties", text), b"x")
    return Outcome(answer.code == 0, str(answer))
