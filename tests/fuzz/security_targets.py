"""What the fuzzer of the security code gives its inputs to. Each has a model of what must be true."""

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from cli.credentials import BadCredentials, read_credentials
from keelmq.remoting.operation import Caller
from keelmq.remoting.servers.http_access import Forbidden, TooManyFailures, Unauthenticated
from keelmq.security.audit.log import LINE_BYTES_MAX, AuditLog
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.config import credentials_of
from keelmq.security.core.access import AccessControl, AccessRequest, AccessSettings, Granted, Refused
from keelmq.security.core.acls import ENTRIES_MAX, InvalidAcl, parse_acl
from keelmq.security.core.address_patterns import ANY_TEXTS, BadAddressPattern, parse_pattern, parse_source_ip
from keelmq.security.core.known_requests import DECODERS_MAX, remembered_decoders
from keelmq.security.core.member_proof import PROOF, MemberProofs, with_proof
from keelmq.security.core.plain_acl import BadPlainAcl, PlainAcl, parse_plain_acl
from keelmq.security.core.rules import RULES
from keelmq.security.core.signature import ACCESS_KEY, ORDERS_MAX, SIGNATURE, remembered_orders, signed
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.tokens import InvalidTokens, parse_tokens
from keelmq.security.core.users import InvalidUser, create_user, parse_stored_user, update_user
from keelmq.security.http_access import GOOD_MAX, HttpServerAccess
from keelmq.security.plain_acl_files import load_yaml
from keelmq.security.server_access import ServerAccess, UserCaller
from keelmq.security.tokens_file import TokensFile
from keelmq.security.users_file import BadUsersFile, UsersFile
from tests.fuzz.frames import Finding
from tests.fuzz.security import TargetMaker, damage, damage_text
from tests.unit.keelmq.security.parts import NOW_MS, SECRETS, acl_of, tables

SECRET: Final = "hunter2hunter2"
IPS: Final = (
    "10.0.0.7", "10.0.0.8", "::1", "2001:db8::1", "::ffff:10.0.0.7", "fe80::1%eth0", "", "http", "256.1.1.1",
)  # fmt: skip
VALUES: Final = (
    "TopicA", "t1", "%RETRY%g", "%RETRY%g+TopicA", "g", "DefaultCluster", "0", "1", "-1", "", "true",
    "7F000001000078BF00000000000000", "User:alice", "Topic:t*", "a" * 5_000, "\ud800", "\x00\x01", "é" * 50,
)  # fmt: skip
LINES: Final = ("Topic:t* Pub,Sub Allow", "Group:* Sub Allow 10.0.0.0/8", "Topic:secret All Deny")
MEMORY_MAX: Final = 50
"""Entries of the bounded tables: small, so that rounds fill them."""


class Base:
    name = ""
    allowed: tuple[type[Exception], ...] = ()

    def __init__(self, random: Random, path: Path) -> None:
        self.random, self.path = random, path

    def size(self, value: Any) -> int:
        return len(value)

    def check(self) -> None: ...
    def close(self) -> None: ...


def no_secret(text: str) -> None:
    if SECRET in text:
        raise Finding(f"a secret is in a text: {text[:300]!r}")


# ---- requests ----


