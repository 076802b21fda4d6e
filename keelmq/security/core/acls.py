"""Access control lists of ACL 2.0: subjects, resources, actions, policies, and how they are merged and
written.

An Acl belongs to one subject. It has at most one policy of each type, and a policy at most one entry for
each resource. Everything is parsed without regard to case. Source: RocketMQ 5.3.3 Acl, Policy, PolicyEntry,
Resource, AclInfo, AclConverter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from keelmq.security.core.address_patterns import (
    Address,
    BadAddressPattern,
    Network,
    is_in_any,
    parse_source_ip,
)
from keelmq.security.core.users import (
    InvalidUser,
    check_username,
    parse_named,
    parse_stored_change,
    stored_change,
)

RETRY_PREFIX: Final = "%RETRY%"
ENTRIES_MAX: Final = 1_000
SOURCE_IPS_MAX: Final = 100
NAME_CHARS_MAX: Final = 512
SUBJECT_PREFIX: Final = "User:"


class InvalidAcl(ValueError):
    """The text says what is wrong, in RocketMQ's words where it has them."""


class ResourceType(IntEnum):
    """Numbers as in RocketMQ's stored form."""

    ANY = 1
    CLUSTER = 2
    NAMESPACE = 3
    TOPIC = 4
    GROUP = 5


class Pattern(IntEnum):
    """How a resource of a policy names others."""

    ANY = 1
    LITERAL = 2
    PREFIXED = 3


class Action(IntEnum):
    """Numbers as in RocketMQ's stored form. ANY is requested, and never granted."""

    ALL = 1
    ANY = 2
    PUB = 3
    SUB = 4
    CREATE = 5
    UPDATE = 6
    DELETE = 7
    GET = 8
    LIST = 9


class Decision(IntEnum):
    ALLOW = 1
    DENY = 2


class PolicyType(IntEnum):
    """DEFAULT counts only where no entry of CUSTOM matches."""

    CUSTOM = 1
    DEFAULT = 2


class Resource(NamedTuple):
    """One resource, or a pattern of them. name: without the "*" of a prefix, "" if the pattern is ANY."""

    type: ResourceType
    name: str
    pattern: Pattern = Pattern.LITERAL

    def covers(self, other: "Resource") -> bool:
        """Whether this pattern names `other`, which is literal."""
        if self.type is not other.type:
            return self.type is ResourceType.ANY
        if self.pattern is Pattern.LITERAL:
            return self.name == other.name
        return self.pattern is Pattern.ANY or other.name.startswith(self.name)

    @property
    def key(self) -> str:
        """As the wire has it: "*", "Topic:*", "Topic:abc*", "Topic:abc"."""
        if self.type is ResourceType.ANY:
            return "*"
        name = self.name if self.pattern is Pattern.LITERAL else f"{self.name}*"
        return f"{self.type.name.capitalize()}:{name}"


def group_name(name: str) -> str:
    """Returns a group's name without the prefix of its retry topic: the one place where group resources are
    normalised (pitfall 13). `%RETRY%group+topic`, a retry topic of pop, belongs to the group, too; a group's
    name has no plus sign. `%RETRY%group_topic` cannot be told from the group "group_topic", so it counts as
    that."""
    return name.removeprefix(RETRY_PREFIX).partition("+")[0] if name.startswith(RETRY_PREFIX) else name


def topic_resource(topic: str) -> Resource:
    """A retry topic is a resource of its group (pitfalls 4 and 5)."""
    if topic.startswith(RETRY_PREFIX):
        return Resource(ResourceType.GROUP, group_name(topic))
    return Resource(ResourceType.TOPIC, topic)


def group_resource(group: str) -> Resource:
    return Resource(ResourceType.GROUP, group_name(group))


def cluster_resource(name: str) -> Resource:
    return Resource(ResourceType.CLUSTER, name)


