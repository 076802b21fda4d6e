"""The decision of ACL 2.0: its documented order, and what refusals say."""

import pytest

from keelmq.security.core.acls import Acl, Action, parse_resource
from keelmq.security.core.authorize import ALLOWED, Context, Denied, decide
from keelmq.security.core.users import User, UserStatus, UserType
from tests.unit.keelmq.security.parts import PEER, acl_of

ALICE = User("alice", "secret")


def verdict(acl: Acl | None, resource: str, *actions: Action, peer: str = PEER, user: User = ALICE) -> str:
    """ "allow", or the end of the remark."""
    found = decide(user, acl, [Context(parse_resource(resource), actions or (Action.PUB,))], peer)
    return found.remark.partition(", ")[2] if isinstance(found, Denied) else "allow"


NO_MATCH, DENY = "no matched policies.", "the decision is deny."


def test_remarks_are_upstreams() -> None:
    found = decide(ALICE, None, [Context(parse_resource("Topic:t"), (Action.PUB,))], "1.2.3.4")
    assert isinstance(found, Denied)
    assert found.remark == (
        "User:alice has no permission to access Topic:t from 1.2.3.4, no matched policies."
    )


def test_pitfall_18_a_refusal_names_the_address() -> None:
    acl = acl_of("alice", "Topic:t Pub Deny")
    found = decide(ALICE, acl, [Context(parse_resource("Topic:t"), (Action.PUB,))], "fe80::1")
    assert isinstance(found, Denied)
    assert (
        found.remark == "User:alice has no permission to access Topic:t from fe80::1, the decision is deny."
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("Topic:tt Pub Allow", "Topic:t* Pub Deny"), "allow"),
        (("Topic:tt Pub Deny", "Topic:t* Pub Allow"), DENY),
        (("Topic:tt* Pub Allow", "Topic:t* Pub Deny"), "allow"),
        (("Topic:tt* Pub Deny", "Topic:t* Pub Allow"), DENY),
        (("Topic:t* Pub Allow", "Topic:* Pub Deny"), "allow"),
        (("Topic:t* Pub Deny", "Topic:* Pub Allow"), DENY),
        (("Topic:* Pub Allow", "* Pub Deny"), "allow"),
        (("Topic:* Pub Deny", "* Pub Allow"), DENY),
        (("* All Allow",), "allow"),
        (("Topic:x Pub Allow",), NO_MATCH),
        (("Group:tt Pub Allow",), NO_MATCH),
        (("Topic:tt Sub Allow",), NO_MATCH),
        (("Topic:TT Pub Allow",), NO_MATCH),
    ],
)
def test_pitfall_17_the_more_specific_entry_decides(lines: tuple[str, ...], expected: str) -> None:
    """As RocketMQ after 5.3.3 (#9539)."""
    assert verdict(acl_of("alice", *lines), "Topic:tt") == expected
    assert verdict(acl_of("alice", *reversed(lines)), "Topic:tt") == expected


def test_deny_wins_a_tie() -> None:
    """Of two wanted actions, one is denied by an entry that is as specific: in RocketMQ 5.3.3 Allow wins
    (#9784)."""
    both = Acl("User:alice", acl_of("alice", "Topic:t Sub Allow").policies)
    denied = acl_of("alice", "Topic:t Get Deny").policies[0].entries
    policy = both.policies[0]
    for entries in ((*policy.entries, *denied), (*denied, *policy.entries)):
        acl = Acl("User:alice", (type(policy)(policy.type, entries),))
        assert verdict(acl, "Topic:t", Action.SUB, Action.GET) == DENY


def test_default_counts_only_where_custom_has_nothing() -> None:
    acl = acl_of("alice", "Topic:t* Pub Deny", default=("Topic:* Pub Allow",))
    assert verdict(acl, "Topic:t") == DENY
    assert verdict(acl, "Topic:u") == "allow"
    assert verdict(acl, "Group:g") == NO_MATCH


def test_one_of_the_wanted_actions_is_enough() -> None:
    acl = acl_of("alice", "Topic:t Get Allow")
    assert verdict(acl, "Topic:t", Action.SUB, Action.GET) == "allow"
    assert verdict(acl, "Topic:t", Action.SUB) == NO_MATCH
    assert verdict(acl, "Topic:t", Action.ANY) == "allow"


def test_all_contexts_must_pass() -> None:
    contexts = [Context(parse_resource(each), (Action.SUB,)) for each in ("Topic:t", "Group:g")]
    one, two = acl_of("alice", "Topic:t Sub Allow"), acl_of("alice", "Topic:t Sub Allow", "Group:g Sub Allow")
    found = decide(ALICE, one, contexts, PEER)
    assert isinstance(found, Denied) and found.context == contexts[1]
    assert decide(ALICE, two, contexts, PEER) is ALLOWED
    assert decide(ALICE, None, [], PEER) is ALLOWED


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("10.1.2.3", "allow"),
        ("192.168.0.1", "allow"),
        ("::ffff:10.1.2.3", "allow"),
        ("192.168.0.2", NO_MATCH),
        ("fe80::1", NO_MATCH),
        ("http", NO_MATCH),
    ],
)
def test_source_ips_are_addresses_or_cidrs(peer: str, expected: str) -> None:
    acl = acl_of("alice", "Topic:t Pub Allow 10.0.0.0/8,192.168.0.1")
    assert verdict(acl, "Topic:t", peer=peer) == expected


def test_an_unknown_address_is_among_the_denied_ones() -> None:
    acl = acl_of("alice", "Topic:t Pub Deny 10.0.0.0/8", "Topic:* Pub Allow")
    assert verdict(acl, "Topic:t", peer="http") == DENY
    assert verdict(acl, "Topic:t", peer="11.0.0.1") == "allow"


def test_users() -> None:
    context = [Context(parse_resource("Cluster:c"), (Action.UPDATE,))]
    assert decide(User("root", "s", UserType.SUPER), None, context, PEER) is ALLOWED
    assert isinstance(decide(None, None, context, PEER), Denied)
    for type_ in UserType:  # RocketMQ 5.3.3 let them in if authentication was off (#9763)
        disabled = User("root", "s", type_, UserStatus.DISABLE)
        acl = acl_of("root", "* All Allow")
        assert decide(disabled, acl, context, PEER) == Denied("User:root is disabled.")
