"""Checks that only count together: members beside ACL 1.0, authorization without authentication, proofs with
the stateful strategy, look-ups of anonymous clients."""

import pytest

from keelmq.remoting.codes import RequestCode as Code
from keelmq.security.core.access import KEY_CHARS_MAX, AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import TRACE_TOPIC, Lookup, LookupKind, Role
from keelmq.security.core.member_proof import with_proof
from keelmq.security.core.plain_acl import parse_plain_acl
from keelmq.security.core.signature import sign
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.users import User
from tests.unit.keelmq.security.parts import NOW_MS, PEER, SENDER, V5, acl_of, control, request, tables

SEND = {"a": "p", "b": "t", "e": "0"}
INNER = frozenset({"inner"})
PLAIN, _ = parse_plain_acl(
    [("f", {"globalWhiteRemoteAddresses": ["192.168.*"], "accounts": [
        {"accessKey": "RocketMQ", "secretKey": "12345678", "topicPerms": ["t=PUB"]},
        {"accessKey": "RocketAdmin", "secretKey": "12345678", "admin": True},
    ]})]
)  # fmt: skip


def remark(found: Granted | Refused) -> str:
    return found.remark if isinstance(found, Refused) else ""


def proven(code: int, fields: dict[str, str], user: str = "inner", number: int = 0) -> AccessRequest:
    sent = with_proof(code, fields, b"", now_ms=NOW_MS, uptime_ms=0, sender=SENDER, number=number)
    return request(code, sent, user=user)


# -- members beside other switches ------------------------------------------------------------------------


def test_a_member_needs_no_account_of_acl_1() -> None:
    settings = AccessSettings(members_required=True, member_users=INNER)
    access = AccessControl(tables(), settings, plain=PLAIN)
    found = access.check(proven(Code.BROKER_HEARTBEAT, {"brokerName": "b"}), NOW_MS)
    assert isinstance(found, Granted) and found.is_member


def test_admins_of_acl_1_administer_where_members_are_known() -> None:
    settings = AccessSettings(members_required=True, member_users=INNER)
    access = AccessControl(tables(), settings, plain=PLAIN)
    sent = request(Code.UPDATE_BROKER_CONFIG, {}, b"k=v", user="RocketAdmin", secret="12345678")
    assert access.check(sent, NOW_MS) == Granted("RocketAdmin", Role.ADMINISTER)
    heartbeat = request(Code.BROKER_HEARTBEAT, {}, user="RocketAdmin", secret="12345678")
    assert "check signature failed." in remark(access.check(heartbeat, NOW_MS))


def test_only_members_administer_where_no_user_signs() -> None:
    access = AccessControl(tables(), AccessSettings(members_required=True, member_users=INNER))
    sent = request(Code.UPDATE_BROKER_CONFIG, {}, b"k=v", user="root")
    assert "is for members of this cluster only" in remark(access.check(sent, NOW_MS))


@pytest.mark.parametrize("secret", ["guess", ""])
def test_nobody_is_a_member_by_its_name(secret: str) -> None:
    """With authorization alone a name without a signature has the rights of its user."""
    access = control(tables(), authentication_enabled=False, member_users=INNER)
    sent = request(Code.SEND_MESSAGE_V2, SEND, user=None)
    fields = {**SEND, "AccessKey": "inner"} | ({"Signature": secret} if secret else {})
    assert remark(access.check(sent._replace(ext_fields=fields), NOW_MS)) == "check signature failed."


def test_an_empty_password_signs_for_nobody() -> None:
    fields = {**SEND, "AccessKey": "unknown"}
    fields["Signature"] = sign("", fields)
    sent = AccessRequest(Code.SEND_MESSAGE_V2, V5, fields, b"", PEER)
    assert remark(control(tables()).check(sent, NOW_MS)) == "check signature failed."


def test_the_secret_of_an_account_of_acl_1_is_none_of_the_user_with_that_name() -> None:
    """Also where the signature of a connection counts for a while: each of the two has its own."""
    made = tables()
    made.put(User("RocketMQ", "another secret"), acl_of("RocketMQ", "Topic:t Pub Allow"))
    access = AccessControl(
        made, AccessSettings(authentication_enabled=True, stateful_authentication=True), plain=PLAIN
    )
    for _ in range(2):
        sent = request(Code.SEND_MESSAGE_V2, SEND, user="RocketMQ", secret="12345678")
        assert remark(access.check(sent, NOW_MS)) == "check signature failed."


