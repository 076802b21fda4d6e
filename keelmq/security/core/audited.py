"""Which requests the audit log records, and which parts of a request.

Acts are recorded whatever their outcome: administrative requests, and changes of topics, groups, offsets,
permissions or settings. The routine of members (registrations, heartbeats, SyncStateSets) would bury them,
and data never ends: of those only refusals are recorded.

A field of a request is written only if its name is in RESOURCE_FIELDS, so an unforeseen secret stays out.
Bodies are never written."""

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from keelmq.remoting.booleans import is_true
from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import OUTCOME_UNKNOWN
from keelmq.security.core.contexts import Role, Unreadable
from keelmq.security.core.rules import RULES, required_contexts, rule_of
from keelmq.security.core.signature import ExtFields


class Kind(StrEnum):
    """ACT: always recorded. ROUTINE: of members; DATA: of producers and consumers, and what only reads."""

    ACT = "act"
    ROUTINE = "routine"
    DATA = "data"


class Outcome(StrEnum):
    """REFUSED: by the access check, or by a rule with the same code. UNKNOWN: it may have been done."""

    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"
    UNKNOWN = "unknown"


DATA_PATH: Final = frozenset(
    {
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.RECALL_MESSAGE,
        Code.END_TRANSACTION,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE,
        Code.POP_MESSAGE,
        Code.PEEK_MESSAGE,
        Code.NOTIFICATION,
        Code.ACK_MESSAGE,
        Code.BATCH_ACK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.KEELMQ_RENEW_POPPED,
        Code.HEART_BEAT,
        Code.UNREGISTER_CLIENT,
        Code.LOCK_BATCH_MQ,
        Code.UNLOCK_BATCH_MQ,
        Code.UPDATE_CONSUMER_OFFSET,
    }
)
"""What producers and consumers send although its role is not READ."""

READS: Final = frozenset({Code.AUTH_GET_USER, Code.AUTH_LIST_USER, Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL})
"""They need the role ADMINISTER, and change nothing: the console and `keelmq status` repeat them."""

RESOURCE_FIELDS: Final = frozenset({
    "topic", "b", "group", "groupName", "consumerGroup", "producerGroup", "srcGroup", "destGroup",
    "queueId", "offset", "timestamp", "isForce", "readQueueNums", "writeQueueNums", "perm", "order",
    "attributes", "topicFilterType", "topicSysFlag", "cleanOffset", "readable", "offline", "clusterName",
    "brokerName", "brokerId", "brokerAddr", "brokerAddress", "brokerControllerIdsToClean",
    "isCleanLivingBroker", "designateElect", "masterBrokerId", "masterEpoch", "syncStateSetEpoch",
    "equalReplicas", "epoch", "appliedBrokerId", "namespace", "key", "username", "filter", "subject",
    "policyType", "resource", "subjectFilter", "resourceFilter", "controllerId", "controllerAddress",
    "forwarded", "forwardedFor", "dryRun", "clientId", "msgId", "READ_AHEAD_MODE", "minBrokerId",
    "minBrokerAddr", "offlineBrokerAddr", "masterAddress", "masterHaAddress", "clientAddr",
    "advertisedListeners", "brokerClusterName", "configPath", "worker", "backupName", "bytesPerSecond",
})  # fmt: skip
"""Header fields that are written. `b`: the topic of SEND_MESSAGE_V2."""

TEXT_MAX: Final = 256
"""Characters of one value."""
REMARK_CHARS_MAX: Final = 4_096
"""A refusal quotes names of any length."""
FIELDS_MAX: Final = 32
BODY_BYTES_MAX: Final = 65_536
"""Longer bodies are not looked into: a sender that is refused has sent them at no cost."""
CHANGES_MAX: Final = 100

MASK: Final = "**********"
_CODES: Final = frozenset(map(int, Code))
_CONFIG: Final = frozenset(
    {Code.UPDATE_BROKER_CONFIG, Code.UPDATE_NAMESRV_CONFIG, Code.UPDATE_CONTROLLER_CONFIG}
)
_USERS: Final = frozenset({Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER})
_SECRET_KEY: Final = re.compile(
    r"passw|secret|credential|initAuthenticationUser|private|signature|token", re.IGNORECASE
)
_QUOTED_LINE: Final = re.compile(
    r"""(line \d+): (?:'.*'|".*")(?= (?:is not key=value|has a NUL))""", re.DOTALL
)


def kind_of(code: int) -> Kind:
    """A code that no table has is an act."""
    rule = rule_of(code)
    if rule.role is Role.READ or code in DATA_PATH or code in READS:
        return Kind.DATA
    return Kind.ROUTINE if rule.members_only else Kind.ACT


NO_ACTS: Final = frozenset(code for code in RULES if kind_of(code) is not Kind.ACT)
"""For a check that every request passes."""