class Access(Base):
    """Signed requests of every code, damaged after or before they are signed."""

    name = "access"

    def __init__(self, random: Random, path: Path) -> None:
        super().__init__(random, path)
        self.now_ms = NOW_MS
        self.throttle = FailureThrottle(addresses_max=MEMORY_MAX)
        both = {"authentication_enabled": True, "authorization_enabled": True}
        member = {"members_required": True, "member_users": frozenset({"inner"})}
        plain = plain_acl()
        self.servers: dict[int, tuple[ServerAccess, AnyPeer]] = {}
        self.sent: list[AccessRequest] = []
        self.controls = [
            (self._control(**settings), settings)
            for settings in (
                both,
                both | member,
                both | {"stateful_authentication": True},
                {"authentication_enabled": True, "proof_to_administer": True},
                {"authorization_enabled": True},
                member,
                both | {"authentication_whitelist": frozenset({105, 34})},
            )
        ]
        self.controls.append((self._control(plain=plain), {"plain": True}))
        self.controls.append((self._control(plain=plain, **both), {"plain": True}))

    def _control(self, plain: PlainAcl | None = None, **settings: Any) -> AccessControl:
        bounds = {"stateful_cache_max": MEMORY_MAX, "decision_cache_max": MEMORY_MAX}
        made = AccessSettings(**settings, **bounds)
        return AccessControl(
            tables(*LINES), made, plain=plain, throttle=self.throttle, proofs=MemberProofs(senders_max=200)
        )

    def make(self) -> tuple[int, AccessRequest]:
        random = self.random
        code = random.choice([*RULES, -1, 0, 2**31 - 1, random.randrange(4_000)])
        rule = RULES.get(code)
        names = [*(rule.fields if rule is not None else ()), "topic", "group", PROOF, "x", "é", "k" * 200]
        fields = {random.choice(names): random.choice(VALUES) for _ in range(random.randrange(6))}
        if random.random() < 0.02:
            fields |= {f"{random.random()}": "v" for _ in range(random.choice((100, 3_000)))}
        body = random.choice(BODIES)
        if random.random() < 0.5:
            body = damage(random, body)
        user = random.choice([*SECRETS, "alice", "root", "nobody", "plain-1", "a" * 5_000])
        fields.pop(PROOF, None)
        if random.random() < 0.3:
            sent_ms = self.now_ms - random.choice((0, 1, 40_000))
            sender, number = random.randbytes(8), random.randrange(2**64)
            times = {"now_ms": sent_ms, "uptime_ms": random.choice((0, sent_ms))}
            fields = with_proof(code, fields, body, sender=sender, number=number, **times)
        version = random.choice((0, 399, 400, 479, -1, 2**31 - 1))
        sent: dict[str, Any] = dict(fields)
        if random.random() < 0.9:
            sent = dict(signed(user, SECRETS.get(user, "plain-secret-1"), fields, body))
        if random.random() < 0.5:
            sent, body, code = self._damaged(sent, body, code)
        request = AccessRequest(
            code, version, sent if random.random() < 0.98 else None, body, random.choice(IPS),
            random.randrange(2_000), random.random() < 0.5, (),
        )  # fmt: skip
        return random.randrange(len(self.controls)), request

    def _damaged(self, fields: dict[str, Any], body: bytes, code: int) -> tuple[dict[str, Any], bytes, int]:
        random = self.random
        name = random.choice([*fields, SIGNATURE])
        match random.randrange(6):
            case 0:
                fields[name] = damage_text(random, fields.get(name) or "")
            case 1:
                fields.pop(name, None)
            case 2:
                fields[damage_text(random, name)] = fields.pop(name, "")
            case 3:
                fields[name] = None
            case 4:
                body = damage(random, body)
            case _:
                code = random.choice([*RULES])
        return fields, body, code

    def size(self, value: tuple[int, AccessRequest]) -> int:
        fields = value[1].ext_fields or {}
        return len(value[1].body) + sum(len(name) + len(text or "") for name, text in fields.items())

    def run(self, value: tuple[int, AccessRequest]) -> str:
        at, request = value
        self.now_ms += self.random.choice((0, 0, 0, 100, 5_000))
        control, settings = self.controls[at]
        result = control.check(request, self.now_ms)
        if isinstance(result, Refused):
            if not result.remark:
                raise Finding("a refusal without a remark")
            return "refused"
        if not isinstance(result, Granted):
            raise Finding(f"neither granted nor refused: {result!r}")
        must_sign = settings.get("authentication_enabled") and request.code not in settings.get(
            "authentication_whitelist", ()
        )
        is_checked = bool(must_sign) and not settings.get("stateful_authentication")
        if is_checked:
            is_right(result.username, request)
        self._again(control, request, result, is_checked)
        for lookup in result.lookups:
            control.check_topic(result, lookup, self.random.choice(VALUES), request.peer_ip)
        return "granted"

    def _again(
        self, control: AccessControl, request: AccessRequest, granted: Granted, is_checked: bool
    ) -> None:
        """What was granted is remembered as a connection does, and asked for again, changed or not.
        is_checked: the signature of every request must be right."""
        access, peer = self.servers.setdefault(
            id(control), (ServerAccess(control), AnyPeer("10.0.0.7:1", ()))
        )
        if len(self.sent) > 20:
            self.sent.clear()
        access.remember(request, peer, UserCaller(access, granted, "10.0.0.7"))
        self.sent.append(request)
        old = self.random.choice(self.sent)
        header = json.dumps({"code": old.code, "extFields": old.ext_fields}).encode()
        if self.random.random() < 0.5:
            header = damage(self.random, header, big=0)
        body = old.body if self.random.random() < 0.8 else damage(self.random, old.body)
        if access.admit_again(old.code, header, body, peer) and is_checked:
            fields = json.loads(header)["extFields"]
            is_right(fields[ACCESS_KEY], old._replace(ext_fields=fields, body=body))

    def check(self) -> None:
        assert remembered_orders() <= ORDERS_MAX
        assert remembered_decoders() <= DECODERS_MAX
        assert len(self.throttle) <= MEMORY_MAX
        for control, _ in self.controls:
            assert max(control.remembered) <= MEMORY_MAX


