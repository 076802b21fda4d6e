"""Attacks on users and ACLs: by a normal user, by an operator who may change the cluster, by former users."""

import json
from pathlib import Path
from typing import Any, Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import Answer, Identity
from tests.attacks.judging import carried_out, seen
from tests.attacks.line import happens
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ADMIN,
    ALICE,
    CLUSTER_NAME,
    DISABLED,
    MALLORY,
    MEMBER,
    ORDERS,
    OWN_GROUP,
    SECRET,
    pull_fields,
)
from tests.attacks.topic import NO_RIGHTS, UNSIGNED

RIGHTS: Final = "rights that it does not have"
USERS: Final = "users and their secrets"
OPERATOR: Final = Identity("operator", "the-key-of-the-operator")
REPLICATED_S: Final = 5.0
DELAYED: Final = "SCHEDULE_TOPIC_XXXX"
LEVEL: Final = 18
"""The longest delay, two hours. Its queue is one below."""


def acl(user: str, resource: str, *actions: str) -> dict[str, Any]:
    """Returns an ACL that allows these actions."""
    entry = {"resource": resource, "actions": list(actions or ("All",)), "decision": "Allow"}
    return {"subject": f"User:{user}", "policies": [{"policyType": "Custom", "entries": [entry]}]}


def user(
    name: str, secret: str = "a-new-secret-key", type_: str = "Normal", status: str = "enable"
) -> dict[str, str]:
    return {"username": name, "password": secret, "userType": type_, "userStatus": status}


NORMAL_USER: Final[tuple[tuple[str, str, int, dict[str, str], object], ...]] = (
    ("create-user", "creates a user", 3001, {"username": "mallory-2"}, user("mallory-2")),
    ("create-super", "creates a Super user", 3001, {"username": "root"}, user("root", type_="Super")),
    ("become-super", "makes itself a Super user", 3002, {"username": "mallory"}, {"userType": "Super"}),
    (
        "other-password",
        "changes the administrator's password",
        3002,
        {"username": ADMIN.name},
        {"password": "mine"},
    ),
    (
        "disable-admin",
        "disables the administrator",
        3002,
        {"username": ADMIN.name},
        {"userStatus": "disable"},
    ),
    ("delete-admin", "deletes the first user", 3003, {"username": ADMIN.name}, None),
    ("read-user", "reads a user", 3004, {"username": ADMIN.name}, None),
    ("list-users", "lists all users", 3005, {}, None),
    ("grant", "gives itself rights to everything", 3006, {"subject": "User:mallory"}, acl("mallory", "*")),
    (
        "update-acl",
        "changes its own ACL",
        3007,
        {"subject": "User:mallory"},
        acl("mallory", f"Topic:{ORDERS}"),
    ),
    ("delete-acl", "deletes alice's ACL", 3008, {"subject": "User:alice"}, None),
    ("read-acl", "reads alice's ACL", 3009, {"subject": "User:alice"}, None),
    ("list-acls", "lists all ACLs", 3010, {}, None),
)

NEEDS_A_USER: Final = {
    "become-super", "other-password", "disable-admin", "grant", "update-acl", "operator-become-super",
    "operator-password", "operator-disable", "operator-enable", "operator-member", "operator-member-password",
}  # fmt: skip
"""With everything off nobody has made the users that these are about."""

for name, title, code, fields, body in NORMAL_USER:
    raw = b"" if body is None else json.dumps(body).encode()

    @attack(
        f"escalate/{name}",
        f"a normal user {title} ({code})",
        asset=USERS if code in (3004, 3005, 3009, 3010) else RIGHTS,
        success=f"{code} is carried out at any server",
        answer=NO_RIGHTS,
        open=name not in NEEDS_A_USER,
    )
    async def normal_user(
        attacker: Attacker, code: int = code, fields: dict[str, str] = fields, raw: bytes = raw
    ) -> Outcome:
        answer = Answer(0)
        for server in ("namesrv", "controller", "replica", "broker"):
            answer = await attacker.ask(server, code, fields, raw, by=MALLORY)
            if answer.code == 0:
                return Outcome(True, f"{server}: {answer}")
        return Outcome(False, str(answer))


