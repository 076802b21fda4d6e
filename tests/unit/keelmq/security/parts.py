"""Users, ACLs and requests for the tests of security."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keelmq.security.core.access import AccessControl, AccessRequest
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Acl, parse_acl
from keelmq.security.core.member_proof import MemberProofs
from keelmq.security.core.signature import signed
from keelmq.security.core.users import User, UserStatus, UserType

PEER = "10.0.0.7"
SECRETS = {"alice": "alice-secret", "root": "root-secret", "inner": "inner-secret", "gone": "gone-secret"}
NOW_MS = 1_767_225_600_000
V5 = 479
SENDER = b"a sender"


def acl_of(username: str, *lines: str, default: tuple[str, ...] = ()) -> Acl:
    """Each line is "Topic:t* Pub,Sub Allow [source IP,...]"."""

    def entry(line: str) -> dict[str, Any]:
        resource, actions, decision, *ips = line.split()
        source_ips = ips[0].split(",") if ips else []
        made = {"resource": resource, "actions": actions.split(","), "decision": decision}
        return {**made, "sourceIps": source_ips}

    policies = [
        {"policyType": name, "entries": [entry(line) for line in of]}
        for name, of in (("Custom", lines), ("Default", default))
        if of
    ]
    return parse_acl({"subject": f"User:{username}", "policies": policies})


@dataclass
class Tables:
    """UsersAndAcls in memory."""

    users: dict[str, User] = field(default_factory=dict)
    acls: dict[str, Acl] = field(default_factory=dict)
    generation: int = 1

    def user(self, username: str) -> User | None:
        return self.users.get(username)

    def acl(self, subject: str) -> Acl | None:
        return self.acls.get(subject)

    def put(self, *changed: User | Acl) -> None:
        for each in changed:
            if isinstance(each, User):
                self.users[each.username] = each
            else:
                self.acls[each.subject] = each
        self.generation += 1


def tables(*lines: str) -> Tables:
    """alice with these lines, root and inner as Super users, gone, who is disabled."""
    made = Tables()
    made.put(
        User("alice", SECRETS["alice"]),
        User("root", SECRETS["root"], UserType.SUPER),
        User("inner", SECRETS["inner"], UserType.SUPER),
        User("gone", SECRETS["gone"], UserType.SUPER, UserStatus.DISABLE),
    )
    if lines:
        made.put(acl_of("alice", *lines))
    return made


def control(made: Tables, *, proofs: MemberProofs | None = None, **settings: Any) -> AccessControl:
    """Both switches on, unless the settings say otherwise."""
    both = {"authentication_enabled": True, "authorization_enabled": True, **settings}
    return AccessControl(made, AccessSettings(**both), proofs=proofs)


def request(
    code: int,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    user: str | None = "alice",
    secret: str | None = None,
    **rest: Any,
) -> AccessRequest:
    """user None: unsigned."""
    fields = dict(ext_fields or {})
    if user is not None:
        fields = signed(user, secret or SECRETS.get(user, "unknown-secret"), fields, body)
    return AccessRequest(int(code), V5, fields, body, rest.pop("peer_ip", PEER), **rest)