def is_right(username: str, request: AccessRequest) -> None:
    """Raises Finding: the signature of a granted request is wrong, as the standard library computes it."""
    fields = request.ext_fields or {}
    names = sorted(
        (name for name in fields if name != SIGNATURE),
        key=lambda name: name.encode("utf-16-be", "surrogatepass"),
    )
    if request.version <= 399:
        names = [name for name in names if name != "_UNIQUE_KEY_QUERY"]
    text = "".join("null" if fields[name] is None else str(fields[name]) for name in names)
    data = text.encode("utf-8", "replace") + request.body
    expected = base64.b64encode(hmac.digest(SECRETS.get(username, "").encode(), data, "sha1")).decode()
    if username not in SECRETS or username == "gone" or fields.get(SIGNATURE) != expected:
        raise Finding(f"granted to {username!r} without a right signature")


class Proofs(Base):
    """Proofs of members: none counts twice, whatever is done to it and whenever it comes."""

    name = "proofs"

    def __init__(self, random: Random, path: Path) -> None:
        super().__init__(random, path)
        self.proofs = MemberProofs(senders_max=100, not_before_ms=NOW_MS, uptime=lambda: self.uptime_ms)
        self.now_ms, self.uptime_ms = NOW_MS, 1_000_000
        self.sent: list[tuple[int, dict[str, str], bytes]] = []
        self.used: set[str] = set()
        self.senders = [random.randbytes(8) for _ in range(300)]
        self.number = 0

    def make(self) -> tuple[int, dict[str, str], bytes]:
        random = self.random
        if self.sent and random.random() < 0.5:
            code, fields, body = random.choice(self.sent[-200:])
            fields = dict(fields)
            if random.random() < 0.6:
                name = random.choice([*fields, PROOF])
                fields[name] = damage_text(random, fields.get(name, ""))
            return code, fields, body
        fields = {random.choice("abcdef"): random.choice(VALUES) for _ in range(random.randrange(4))}
        made = random.choice((1001, 103, 29001)), fields, random.choice(BODIES)
        at_ms = self.now_ms + random.choice((0, 0, 0, -29_000, 29_000, -31_000, 31_000, 10**12))
        sender, number = random.choice(self.senders), random.choice((self.number, random.randrange(2**64)))
        self.number += random.choice((0, 1, 1, 1, 2, 2_000))
        uptime_ms = max(0, self.uptime_ms + random.choice((0, 0, 0, -100, 31_000, -31_000)))
        proven = with_proof(
            made[0], fields, made[2], now_ms=at_ms, uptime_ms=uptime_ms, sender=sender, number=number
        )
        self.sent.append((made[0], proven, made[2]))
        return made[0], proven, made[2]

    def size(self, value: tuple[int, dict[str, str], bytes]) -> int:
        return len(value[2]) + sum(map(len, value[1].values()))

    def run(self, value: tuple[int, dict[str, str], bytes]) -> str:
        passed_ms = self.random.choice((0, 0, 10, 5_000))
        self.uptime_ms += passed_ms
        jumps = self.random.random() < 0.002  # of the wall clock
        self.now_ms += self.random.choice((-3_600_000, -40_000, 40_000)) if jumps else passed_ms
        why = self.proofs.check(*value, self.now_ms)
        if why is not None:
            return "refused"
        proof = value[1][PROOF]  # a changed one has no right signature, which is checked before
        if proof in self.used:
            raise Finding("a proof was accepted twice")
        self.used.add(proof)
        return "accepted"

    def check(self) -> None:
        assert len(self.proofs) <= 100


