"""Security against other implementations: decisions, signatures, access control lists, address patterns.

The oracle of decisions is written from the documentation's sentences, not from the code: it eliminates
entries rule by rule instead of sorting them."""

import base64
import hashlib
import hmac
import ipaddress
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from keelmq.security.core.access import AccessRequest, Granted
from keelmq.security.core.acls import Acl, Action, InvalidAcl, parse_acl, parse_resource
from keelmq.security.core.address_patterns import BadAddressPattern, parse_pattern
from keelmq.security.core.authorize import ALLOWED, Context, decide
from keelmq.security.core.contexts import Unreadable
from keelmq.security.core.plain_acl import BadPlainAcl, parse_plain_acl
from keelmq.security.core.rules import RULES, required_contexts
from keelmq.security.core.signature import SecretKey, signed, signed_bytes, verify
from keelmq.security.core.users import User
from tests.unit.keelmq.security.parts import NOW_MS, PEER, V5, control, tables

ACTIONS = ["Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]
NAMES = st.text("ab", min_size=1, max_size=3)
LITERALS = st.tuples(st.sampled_from(["Topic", "Group", "Cluster"]), NAMES).map(":".join)
RESOURCES = st.one_of(
    st.just("*"), LITERALS, LITERALS.map(lambda text: text + "*"), st.sampled_from(["Topic:*", "Group:*"])
)
IPS = st.lists(st.sampled_from(["10.0.0.0/8", "10.0.0.7", "192.168.0.0/16", "fe80::/10"]), max_size=2)
ENTRIES = st.fixed_dictionaries(
    {
        "resource": RESOURCES,
        "actions": st.lists(st.sampled_from([*ACTIONS, "All"]), min_size=1, max_size=3, unique=True),
        "decision": st.sampled_from(["Allow", "Deny"]),
        "sourceIps": IPS,
    }
)
POLICIES = st.lists(ENTRIES, min_size=1, max_size=6, unique_by=lambda entry: entry["resource"])


def acl_info(custom: list[Any], default: list[Any]) -> dict[str, Any]:
    both = [("Custom", custom), ("Default", default)]
    return {
        "subject": "User:a",
        "policies": [{"policyType": name, "entries": entries} for name, entries in both],
    }


ACLS = st.builds(acl_info, POLICIES, POLICIES)


# -- the oracle -------------------------------------------------------------------------------------------


def is_about(entry: dict[str, Any], resource: str, wanted: list[str], peer: str) -> bool:
    pattern = entry["resource"]
    named = (
        pattern == "*" or resource == pattern or (pattern[-1] == "*" and resource.startswith(pattern[:-1]))
    )
    acts = "All" in entry["actions"] or bool(set(wanted) & set(entry["actions"]))
    ips = entry["sourceIps"]
    return (
        named
        and acts
        and (not ips or any(ipaddress.ip_address(peer) in ipaddress.ip_network(ip) for ip in ips))
    )


def oracle(info: dict[str, Any], resource: str, wanted: list[str], peer: str) -> bool:
    for policy in info["policies"]:
        left = [entry for entry in policy["entries"] if is_about(entry, resource, wanted, peer)]
        if not left:
            continue
        preferences: list[Callable[[dict[str, Any]], bool]] = [
            lambda entry: entry["resource"] != "*",
            lambda entry: not entry["resource"].endswith("*"),
            lambda entry: not entry["resource"].endswith(":*"),
        ]
        for prefers in preferences:
            left = [entry for entry in left if prefers(entry)] or left
        longest = max(len(entry["resource"]) for entry in left)
        left = [entry for entry in left if len(entry["resource"]) == longest]
        return not any(entry["decision"] == "Deny" for entry in left)
    return False


@given(
    ACLS,
    LITERALS,
    st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=3),
    st.sampled_from([PEER, "11.1.1.1"]),
)
def test_decisions_are_the_documented_ones(
    info: dict[str, Any], resource: str, wanted: list[str], peer: str
) -> None:
    acl = parse_acl(info)
    context = Context(parse_resource(resource), tuple(Action[each.upper()] for each in wanted))
    found = decide(User("a", "secret"), acl, [context], peer)
    assert (found is ALLOWED) == oracle(info, resource, wanted, peer)