def parse_resource(text: str) -> Resource:
    """Returns the resource of a policy. Raises InvalidAcl."""
    text = text.strip()
    if text == "*":
        return Resource(ResourceType.ANY, "", Pattern.ANY)
    type_text, colon, name = text.partition(":")
    if not colon or not name or len(name) > NAME_CHARS_MAX:
        raise InvalidAcl(f"resource {text[:80]!r} is neither * nor Type:name, Type:prefix* or Type:*")
    if not name.isprintable() or name != name.strip():
        raise InvalidAcl(f"resource {text[:80]!r}: printable characters, and no blank at an end")
    try:
        type_ = parse_named(ResourceType, type_text, "resource type")
    except InvalidUser as error:
        raise InvalidAcl(str(error)) from None
    if type_ is ResourceType.ANY or type_text.strip().isdigit():
        raise InvalidAcl(f"resource {text[:80]!r}: any resource is written *")
    stem = name.removesuffix("*")
    if "*" in stem:
        raise InvalidAcl(f"resource {text[:80]!r}: * may only be at the end")
    if type_ in (ResourceType.GROUP, ResourceType.TOPIC) and stem.startswith(RETRY_PREFIX):
        type_, stem = ResourceType.GROUP, stem.removeprefix(RETRY_PREFIX)
        if not stem or "+" in stem:
            # A prefix of all retry topics would grant all groups.
            raise InvalidAcl(
                f"resource {text[:80]!r}: retry topics are granted by their group, as Group:name"
            )
    if not name.endswith("*"):
        return Resource(type_, stem)
    return Resource(type_, stem, Pattern.PREFIXED if stem else Pattern.ANY)


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """One line of a policy. source_ips empty: from everywhere."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    source_ips: tuple[str, ...] = ()
    networks: tuple[Network, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        if not self.actions:
            raise InvalidAcl(f"{self.resource.key}: the actions is empty.")
        if Action.ANY in self.actions:
            raise InvalidAcl(f"{self.resource.key}: the action Any can not be granted.")
        if len(self.source_ips) > SOURCE_IPS_MAX:
            raise InvalidAcl(f"{self.resource.key}: at most {SOURCE_IPS_MAX} source IPs")
        try:
            networks = tuple(parse_source_ip(each) for each in self.source_ips)
        except BadAddressPattern as error:
            raise InvalidAcl(f"{self.resource.key}: {error}") from None
        object.__setattr__(self, "networks", networks)

    def matches(self, resource: Resource, wanted: Iterable[Action], source_ip: Address | None) -> bool:
        """Whether this entry is about that access. An unknown address matches only entries that deny."""
        return (
            self.resource.covers(resource)
            and self.grants_any(wanted)
            and (not self.networks or self._is_from(source_ip))
        )

    def grants_any(self, wanted: Iterable[Action]) -> bool:
        return Action.ALL in self.actions or any(
            each is Action.ANY or each in self.actions for each in wanted
        )

    def _is_from(self, source_ip: Address | None) -> bool:
        if source_ip is None:
            return self.decision is Decision.DENY
        return is_in_any(source_ip, self.networks)

    def info(self) -> dict[str, Any]:
        return {
            "resource": self.resource.key,
            "actions": [each.name.capitalize() for each in sorted(self.actions)],
            "sourceIps": list(self.source_ips),
            "decision": self.decision.name.capitalize(),
        }


class Policy(msgspec.Struct, frozen=True):
    type: PolicyType
    entries: tuple[PolicyEntry, ...]

    def merged(self, other: "Policy") -> "Policy":
        """Entries of `other` replace those for the same resource; its new ones are added."""
        by_resource = {entry.resource: entry for entry in (*self.entries, *other.entries)}
        return Policy(self.type, tuple(by_resource.values()))

    def info(self) -> dict[str, Any]:
        return {
            "policyType": self.type.name.capitalize(),
            "entries": [entry.info() for entry in self.entries],
        }


class Acl(msgspec.Struct, frozen=True):
    """subject: "User:alice". changed_ms, is_deleted: see core/user_changes.py."""

    subject: str
    policies: tuple[Policy, ...]
    changed_ms: int = 0
    is_deleted: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether both grant the same; when they were changed does not matter."""
        if not isinstance(other, Acl):
            return NotImplemented
        mine, its = (each._granted for each in (self, other))
        return mine == its

    def __hash__(self) -> int:
        return hash(self._granted)

    @property
    def _granted(self) -> tuple[str, tuple[Policy, ...], bool]:
        return self.subject, self.policies, self.is_deleted

    def __post_init__(self) -> None:
        if sum(len(policy.entries) for policy in self.policies) > ENTRIES_MAX:
            raise InvalidAcl(f"an ACL has at most {ENTRIES_MAX} entries")

    def entries_of(self, type_: PolicyType) -> tuple[PolicyEntry, ...]:
        return next((policy.entries for policy in self.policies if policy.type is type_), ())

    def merged(self, other: "Acl") -> "Acl":
        """Returns what AUTH_UPDATE_ACL, or AUTH_CREATE_ACL for a subject that has one, makes of it."""
        by_type = {policy.type: policy for policy in self.policies}
        for policy in other.policies:
            mine = by_type.get(policy.type)
            by_type[policy.type] = policy if mine is None else mine.merged(policy)
        return Acl(self.subject, tuple(by_type[each] for each in sorted(by_type)))

    def without(self, resource: Resource | None, policy_type: PolicyType = PolicyType.CUSTOM) -> "Acl | None":
        """Returns what AUTH_DELETE_ACL leaves; None: nothing. resource None: the whole ACL is deleted."""
        if resource is None:
            return None
        left = []
        for policy in self.policies:
            if policy.type is policy_type:
                kept = tuple(entry for entry in policy.entries if entry.resource != resource)
                policy = replace(policy, entries=kept)
            if policy.entries:
                left.append(policy)
        return Acl(self.subject, tuple(left)) if left else None

    def info(self) -> dict[str, Any]:
        """Returns AclInfo."""
        return {"subject": self.subject, "policies": [policy.info() for policy in self.policies]}

    def stored(self) -> dict[str, Any]:
        """Returns the form for files and replicas."""
        return {**self.info(), **stored_change(self.changed_ms, self.is_deleted)}

    def about(self, resource_filter: str) -> "Acl | None":
        """Returns the entries whose resource contains the text, as AUTH_LIST_ACL filters; None: there are
        none."""
        left = []
        for policy in self.policies:
            kept = tuple(entry for entry in policy.entries if resource_filter in entry.resource.key)
            if kept:
                left.append(replace(policy, entries=kept))
        return Acl(self.subject, tuple(left)) if left else None