# ---- bodies and files ----

ACL: Final[Mapping[str, Any]] = acl_of("alice", *LINES, default=("Topic:* Get Allow",)).info()
USER: Final = {"username": "alice", "password": SECRET, "userType": "Super", "userStatus": "enable"}
BODIES: Final = (
    b"", b"{}", b"[]", b"null", b'"x"', json.dumps(ACL).encode(), json.dumps(USER).encode(),
    json.dumps({"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [
        {"topic": "t1", "subString": "*"}]}], "producerDataSet": [{"groupName": "p"}]}).encode(),
    json.dumps({"topicConfigList": [{"topicName": "t1"}]}).encode(),
    json.dumps({"consumerGroup": "g"}).encode(),
    json.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "t1", "queueId": 0}]}).encode(),
    f"brokerPermission=6\npassword={SECRET}\n".encode(), b"[" * 3_000, b'{"a":' * 3_000,
)  # fmt: skip


class Acls(Base):
    """Bodies of 3006 and 3007."""

    name = "acls"
    allowed = (InvalidAcl,)

    def make(self) -> bytes:
        random = self.random
        if random.random() < 0.01:  # many of something
            policy = {"policyType": random.choice(("Custom", "Default")), "entries": []}
            count = random.choice((10, 1_001, 3_000))
            resources = (f"Topic:t{number * random.randrange(2)}" for number in range(count))
            entries = [{"resource": each, "actions": ["Pub"], "decision": "Allow"} for each in resources]
            whole = [policy | {"entries": entries}], [policy | {"entries": [each]} for each in entries]
            return json.dumps({**ACL, "policies": random.choice(whole)}).encode()
        return damage(random, json.dumps(ACL).encode())

    def run(self, value: bytes) -> str:
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return "no JSON"
        acl = parse_acl(decoded)
        if sum(len(policy.entries) for policy in acl.policies) > ENTRIES_MAX:
            raise Finding("too many entries")
        if parse_acl(acl.info()) != acl or acl.merged(acl) != acl:
            raise Finding("it is another ACL after a round trip")
        return "parsed"


class Users(Base):
    """Bodies of 3001 and 3002, and stored users."""

    name = "users"

    def make(self) -> dict[str, Any]:
        random = self.random
        made: dict[str, Any] = dict(USER)
        for _ in range(random.randrange(3)):
            name = random.choice([*made])
            made[name] = random.choice(
                (
                    damage_text(random, str(made[name])),
                    None,
                    0,
                    1,
                    2,
                    10**100,
                    1.5,
                    [],
                    {},
                    True,
                    SECRET + "\ud800",
                )
            )
        return made

    def size(self, value: dict[str, Any]) -> int:
        return sum(len(str(each)) for each in value.values())

    def run(self, value: dict[str, Any]) -> str:
        outcomes = []
        for act in (
            lambda: parse_stored_user(value),
            lambda: update_user(create_user("bob", USER), value),
            lambda: parse_stored_user([value]),
        ):
            try:
                user = act()
            except InvalidUser as error:
                outcomes.append("InvalidUser")
                if SECRET not in str(value.get("username")) + str(value.get("userType")) + str(
                    value.get("userStatus")
                ):
                    no_secret(str(error))
            else:
                outcomes.append("valid")
                if SECRET not in user.username:
                    no_secret(repr(user))
                    no_secret(json.dumps(user.info()))
        return outcomes[0]