def outcome_of(answer: int) -> Outcome:
    """answer: a ResponseCode, or OUTCOME_UNKNOWN."""
    if answer == ResponseCode.SUCCESS:
        return Outcome.OK
    if answer == ResponseCode.NO_PERMISSION:
        return Outcome.REFUSED
    return Outcome.UNKNOWN if answer == OUTCOME_UNKNOWN else Outcome.FAILED


def is_without_effect(code: int, fields: ExtFields, changes: Mapping[str, object]) -> bool:
    """Returns whether an act had no effect: brokers without a master send 1002 again and again, and tools ask
    what it would do."""
    if code != Code.CONTROLLER_ELECT_MASTER or changes:
        return False
    return not is_true(fields.get("designateElect")) or is_true(fields.get("dryRun"))


def name_of(code: int) -> str:
    """Returns the name of a request code; "": there is none."""
    return Code(code).name if code in _CODES else ""


def fields_of(fields: ExtFields) -> dict[str, str]:
    """Returns what a request is about, as its header says it."""
    named = sorted(RESOURCE_FIELDS & fields.keys())[:FIELDS_MAX]
    return {name: short(value) for name in named if (value := fields[name])}


def resources_of(code: int, fields: ExtFields, body: bytes) -> list[str]:
    """Returns the resources that the request needs rights to, such as `Topic:orders`, also those of a body;
    not the cluster, which is the resource of everything else."""
    if len(body) > BODY_BYTES_MAX:
        body = b""
    try:
        contexts = required_contexts(code, fields, body, "").contexts
    except Unreadable:
        return []
    keys = dict.fromkeys(context.resource.key for context in contexts)
    return [short(key) for key in keys if not key.startswith("Cluster:")][:FIELDS_MAX]


def remark_of(code: int, remark: str, body: bytes) -> str:
    """Returns the remark of an answer without what it may quote of a secret."""
    if len(body) > BODY_BYTES_MAX and code in _CONFIG | _USERS:
        return "" if not remark else "(it may quote a body that is too long to look for secrets in)"
    if len(remark) > REMARK_CHARS_MAX and code in _CONFIG | _USERS:
        return f"(it is too long to look for secrets in: {len(remark)} characters)"
    if code in _CONFIG and remark:
        remark = _QUOTED_LINE.sub(r"\1", remark)
        for line in body.decode(errors="replace").splitlines():
            key, _, value = line.partition("=")
            if _SECRET_KEY.search(key) and value.strip():
                remark = remark.replace(value.strip(), MASK)
    if code in _USERS and (password := _password(body)):
        remark = remark.replace(password, MASK)
    return short(remark)


def _password(body: bytes) -> str:
    try:
        user = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(user.get("password") or "") if isinstance(user, dict) else ""


def is_secret_key(key: str) -> bool:
    """Returns whether a setting of this name may be a secret: names of files are none."""
    return bool(_SECRET_KEY.search(key)) and not key.endswith(("File", "Path"))


def short(text: str, characters: int = TEXT_MAX) -> str:
    return text if len(text) <= characters else f"{text[:characters]}... ({len(text)} characters)"


def plain(value: object, depth: int = 4) -> object:
    """Returns a value of `changes` as JSON: bounded, and without what a key calls a secret."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return short(value)
    if depth and isinstance(value, Mapping):
        items = list(value.items())
        found = {
            short(str(key)): MASK if _is_secret(str(key), each) else plain(each, depth - 1)
            for key, each in items[:CHANGES_MAX]
        }
        return found | ({"...": f"{len(items) - CHANGES_MAX} more"} if len(items) > CHANGES_MAX else {})
    if depth and isinstance(value, list | tuple | set | frozenset):
        each_one = sorted(value, key=str) if isinstance(value, set | frozenset) else list(value)
        more = [f"{len(each_one) - CHANGES_MAX} more"] if len(each_one) > CHANGES_MAX else []
        return [plain(each, depth - 1) for each in each_one[:CHANGES_MAX]] + more
    return short(str(value))


def _is_secret(key: str, value: object) -> bool:
    """A topic may be called a secret, too: its permissions are a number."""
    return bool(value) and isinstance(value, str) and is_secret_key(key)


def changes_of(code: int, changes: Mapping[str, tuple[object, object]]) -> dict[str, object]:
    """Returns {name: {"old": value, "new": value}}."""
    made: dict[str, object] = {}
    for name, (old, new) in list(changes.items())[:CHANGES_MAX]:
        secret = code in _CONFIG and is_secret_key(name)
        made[short(name)] = {
            "old": MASK if secret and old else plain(old),
            "new": MASK if secret and new else plain(new),
        }
    if len(changes) > CHANGES_MAX:
        made["..."] = {"old": None, "new": f"{len(changes) - CHANGES_MAX} more"}
    return made