# -- proofs -----------------------------------------------------------------------------------------------


def test_a_connection_that_signed_does_not_replace_the_proof_of_a_member() -> None:
    access = control(tables(), stateful_authentication=True, member_users=INNER)
    sent = proven(Code.SEND_MESSAGE_V2, SEND)
    assert isinstance(access.check(sent, NOW_MS), Granted)
    assert "the request was sent before" in remark(access.check(sent, NOW_MS))


def test_a_proof_counts_once_also_if_nobody_asked_for_it() -> None:
    access = control(tables())
    sent = proven(Code.UPDATE_BROKER_CONFIG, {}, user="root")
    assert isinstance(access.check(sent, NOW_MS), Granted)
    assert "the request was sent before" in remark(access.check(sent, NOW_MS))


def test_the_proof_of_a_user_is_no_member_s() -> None:
    """The name of a sender is in every request: whoever sees one could use up its numbers."""
    access = control(tables("Topic:t Pub Allow"), member_users=INNER)
    assert isinstance(access.check(proven(Code.BROKER_HEARTBEAT, {}), NOW_MS), Granted)
    assert isinstance(access.check(proven(Code.SEND_MESSAGE_V2, SEND, "alice", 2**40), NOW_MS), Granted)
    assert isinstance(access.check(proven(Code.BROKER_HEARTBEAT, {}, number=1), NOW_MS), Granted)


# -- look-ups ---------------------------------------------------------------------------------------------


def test_an_anonymous_client_on_the_white_list_has_no_look_up() -> None:
    code = int(Code.VIEW_MESSAGE_BY_ID)
    access = control(tables(), authentication_whitelist=frozenset({code}))
    sent = request(code, {"offset": "7"}, user=None)
    assert remark(access.check(sent, NOW_MS)).startswith("Authorization failed.")


def test_traces_are_free_to_send_and_not_to_read() -> None:
    access = control(tables())
    granted = Granted("alice", Role.OPERATE)
    for action, is_free in ((Action.PUB, True), (Action.SUB, False)):
        found = access.check_topic(granted, Lookup(LookupKind.MESSAGE_ID, "7", (action,)), TRACE_TOPIC, PEER)
        assert isinstance(found, Granted) is is_free


def test_what_a_white_address_of_acl_1_looks_up_is_not_checked() -> None:
    access = AccessControl(tables(), AccessSettings(), plain=PLAIN)
    read = Lookup(LookupKind.MESSAGE_ID, "7", (Action.SUB,))
    for peer_ip, is_white in (("192.168.1.1", True), (PEER, False)):
        found = access.check_topic(Granted("", Role.READ), read, "t", peer_ip)
        assert isinstance(found, Granted) is is_white


# -- bounds -----------------------------------------------------------------------------------------------


def test_guesses_of_accounts_of_acl_1_are_throttled() -> None:
    throttle = FailureThrottle(failures_max=2, refill_ms=1_000)
    access = AccessControl(tables(), AccessSettings(), plain=PLAIN, throttle=throttle)
    right = request(Code.SEND_MESSAGE_V2, SEND, user="RocketMQ", secret="12345678", connection_id=1)
    assert isinstance(access.check(right, NOW_MS), Granted)
    for _ in range(2):
        access.check(request(Code.SEND_MESSAGE_V2, SEND, user="RocketMQ", secret="guess"), NOW_MS)
    assert "too many failed authentications" in remark(access.check(right._replace(connection_id=2), NOW_MS))
    assert isinstance(access.check(right, NOW_MS), Granted)
    assert isinstance(access.check(right._replace(connection_id=2), NOW_MS + 1_000), Granted)


def test_decisions_about_long_names_are_not_remembered() -> None:
    access = control(tables("Topic:* Pub Allow"))
    for length, remembered in ((KEY_CHARS_MAX + 1, 0), (100, 1)):
        sent = request(Code.SEND_MESSAGE_V2, {**SEND, "b": "t" * length})
        assert isinstance(access.check(sent, NOW_MS), Granted)
        assert access.remembered[0] == remembered