class UserFiles(Base):
    """users.json and acls.json, edited by hand or damaged."""

    name = "user-files"
    allowed = (BadUsersFile,)

    def __init__(self, random: Random, path: Path) -> None:
        super().__init__(random, path)
        self.files = UsersFile(path)
        for each in (self.files.users_path, self.files.acls_path):
            write(each, b"")

    def make(self) -> tuple[bool, bytes]:
        is_users = self.random.random() < 0.5
        listed = {"users": [USER, {**USER, "username": "bob"}]} if is_users else {"acls": [ACL]}
        return is_users, damage(self.random, json.dumps(listed).encode())

    def size(self, value: tuple[bool, bytes]) -> int:
        return len(value[1])

    def run(self, value: tuple[bool, bytes]) -> str:
        is_users, data = value
        changed, other = self.files.users_path, self.files.acls_path
        if not is_users:
            changed, other = other, changed
        write(changed, data)
        write(other, b"")
        before = self.files.generation, self.files.users(), self.files.acls()
        try:
            self.files.load()
        except BadUsersFile as error:
            if SECRET.encode() not in data.split(b'"password"')[0]:
                no_secret(str(error))
            if before != (self.files.generation, self.files.users(), self.files.acls()):
                raise Finding("a bad file has changed something") from None
            raise
        return "loaded"


def write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    os.chmod(path, 0o600)


PLAIN: Final = f"""
globalWhiteRemoteAddresses:
- 10.1.*.*
- 192.168.0.{{1,2,3}}
- 10.0.0.1-9
- 2001:db8:*
accounts:
- accessKey: plain-1
  secretKey: {SECRET}
  whiteRemoteAddress: 10.9.0.1,10.9.0.2
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms: [t1=PUB|SUB, TopicA=DENY]
  groupPerms:
  - g=SUB
- accessKey: 12345678
  secretKey: 0x12345678
  admin: yes
""".encode()
BOMBS: Final = (
    b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\naccounts: *c\n",
    b"&a [*a]", b"[" * 20_000, b"{a: " * 5_000, b"- " * 50_000, b"? " * 5_000,
    b"accounts:\n" + b"- {}\n" * 20_000,
    b"a: &x {k: v}\naccounts:\n- <<: *x\n", b"- !!set {a}\n", b"accounts: !!omap [a: 1]\n",
    b"accounts: 1" + b":59" * 40_000, b"accounts: 0b" + b"1" * 20_000, b"accounts: " + b"9" * 100_000,
    b"accounts: [" + b"a," * 100_000, b"globalWhiteRemoteAddresses: [" + b"'*'," * 40_000 + b"'*']",
    b'a: "' + b"\\" * 100_000, b"a: |\n " + b"x" * 500_000, b"\xff\xfea\x00:\x00", b"k: v\n" * 30_000,
    b"2001-99-99: 1", b"a: !!timestamp x", b"a: !!bool x", b"a: !!int ''", b"=: =", b"- =", b"<<: 1",
)  # fmt: skip


def plain_acl() -> PlainAcl:
    text = PLAIN.replace(SECRET.encode(), b"plain-secret-1").replace(b"0x12345678", b"abcdefgh")
    return parse_plain_acl([("plain_acl.yml", load_yaml(text, "plain_acl.yml"))])[0]


class PlainFiles(Base):
    """plain_acl.yml."""

    name = "plain-acl"

    def make(self) -> bytes:
        random = self.random
        if random.random() < 0.02:
            return damage(random, random.choice(BOMBS), big=0)
        return damage(random, PLAIN)

    def run(self, value: bytes) -> str:
        try:
            plain, _ = parse_plain_acl([("f", load_yaml(value, "f"))])
        except BadPlainAcl as error:
            if SECRET.encode() not in value.split(b"secretKey")[0] and value.count(b"secretKey") < 3:
                no_secret(str(error))
            return "BadPlainAcl"
        for ip in IPS:
            plain.is_white(ip)
            plain.authenticate({"AccessKey": "plain-1", "Signature": "x"}, b"", 479, ip)
        if value == PLAIN:
            no_secret(repr(plain))
        return "parsed"