@attack(
    "escalate/unsigned",
    "somebody without credentials creates a Super user (3001)",
    asset=RIGHTS,
    success="3001 is carried out at any server",
    answer=UNSIGNED,
)
async def unsigned(attacker: Attacker) -> Outcome:
    raw = json.dumps(user("root", type_="Super")).encode()
    answer = Answer(0)
    for server in ("namesrv", "controller", "replica", "broker"):
        answer = await attacker.ask(server, 3001, {"username": "root"}, raw)
        if answer.code == 0:
            return Outcome(True, f"{server}: {answer}")
    return Outcome(False, str(answer))


@attack(
    "escalate/disabled",
    "a disabled Super user enables itself (3002)",
    asset=RIGHTS,
    success="3002 is carried out",
    open=False,
)
async def disabled(attacker: Attacker) -> Outcome:
    raw = json.dumps({"userStatus": "enable"}).encode()
    return carried_out(await attacker.ask("broker", 3002, {"username": DISABLED.name}, raw, by=DISABLED))


@attack(
    "escalate/two-names",
    "names itself in the header, and the administrator in the body (3002)",
    asset=RIGHTS,
    success="3002 is carried out",
    answer=NO_RIGHTS,
    open=False,
)
async def two_names(attacker: Attacker) -> Outcome:
    raw = json.dumps(user(ADMIN.name, "mine-now")).encode()
    return carried_out(await attacker.ask("broker", 3002, {"username": MALLORY.name}, raw, by=MALLORY))


# -- an operator, who may change the cluster but is no Super user ----------------------------------------


async def operator(attacker: Attacker) -> None:
    """Makes the operator, if users are kept."""
    if attacker.stage.is_closed:
        info, rights = user(OPERATOR.name, OPERATOR.secret), acl(OPERATOR.name, "Cluster:*")
        answer = await attacker.stage.ask("broker", 3001, {"username": OPERATOR.name}, info)
        assert answer.code == 0 or "exist" in answer.remark, str(answer)
        await attacker.stage.must("broker", 3006, {"subject": f"User:{OPERATOR.name}"}, rights)


BY_OPERATOR: Final[tuple[tuple[str, str, int, dict[str, str], object], ...]] = (
    ("create-super", "creates a Super user", 3001, {"username": "root-2"}, user("root-2", type_="Super")),
    ("become-super", "makes itself a Super user", 3002, {"username": OPERATOR.name}, {"userType": "Super"}),
    (
        "password",
        "changes the password of a Super user",
        3002,
        {"username": ADMIN.name},
        {"password": "mine"},
    ),
    ("disable", "disables a Super user", 3002, {"username": ADMIN.name}, {"userStatus": "disable"}),
    ("delete", "deletes a Super user", 3003, {"username": DISABLED.name}, None),
    (
        "enable",
        "enables a Super user that is disabled",
        3002,
        {"username": DISABLED.name},
        {"userStatus": "enable"},
    ),
    ("member", "creates a user with the members' name", 3001, {"username": MEMBER.name}, user(MEMBER.name)),
    ("member-password", "changes the members' secret", 3002, {"username": MEMBER.name}, {"password": "mine"}),
)


def by_operator(
    server: str, suffix: str, name: str, title: str, code: int, fields: dict[str, str], raw: bytes
) -> None:
    """Declares an attack of an operator at a broker. A replica forwards the request to its master, which must
    not take the replica's rights for those of the operator."""

    @attack(
        f"escalate/operator-{name}{suffix}",
        f"an operator, who may change the cluster but is no Super user, {title} ({code} to the {server})",
        asset=RIGHTS,
        success=f"{code} is carried out, or the members' name has another secret",
        open=f"operator-{name}" not in NEEDS_A_USER,
    )
    async def how(attacker: Attacker) -> Outcome:
        await operator(attacker)
        answer = await attacker.ask(server, code, fields, raw, by=OPERATOR)
        if fields.get("username") == MEMBER.name:
            thief = Identity(MEMBER.name, "mine" if code == 3002 else "a-new-secret-key")
            got = await attacker.ask("broker", 43, by=thief, proof=True)
            return Outcome(got.code == 0 and attacker.stage.is_closed, f"{answer}; as a member: {got}")
        return carried_out(answer)


for name, title, code, fields, body in BY_OPERATOR:
    raw = b"" if body is None else json.dumps(body).encode()
    by_operator("broker", "", name, title, code, fields, raw)
    by_operator("replica", "-at-replica", name, title, code, fields, raw)