@given(ACLS)
def test_acls_are_written_as_they_are_read(info: dict[str, Any]) -> None:
    acl = parse_acl(info)
    assert parse_acl(acl.info()) == acl
    assert parse_acl(acl.info()).info() == acl.info()


@given(ACLS, ACLS)
def test_an_update_has_all_of_the_new_and_the_rest_of_the_old(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    def table(acl: Acl) -> dict[tuple[object, object], object]:
        return {(policy.type, entry.resource): entry for policy in acl.policies for entry in policy.entries}

    before, change = parse_acl(old), parse_acl(new)
    assert table(before.merged(change)) == table(before) | table(change)
    assert before.merged(change).merged(change) == before.merged(change)


MEMBERS = [
    "subject",
    "policies",
    "policyType",
    "entries",
    "resource",
    "actions",
    "decision",
    "sourceIps",
    "accounts",
    "accessKey",
    "secretKey",
    "topicPerms",
    "admin",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
)


@given(JSON)
def test_garbage_is_refused_with_one_kind_of_error(value: Any) -> None:
    try:
        parse_acl(value)
    except InvalidAcl as error:
        assert str(error)
    try:
        parse_plain_acl([("f", value)])
    except BadPlainAcl as error:
        assert str(error).startswith("f")


# -- signatures -------------------------------------------------------------------------------------------

FIELDS = st.dictionaries(st.text("abAB_é", min_size=1, max_size=6), st.text(max_size=12), max_size=15)


@given(FIELDS, st.binary(max_size=64), st.text(min_size=1, max_size=100))
def test_what_is_signed_is_verified(fields: dict[str, str], body: bytes, secret: str) -> None:
    sent = signed("alice", secret, fields, body)
    key = SecretKey(secret.encode())
    shuffled = dict(reversed(sent.items()))
    assert verify(key, sent, body, V5) and verify(key, shuffled, body, V5)
    assert not verify(key, sent, body + b"x", V5)
    assert not verify(SecretKey(secret.encode() + b"x"), sent, body, V5)


@given(FIELDS, st.binary(max_size=64), st.binary(max_size=100))
def test_the_signature_is_the_standards(fields: dict[str, str], body: bytes, secret: bytes) -> None:
    ordered = sorted(fields.items(), key=lambda field: field[0].encode("utf-16-be"))
    data = "".join(value for _, value in ordered).encode() + body
    assert signed_bytes(fields, body) == data
    expected = base64.b64encode(hmac.new(secret, data, hashlib.sha1).digest())
    assert SecretKey(secret).signature_of(data) == expected


# -- addresses --------------------------------------------------------------------------------------------

OCTETS = st.integers(0, 255)


@given(
    st.tuples(OCTETS, OCTETS, OCTETS, OCTETS), st.integers(1, 4), st.tuples(OCTETS, OCTETS, OCTETS, OCTETS)
)
def test_patterns_against_text(address: tuple[int, ...], known: int, other: tuple[int, ...]) -> None:
    parts = [str(each) for each in address]
    pattern = parse_pattern(".".join(parts[:known]) + (".*" if known < 4 else ""))
    assert pattern.matches(".".join(parts))
    assert pattern.matches(".".join(map(str, other))) == (address[:known] == other[:known])


@given(st.text("0123456789.:*-{},abf/ ", max_size=30), st.ip_addresses())
def test_any_text_is_a_pattern_or_refused(text: str, peer: Any) -> None:
    try:
        parse_pattern(text).matches(str(peer))
    except BadAddressPattern as error:
        assert "address pattern" in str(error)


# -- the whole check --------------------------------------------------------------------------------------


@given(
    st.sampled_from([*RULES, 54, 99_999]),
    st.dictionaries(
        st.sampled_from(["topic", "b", "group", "consumerGroup", "recallHandle"]), st.text(max_size=8)
    ),
    st.binary(max_size=40),
)
def test_a_user_without_rights_is_granted_nothing_that_names_something(
    code: int, fields: dict[str, str], body: bytes
) -> None:
    sent = signed("alice", "alice-secret", fields, body)
    found = control(tables()).check(AccessRequest(code, V5, sent, body, PEER), NOW_MS)
    try:
        contexts = required_contexts(code, sent, body, "DefaultCluster").contexts
    except Unreadable:
        assert not isinstance(found, Granted)
    else:
        assert isinstance(found, Granted) == (not contexts)
