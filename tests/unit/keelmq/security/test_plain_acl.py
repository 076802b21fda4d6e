"""ACL 1.0: plain_acl.yml as YAML values, its decision, and the migration to 2.0."""

from typing import Any

import pytest

from keelmq.security.core.acls import Action, group_resource, subject_of, topic_resource
from keelmq.security.core.authorize import ALLOWED, Context, decide
from keelmq.security.core.migration import migrate
from keelmq.security.core.plain_acl import (
    Account,
    BadPlainAcl,
    Permission,
    PlainAcl,
    authorize,
    parse_permission,
    parse_plain_acl,
)
from keelmq.security.core.signature import signed
from keelmq.security.core.users import UserType
from tests.unit.keelmq.security.parts import PEER

ACCOUNT = {
    "accessKey": "RocketMQ",
    "secretKey": 12345678,
    "defaultGroupPerm": "SUB",
    "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=PUB"],
    "groupPerms": ["groupA=DENY"],
}


def parsed(*accounts: dict[str, Any], **content: Any) -> PlainAcl:
    plain, warnings = parse_plain_acl([("plain_acl.yml", {"accounts": list(accounts), **content})])
    assert warnings == []
    return plain


def account(**changed: Any) -> Account:
    return parsed({**ACCOUNT, **changed}).accounts["RocketMQ"]


def why(of: Account, code: int, *contexts: Context) -> str | None:
    return authorize(of, code, contexts, PEER)


def topic(name: str, *actions: Action) -> Context:
    return Context(topic_resource(name), actions)


def group(name: str, *actions: Action) -> Context:
    return Context(group_resource(name), actions)


def test_an_all_digit_secret_is_text() -> None:
    fields = signed("RocketMQ", "12345678", {"topic": "t"})
    assert isinstance(parsed(ACCOUNT).authenticate(fields, b"", 479, PEER), Account)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "plain_acl.yml: not a mapping"),
        ({"accounts": {}}, "accounts: not a list"),
        ({"accounts": ["x"]}, r"accounts\[0\]: not a mapping"),
        ({"accounts": [{"accessKey": "short", "secretKey": "12345678"}]}, "accessKey cannot be shorter"),
        ({"accounts": [{"accessKey": "RocketMQ", "secretKey": "123456"}]}, "secretKey cannot be shorter"),
        ({"accounts": [{**ACCOUNT, "admin": "maybe"}]}, "admin is neither true nor false"),
        ({"accounts": [{**ACCOUNT, "admin": 1}]}, "admin is neither true nor false"),
        ({"accounts": [{**ACCOUNT, "topicPerms": ["topicA"]}]}, "'topicA', not name=permission"),
        ({"accounts": [{**ACCOUNT, "topicPerms": "a=PUB"}]}, "topicPerms: not a list"),
        ({"accounts": [{**ACCOUNT, "whiteRemoteAddress": "10.0"}]}, "whiteRemoteAddress: address pattern"),
        ({"globalWhiteRemoteAddresses": ["10.0.0.999"]}, "globalWhiteRemoteAddresses: address pattern"),
    ],
)
def test_pitfall_8_a_bad_file_is_refused_as_a_whole(value: Any, says: str) -> None:
    with pytest.raises(BadPlainAcl, match=says) as caught:
        parse_plain_acl([("plain_acl.yml", value)])
    assert "123456" not in str(caught.value)


def test_pitfall_7_null_and_blank_are_empty_lists() -> None:
    for nothing in (None, [], ""):
        plain = parsed(
            {**ACCOUNT, "topicPerms": nothing, "groupPerms": nothing}, globalWhiteRemoteAddresses=nothing
        )
        assert plain.accounts["RocketMQ"].perms == {}
        assert plain.global_white == ()
    assert parse_plain_acl([("empty.yml", None), ("a.yml", {"accounts": None})])[0] == PlainAcl()


def test_pitfall_9_a_changed_file_replaces_accounts_by_key() -> None:
    changed = account(topicPerms=["topicA=PUB"], groupPerms=[])
    assert changed.perms == {topic_resource("topicA"): Permission.PUB}