class CredentialFiles(Base):
    """tools.yml, and the credentials of members."""

    name = "credentials"

    def make(self) -> bytes:
        random = self.random
        if random.random() < 0.02:
            return damage(random, random.choice(BOMBS), big=0)
        text = f"accessKey: admin\nsecretKey: {SECRET}\nsecurityToken: t\ntls: {{ca: ca.crt}}\n"
        return damage(
            random, random.choice((text, f'{{"accessKey":"inner","secretKey":"{SECRET}"}}')).encode()
        )

    def run(self, value: bytes) -> str:
        outcome = "none"
        path = self.path / "tools.yml"
        write(path, value)
        try:
            no_secret(repr(read_credentials(path).credentials).split("secret_key")[-1])
            outcome = "read"
        except BadCredentials as error:
            if value.count(SECRET.encode()) == 1:
                no_secret(str(error))
        try:
            credentials_of(value.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            no_secret(str(error))
        return outcome


class Addresses(Base):
    """Patterns of ACL 1.0, and source IPs of ACL 2.0."""

    name = "addresses"
    PATTERNS: Final = (
        "*", "*.*.*.*", "10.1.*", "10.0.0.{1,2,3}", "10.0.0.1-9", "1.2.3.4,5.6.7.8", "10.1.2-3.*", "::1",
        "2001:db8:*", "2001:db8::{1,2}", "fe80::1%eth0", "10.0.0.0/8", "2001:db8::/32", "::ffff:1.2.3.4",
        "1:2:3:4:5:6:7:8-ffff", "{" * 2_000, "1-" * 2_000, "*." * 2_000, ":" * 4_000, "1," * 2_000,
        "0" * 4_000, "10.0.0.0/" + "9" * 4_000, "1.2.3.4,{", "{1,2}.0.0.1",
    )  # fmt: skip

    def make(self) -> str:
        return damage_text(self.random, self.random.choice(self.PATTERNS))

    def run(self, value: str) -> str:
        outcome = "refused"
        try:
            pattern = parse_pattern(value)
            outcome = "pattern"
            matched = [ip for ip in IPS if pattern.matches(ip)]
            if ("" in matched or "http" in matched) and value.strip() not in ANY_TEXTS:
                raise Finding("what is no address matches")
        except BadAddressPattern:
            pass
        try:
            parse_source_ip(value)
            outcome = "network"
        except BadAddressPattern:
            pass
        return outcome


class Lines:
    """In the place of the writer of an audit log."""

    dropped_lines = 0

    def __init__(self) -> None:
        self.lines: list[bytes] = []

    def put(self, _series: object, line: bytes) -> None:
        self.lines.append(line)


class AnyPeer:
    connection_id, is_tls = 1, True
    known_requests: Any = None

    def __init__(self, address: str, names: tuple[str, ...]) -> None:
        self.address, self.certificate_names = address, names


class Audit(Base):
    """Lines of the audit log: JSON, bounded, and without secrets."""

    name = "audit"

    def __init__(self, random: Random, path: Path) -> None:
        super().__init__(random, path)
        self.second = 0
        self.log = AuditLog(
            AuditConfig.model_validate({}), "fuzz", clock=self._later, wall_clock=lambda: NOW_MS
        )
        self.lines = Lines()
        self.log.writer = self.lines  # type: ignore[assignment]
        self.access = Access(random, path)

    def _later(self) -> int:
        self.second += 1
        return self.second * 1_000

    def make(self) -> tuple[AccessRequest, str, int, dict[str, Any]]:
        random = self.random
        _, request = self.access.make()
        if random.random() < 0.5:
            request = request._replace(code=random.choice((25, 318, 1009, 3001, 3002, 17, 18)))
        if request.ext_fields is None:
            request = request._replace(ext_fields={})
        remark = random.choice(("", "x", "a" * 100_000, "line 1: '" * 10_000))
        if request.code in (25, 318, 1009):
            remark = random.choice((remark, f"line 2: 'password={SECRET}' is not key=value"))
        changes: dict[str, Any] = {}
        if request.code in (25, 318, 1009):
            changes = dict.fromkeys(("password", "aSecretKey")[: random.randrange(3)], (SECRET, SECRET))
        changes |= {
            f"topic {number}": (None, {"a": [number] * 200})
            for number in range(random.choice((0, 0, 1, 1, 300)))
        }
        return request, remark, random.choice((0, 1, 16, 2, -1)), changes

    def size(self, value: tuple[AccessRequest, str, int, dict[str, Any]]) -> int:
        return self.access.size((0, value[0])) + len(value[1]) + 1_000 * len(value[3])

    def run(self, value: tuple[AccessRequest, str, int, dict[str, Any]]) -> str:
        request, remark, code, changes = value
        peer = AnyPeer(
            self.random.choice(IPS) + ":1", (self.random.choice(VALUES),) * self.random.randrange(20)
        )
        dropped, self.lines.lines = self.lines.dropped_lines, []
        self.log.record(request, peer, Caller(), code=code, remark=remark, changes=changes)  # type: ignore[arg-type]
        if self.lines.dropped_lines != dropped:
            raise Finding("it could not be recorded")
        for line in self.lines.lines:
            json.loads(line)
            assert line.endswith(b"\n") and line.count(b"\n") == 1
            assert len(line) <= LINE_BYTES_MAX
            assert line.isascii()
            if SECRET not in str(request.ext_fields):
                no_secret(line.decode())
        return "written" if self.lines.lines else "not written"


TOKEN: Final = "a-token-of-32-characters-or-more"
TOKENS: Final = f"# ours\n\nadminister admin sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n"


class HttpCredentials(Base):
    """The header Authorization, and files of tokens."""

    name = "http"
    allowed = (Unauthenticated, Forbidden, TooManyFailures)

    def __init__(self, random: Random, path: Path) -> None:
        super().__init__(random, path)
        write(path / "tokens", TOKENS.encode())
        self.now_ms = NOW_MS
        self.throttle = FailureThrottle(addresses_max=MEMORY_MAX)
        settings = AccessSettings(authentication_enabled=True, authorization_enabled=True)
        control = AccessControl(tables(*LINES), settings, throttle=self.throttle)
        tokens = TokensFile(path / "tokens")
        self.access = HttpServerAccess(ServerAccess(control, clock=self._now), tokens, clock=self._now)

    def _now(self) -> int:
        self.now_ms += 500
        return self.now_ms

    def make(self) -> tuple[str | None, str, str]:
        random = self.random
        user = random.choice([*SECRETS, "nobody", ""])
        password = random.choice((SECRETS.get(user, ""), SECRETS.get(user, ""), "wrong", "\x00", "é", ""))
        text = damage(random, f"{user}:{password}".encode("utf-8", "surrogatepass"))
        header = random.choice(
            (f"Basic {base64.b64encode(text).decode()}", f"Bearer {TOKEN}", "Bearer ", "Digest x")
        )
        if random.random() < 0.4:
            header = damage_text(random, header).encode("latin-1", "replace").decode("latin-1")
        ip = f"10.0.{random.randrange(256)}.{random.randrange(256)}"
        tokens = damage_text(random, TOKENS)
        return header if random.random() < 0.98 else None, random.choice((*IPS, ip, ip, ip)), tokens

    def size(self, value: tuple[str | None, str, str]) -> int:
        return len(value[0] or "") + len(value[2])

    def run(self, value: tuple[str | None, str, str]) -> str:
        header, ip, tokens = value
        try:
            parse_tokens(tokens)
        except InvalidTokens as error:
            assert TOKEN not in str(error)
            assert hashlib.sha256(TOKEN.encode()).hexdigest() not in str(error)
        caller = self.access.authenticate(header, AnyPeer(f"{ip}:1", ()))  # type: ignore[arg-type]
        scheme, _, given = (header or "").strip().partition(" ")
        if scheme.lower() == "bearer":
            right = given.strip() == TOKEN and caller.user == "token:admin"
        else:
            user, _, password = base64.b64decode(given.strip()).decode().partition(":")
            right = SECRETS.get(user) == password and caller.user == user != "gone"
        if not right:
            raise Finding(f"{caller.user!r} without right credentials")
        return scheme.lower()

    def check(self) -> None:
        assert len(self.throttle) <= MEMORY_MAX
        assert self.access.remembered <= GOOD_MAX


SYNC_TARGETS: Final[tuple[type[Base], ...]] = (
    Access, Proofs, Acls, Users, UserFiles, PlainFiles, CredentialFiles, Addresses, Audit,
    HttpCredentials,
)  # fmt: skip


def makers() -> dict[str, TargetMaker]:
    """Returns all targets by name."""
    from tests.fuzz.security_tls import TlsRecords

    made: dict[str, TargetMaker] = {each.name: each for each in SYNC_TARGETS}  # type: ignore[misc]
    made[TlsRecords.name] = TlsRecords
    return made