# -- parsing ------------------------------------------------------------------------------------------------


def subject_of(username: str) -> str:
    return SUBJECT_PREFIX + username


def parse_subject(text: object) -> str:
    """Returns "User:<name>". Raises InvalidAcl."""
    type_text, colon, name = str(text or "").strip().partition(":")
    if not colon or type_text.lower() != "user":
        raise InvalidAcl(f"subject {str(text)[:80]!r} is not User:name")
    try:
        check_username(name)
    except InvalidUser as error:
        raise InvalidAcl(str(error)) from None
    return subject_of(name)


def parse_policy_type(text: object) -> PolicyType:
    """Blank is Custom. Raises InvalidAcl."""
    return (
        PolicyType.CUSTOM if text is None or not str(text).strip() else _named(PolicyType, text, "policyType")
    )


def parse_acl(value: object, subject: str | None = None) -> Acl:
    """Returns the Acl of an AclInfo. `subject`: of the request's header; one in the body must be the same.
    Raises InvalidAcl, and then nothing has been changed (pitfall 8)."""
    info = _object(value, "the ACL")
    in_body = info.get("subject")
    of = parse_subject(in_body if subject is None else subject)
    if in_body is not None and parse_subject(in_body) != of:
        raise InvalidAcl(f"the body is about {str(in_body)[:80]!r}, the header about {of!r}")
    listed = _list(info.get("policies"), "policies")
    if len(listed) > ENTRIES_MAX:
        # Each one is merged with all before it, so a body full of them would take hours.
        raise InvalidAcl(f"an ACL has at most {ENTRIES_MAX} policies, which are merged")
    policies: dict[PolicyType, Policy] = {}
    for each in listed:
        policy = _parse_policy(each)
        known = policies.get(policy.type)
        if known is not None and len(known.entries) > ENTRIES_MAX:
            raise InvalidAcl(f"an ACL has at most {ENTRIES_MAX} entries")
        policies[policy.type] = policy if known is None else known.merged(policy)
    if not policies:
        raise InvalidAcl("The policies is empty.")
    return Acl(of, tuple(policies[each] for each in sorted(policies)))


def parse_stored_acl(value: object) -> Acl:
    """Returns an ACL from its stored form. Raises InvalidAcl."""
    acl = parse_acl(value)
    try:
        changed_ms, is_deleted = parse_stored_change(_object(value, "the ACL"))
    except InvalidUser as error:
        raise InvalidAcl(str(error)) from None
    return replace(acl, changed_ms=changed_ms, is_deleted=is_deleted)


def _parse_policy(value: object) -> Policy:
    info = _object(value, "a policy")
    type_ = parse_policy_type(info.get("policyType"))
    listed = _list(info.get("entries"), "entries")
    if not listed:
        raise InvalidAcl("The policy entries is empty.")
    if len(listed) > ENTRIES_MAX:
        raise InvalidAcl(f"an ACL has at most {ENTRIES_MAX} entries")
    # An entry for the same resource twice: the last one counts, as in an update.
    return Policy(type_, ()).merged(Policy(type_, tuple(_parse_entry(each) for each in listed)))


def _parse_entry(value: object) -> PolicyEntry:
    info = _object(value, "a policy entry")
    if not info.get("resource"):
        raise InvalidAcl("The resource is null.")
    if not info.get("decision"):
        raise InvalidAcl("The decision is null.")
    return PolicyEntry(
        parse_resource(str(info["resource"])),
        frozenset(_named(Action, each, "action") for each in _list(info.get("actions"), "actions")),
        _named(Decision, info["decision"], "decision"),
        tuple(str(each).strip() for each in _list(info.get("sourceIps"), "sourceIps") if str(each).strip()),
    )


def _named(type_: Any, value: object, what: str) -> Any:
    try:
        return parse_named(type_, value, what)
    except InvalidUser as error:
        raise InvalidAcl(str(error)) from None


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidAcl(f"{what} is not a JSON object")
    return value


def _list(value: object, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise InvalidAcl(f"{what} is not a list")
    return list(value)