@attack(
    "escalate/member-only",
    "an operator sends what only members may: reads how far all delay levels are (45)",
    asset=USERS,
    success="45 is carried out",
    answer="is for members of this cluster only",
)
async def member_only(attacker: Attacker) -> Outcome:
    await operator(attacker)
    return carried_out(await attacker.ask("broker", 45, by=OPERATOR))


# -- secrets and names, even for the administrator -------------------------------------------------------


@attack(
    "escalate/read-secrets",
    "reads the secrets of users as administrator: users, ACLs, settings (3004, 3005, 26, 319, 1010)",
    asset=USERS,
    success="an answer has a secret in it",
    open=False,
)
async def read_secrets(attacker: Attacker) -> Outcome:
    secrets = [each.secret.encode() for each in (ADMIN, MEMBER, ALICE, MALLORY)]
    requests: tuple[tuple[str, int, dict[str, object]], ...] = (
        ("broker", 3004, {"username": ALICE.name}),
        ("broker", 3005, {}),
        ("broker", 3010, {}),
        ("broker", 26, {}),
        ("replica", 3005, {}),
        ("namesrv", 319, {}),
        ("controller", 1010, {}),
        ("controller", 29013, {}),
    )
    for server, code, fields in requests:
        answer = await attacker.ask(server, code, fields, by=attacker.stage.power, proof=True)
        if any(secret in answer.body for secret in secrets):
            return Outcome(True, f"{code} at {server}")
    return Outcome(False, "no secret in any answer")


BAD_USERS: Final = ("", " ", "a:b", "User:alice", "a\nb", "a\0b", "x" * 300, " alice", "alice ")
BAD_SUBJECTS: Final = ("", "alice", "Group:alice", "User:", "User:a:b", "User:a\nb", "User:*")
BAD_RESOURCES: Final = ("", "Topic", "Topic:", "Nothing:x", "Topic:a*b", "Topic:**", "Topic:a\nb", "orders")