def test_pitfall_10_the_first_definition_of_a_key_counts() -> None:
    second = {**ACCOUNT, "secretKey": "other-secret", "admin": True}
    plain, warnings = parse_plain_acl([("a.yml", {"accounts": [ACCOUNT]}), ("b.yml", {"accounts": [second]})])
    assert not plain.accounts["RocketMQ"].is_admin
    assert warnings == ["b.yml: accessKey RocketMQ is ignored: a.yml defines it"]


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        ("PUB", Permission.PUB),
        ("SUB", Permission.SUB),
        ("PUB|SUB", Permission.PUB | Permission.SUB),
        (" SUB | PUB ", Permission.PUB | Permission.SUB),
        ("DENY", Permission.DENY),
        ("pub", Permission.DENY),
        ("nonsense", Permission.DENY),
        (None, Permission.DENY),
    ],
)
def test_permissions(text: str | None, permission: Permission) -> None:
    assert parse_permission(text) == permission


@pytest.mark.parametrize(
    ("contexts", "allowed"),
    [
        ([topic("topicB", Action.PUB)], True),
        ([topic("topicC", Action.PUB)], True),
        ([topic("topicC", Action.SUB)], False),
        ([topic("topicA", Action.PUB)], False),
        ([topic("other", Action.PUB)], False),
        ([topic("topicB", Action.SUB), group("other", Action.SUB)], True),
        ([topic("topicB", Action.SUB), group("groupA", Action.SUB)], False),
        ([topic("%RETRY%groupA", Action.SUB)], False),
        ([topic("%RETRY%other", Action.SUB)], True),
        ([topic("topicA", Action.GET)], True),
        ([topic("topicB", Action.CREATE)], False),
        ([topic("topicB", Action.DELETE)], False),
        ([], True),
    ],
)
def test_resources(contexts: list[Context], allowed: bool) -> None:
    assert (why(account(), 11, *contexts) is None) == allowed
    assert why(account(admin=True), 11, *contexts) is None


@pytest.mark.parametrize("code", [17, 25, 50, 51, 52, 200, 207, 215, 513])
def test_pitfall_19_admin_codes_need_an_admin(code: int) -> None:
    assert (
        why(account(), code)
        == f"Need admin permission for request code={code}, but accessKey=RocketMQ is not"
    )
    assert why(account(admin=True), code) is None


@pytest.mark.parametrize("code", [14, 29, 30, 31, 32, 105])
def test_codes_that_need_only_a_signature(code: int) -> None:
    assert why(account(), code, topic("topicA", Action.SUB, Action.GET)) is None


def test_the_order_of_authentication() -> None:
    plain = parsed({**ACCOUNT, "whiteRemoteAddress": "10.0.0.9"}, globalWhiteRemoteAddresses=["192.168.*"])
    assert plain.is_white("192.168.1.1") and not plain.is_white(PEER)
    unsigned = {"AccessKey": "RocketMQ"}
    assert plain.authenticate({}, b"", 479, PEER) == "No accessKey is configured"
    assert plain.authenticate({"AccessKey": ""}, b"", 479, PEER) == "No accessKey is configured"
    assert plain.authenticate({"AccessKey": "X"}, b"", 479, PEER) == "Check signature failed for accessKey=X"
    assert plain.authenticate(unsigned, b"", 479, PEER) == "Check signature failed for accessKey=RocketMQ"
    white = plain.authenticate(unsigned, b"", 479, "10.0.0.9")
    assert isinstance(white, Account)
    assert authorize(white, 17, [topic("topicA", Action.CREATE)], "10.0.0.9") is None


def test_a_secret_is_in_no_repr() -> None:
    assert "12345678" not in repr(parsed(ACCOUNT))


# -- migration ----------------------------------------------------------------------------------------------


def test_accounts_become_users_and_acls() -> None:
    admin = {"accessKey": "RocketAdmin", "secretKey": "admin-secret", "admin": True}
    found = migrate(parsed(ACCOUNT, admin), known_users=())
    (alice, acl), (root, none) = found
    assert (alice.username, alice.password, alice.user_type) == ("RocketMQ", "12345678", UserType.NORMAL)
    assert (root.user_type, none) == (UserType.SUPER, None)
    assert acl is not None and acl.subject == subject_of("RocketMQ")
    assert [policy["policyType"] for policy in acl.info()["policies"]] == ["Custom", "Default"]
    for contexts, allowed in (
        ([topic("topicB", Action.PUB)], True),
        ([topic("topicC", Action.SUB)], False),
        ([topic("topicA", Action.PUB)], False),
        ([topic("other", Action.PUB)], False),
        ([group("other", Action.SUB)], True),
        ([group("groupA", Action.SUB)], False),
    ):
        assert (decide(alice, acl, contexts, PEER) is ALLOWED) == allowed, contexts
        assert (why(account(), 11, *contexts) is None) == allowed, contexts


def test_users_that_exist_are_left_alone() -> None:
    assert migrate(parsed(ACCOUNT), known_users={"RocketMQ"}) == []