@attack(
    "escalate/crafted-users",
    "creates users whose names can be taken for others: with colons, blanks, newlines, none at all",
    asset=RIGHTS,
    success="one of them is created, even by an administrator",
    open=False,
)
async def crafted_users(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for name in BAD_USERS:
        raw = json.dumps(user(name)).encode()
        answer = await attacker.ask(
            "broker", 3001, {"username": name}, raw, by=attacker.stage.power, proof=True
        )
        if answer.code == 0:
            return Outcome(True, repr(name))
    return Outcome(False, str(answer))


@attack(
    "escalate/crafted-acls",
    "creates ACLs with subjects and resources that can be read in two ways",
    asset=RIGHTS,
    success="one of them is created, even by an administrator",
    open=False,
)
async def crafted_acls(attacker: Attacker) -> Outcome:
    answer, power = Answer(0), attacker.stage.power
    for subject in BAD_SUBJECTS:
        raw = json.dumps({**acl("x", "Topic:a"), "subject": subject}).encode()
        answer = await attacker.ask("broker", 3006, {"subject": subject}, raw, by=power, proof=True)
        if answer.code == 0:
            return Outcome(True, f"subject {subject!r}")
    for resource in BAD_RESOURCES:
        raw = json.dumps(acl(MALLORY.name, resource)).encode()
        answer = await attacker.ask("broker", 3006, {"subject": "User:mallory"}, raw, by=power, proof=True)
        if answer.code == 0:
            return Outcome(True, f"resource {resource!r}")
    return Outcome(False, str(answer))


@attack(
    "escalate/similar-name",
    "signs as alice in other spellings: upper case, blanks, full-width letters",
    asset="alice's messages",
    success="the answer has a message",
)
async def similar_name(attacker: Attacker) -> Outcome:
    answer = Answer(0)
    for name in ("ALICE", "Alice", " alice", "alice ", "alice\n", "alice\0", "\uff41lice", "User:alice"):
        attacker.move()
        by = Identity(name, ALICE.secret)
        answer = await attacker.ask("broker", 11, pull_fields(ORDERS, OWN_GROUP), by=by)
        if SECRET in answer.body:
            return seen(True, answer)
    return seen(False, answer)


@attack(
    "escalate/other-address",
    "uses rights that count at other addresses only, and claims such an address in a PROXY header",
    asset="alice's messages",
    success="the answer has a message",
)
async def other_address(attacker: Attacker) -> Outcome:
    who = Identity("roamer", "the-key-of-the-roamer")
    request = request_of(11, pull_fields(ORDERS, OWN_GROUP)).signed(who)
    if attacker.stage.is_closed:
        rights = acl(who.name, "*")
        rights["policies"][0]["entries"][0]["sourceIps"] = ["10.0.0.0/8"]
        await attacker.stage.must("broker", 3001, {"username": who.name}, user(who.name, who.secret))
        await attacker.stage.must("broker", 3006, {"subject": f"User:{who.name}"}, rights)
    answer = await attacker.send("broker", request)
    if SECRET not in answer.body:
        proxied = b"PROXY TCP4 10.0.0.1 127.0.0.1 4711 10911\r\n" + request.frame()
        claimed = await attacker.send("broker", proxied)
        answer = claimed if SECRET in claimed.body else answer
    return seen(SECRET in answer.body, answer)


@attack(
    "escalate/denied",
    "has rights to all topics but one, which is denied, and reads that one",
    asset="alice's messages",
    success="the answer has a message",
    answer="the decision is deny.",
)
async def denied(attacker: Attacker) -> Outcome:
    who = Identity("all-but-one", "the-key-of-all-but-one")
    if attacker.stage.is_closed:
        rights = acl(who.name, "*")
        refused = {"resource": f"Topic:{ORDERS}", "actions": ["Sub"], "decision": "Deny"}
        rights["policies"][0]["entries"].append(refused)
        await attacker.stage.must("broker", 3001, {"username": who.name}, user(who.name, who.secret))
        await attacker.stage.must("broker", 3006, {"subject": f"User:{who.name}"}, rights)
    answer = await attacker.ask("broker", 11, pull_fields(ORDERS, OWN_GROUP), by=who)
    return seen(SECRET in answer.body, answer)


@attack(
    "escalate/denied-delayed",
    "may read all topics but one, which is denied, and reads that one's delayed message where the broker "
    "keeps it",
    asset="alice's messages",
    success="the answer has a message",
    answer="Cluster:KeelCluster from",
)
async def denied_delayed(attacker: Attacker) -> Outcome:
    who, stage = Identity("reader", "the-key-of-the-reader"), attacker.stage
    if stage.is_closed:
        rights = acl(who.name, "Topic:*", "Sub", "Get")
        entries = rights["policies"][0]["entries"]
        entries.append({"resource": "Group:*", "actions": ["Sub"], "decision": "Allow"})
        entries.append({"resource": f"Topic:{ORDERS}", "actions": ["All"], "decision": "Deny"})
        await stage.must("broker", 3001, {"username": who.name}, user(who.name, who.secret))
        await stage.must("broker", 3006, {"subject": f"User:{who.name}"}, rights)
    await stage.send(ORDERS, SECRET, text=f"DELAY\x01{LEVEL}\x02")
    answer = await attacker.ask("broker", 11, pull_fields(DELAYED, OWN_GROUP, LEVEL - 1), by=who)
    return seen(SECRET in answer.body, answer)


@attack(
    "escalate/logged-secrets",
    "reads the logs of the programs: secrets of users that were created, guessed or refused",
    asset=USERS,
    success="a log, or an audit log, has a secret in it",
    open=False,
)
async def logged_secrets(attacker: Attacker) -> Outcome:
    marked = "a-secret-that-no-log-may-have"
    power = attacker.stage.power
    raw = json.dumps(user("logged", marked)).encode()
    for code in (3001, 3002):
        await attacker.ask("broker", code, {"username": "logged"}, raw, by=power, proof=True)
    await attacker.ask("broker", 3001, {"username": "logged"}, raw, by=MALLORY)
    await attacker.ask("broker", 3001, {"username": "a:b"}, raw.replace(b"Normal", b"Nothing"), by=power)
    secrets = [marked, *(each.secret for each in (ADMIN, MEMBER, ALICE, MALLORY, DISABLED))]
    logs = [path for path in attacker.stage.directory.rglob("*") if path.is_file() and _is_log(path)]
    for path in logs:
        text = path.read_text(errors="replace")
        found = next((secret for secret in secrets if secret in text), None)
        if found is not None:
            return Outcome(True, f"{path.name}: {found}")
    return Outcome(False, f"{len(logs)} logs without a secret")


def _is_log(path: Path) -> bool:
    return path.suffix in (".log", ".jsonl") or "audit" in path.name or "telemetry" in path.parts


# -- former users ----------------------------------------------------------------------------------------


async def hired(attacker: Attacker) -> Identity:
    """A user who may read alice's topic."""
    who = Identity(f"temp-{attacker.source.replace('.', '-')}", "the-key-of-a-temp")
    if attacker.stage.is_closed:
        rights = acl(who.name, f"Topic:{ORDERS}")
        rights["policies"][0]["entries"] += acl(who.name, f"Group:{OWN_GROUP}")["policies"][0]["entries"]
        await attacker.stage.must("broker", 3001, {"username": who.name}, user(who.name, who.secret))
        await attacker.stage.must("broker", 3006, {"subject": f"User:{who.name}"}, rights)
    return who


CHANGES: Final[tuple[tuple[str, str, int, dict[str, str] | None], ...]] = (
    ("deleted", "was deleted", 3003, None),
    ("stopped", "was disabled", 3002, {"userStatus": "disable"}),
    ("renewed", "has another password now", 3002, {"password": "the-new-key"}),
    ("revoked", "has lost its rights", 3008, None),
)

for name, title, code, change in CHANGES:

    @attack(
        f"escalate/{name}",
        f"a user who {title} goes on reading on the connection that is open",
        asset="alice's messages",
        success="the next answer has a message",
    )
    async def former(attacker: Attacker, code: int = code, change: dict[str, str] | None = change) -> Outcome:
        who = await hired(attacker)
        request = request_of(11, pull_fields(ORDERS, OWN_GROUP)).signed(who)
        async with attacker.dial("broker") as line:
            first = await line.ask(request)
            assert SECRET in first.body, str(first)
            if attacker.stage.is_closed:
                fields = {"subject": f"User:{who.name}"} if code == 3008 else {"username": who.name}
                await attacker.stage.must("broker", code, fields, b"" if change is None else change)
            answer = await line.ask(request)
            return seen(SECRET in answer.body, answer)


@attack(
    "escalate/former-at-replica",
    "a user who was deleted at the master goes on reading from the replica",
    asset="alice's messages",
    success=f"it still reads after {REPLICATED_S:g} s",
)
async def former_at_replica(attacker: Attacker) -> Outcome:
    who = await hired(attacker)
    answer = Answer(0)

    async def reads() -> bool:
        nonlocal answer
        answer = await attacker.ask("replica", 11, pull_fields(ORDERS, OWN_GROUP), by=who)
        return SECRET in answer.body

    async def refused() -> bool:
        return not await reads()

    assert await happens(reads, REPLICATED_S), str(answer)
    if attacker.stage.is_closed:
        await attacker.stage.must("broker", 3003, {"username": who.name})
        gone = await happens(refused, REPLICATED_S)
    else:
        gone = False
    return seen(not gone, answer)


@attack(
    "escalate/member-user-kept",
    "deletes the members' user, as administrator (3003): no member may do anything then",
    asset="the service for others",
    success="members are refused then",
    open=False,
)
async def member_user_kept(attacker: Attacker) -> Outcome:
    power = attacker.stage.power
    answer = await attacker.ask("broker", 3003, {"username": MEMBER.name}, by=power, proof=True)
    got = await attacker.ask("broker", 43, by=MEMBER, proof=True)
    return Outcome(got.code != 0, f"{answer}; members: {got}")


@attack(
    "escalate/other-cluster",
    "an operator of another cluster uses its rights here: its ACL names that cluster",
    asset="settings",
    success="the broker shows its settings (26)",
    answer=f"Cluster:{CLUSTER_NAME}",
)
async def other_cluster(attacker: Attacker) -> Outcome:
    who = Identity("other-operator", "the-key-of-the-other")
    if attacker.stage.is_closed:
        await attacker.stage.must("broker", 3001, {"username": who.name}, user(who.name, who.secret))
        rights = acl(who.name, "Cluster:AnotherCluster")
        await attacker.stage.must("broker", 3006, {"subject": f"User:{who.name}"}, rights)
    return carried_out(await attacker.ask("broker", 26, by=who))
