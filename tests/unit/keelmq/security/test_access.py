"""The check of a request as a whole: every switch alone and together, and what is remembered."""

import base64
from typing import Any

import pytest

from keelmq.remoting.codes import RequestCode as Code
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import Role
from keelmq.security.core.member_proof import with_proof
from keelmq.security.core.plain_acl import parse_plain_acl
from keelmq.security.core.refusals import Reason
from keelmq.security.core.rules import RULES
from keelmq.security.core.signature import signed
from keelmq.security.core.throttle import FailureThrottle
from keelmq.security.core.users import User, UserStatus
from keelmq.security.server_access import ServerAccess
from tests.unit.keelmq.security.parts import NOW_MS, PEER, SECRETS, SENDER, V5, control, request, tables

NO_RIGHT = "User:alice has no permission to access {} from 10.0.0.7, no matched policies."
SEND = {"a": "p", "b": "t", "e": "0"}
PLAIN, _ = parse_plain_acl(
    [("f", {"globalWhiteRemoteAddresses": ["192.168.*"], "accounts": [
        {"accessKey": "RocketMQ", "secretKey": "12345678", "topicPerms": ["t=PUB"]},
        {"accessKey": "RocketAdmin", "secretKey": "12345678", "admin": True},
    ]})]
)  # fmt: skip


def remark(found: Granted | Refused) -> str:
    """ "" if it is granted."""
    return found.remark if isinstance(found, Refused) else ""


def reason(found: Granted | Refused) -> str:
    assert isinstance(found, Refused), found
    return found.reason


def by_member(code: int, *, number: int = 0, sent_ms: int = NOW_MS, body: bytes = b"") -> AccessRequest:
    fields = with_proof(
        code, {"brokerName": "b"}, body, now_ms=sent_ms, uptime_ms=0, sender=SENDER, number=number
    )
    return request(code, fields, body, user="inner")


@pytest.mark.parametrize(
    ("settings", "code", "is_open"),
    [
        ({}, Code.SEND_MESSAGE_V2, True),
        ({"members_required": True}, Code.SEND_MESSAGE_V2, True),
        ({"members_required": True}, Code.BROKER_HEARTBEAT, False),
        ({"members_required": True}, Code.UPDATE_BROKER_CONFIG, False),
        ({"authentication_enabled": True}, Code.SEND_MESSAGE_V2, False),
        ({"authorization_enabled": True}, Code.SEND_MESSAGE_V2, False),
        ({"authentication_enabled": True, "authentication_whitelist": {310}}, 310, True),
        ({"authorization_enabled": True, "authorization_whitelist": {310}}, 310, True),
        ({"authorization_enabled": True, "authentication_whitelist": {310}}, 310, False),
    ],
)
def test_what_is_open_whatever_it_says(settings: dict[str, Any], code: int, is_open: bool) -> None:
    made = AccessSettings(**settings)
    assert ServerAccess(AccessControl(tables(), made)).is_open(code) is is_open
    assert not ServerAccess(AccessControl(tables(), made, plain=PLAIN)).is_open(code)


def test_nothing_enabled_lets_everybody_in() -> None:
    access = AccessControl(tables(), AccessSettings())
    for code in (*RULES, 54):
        assert access.check(AccessRequest(code, V5, None, b"", PEER), 0) == Granted(
            "", RULES[code].role if code in RULES else Role.ADMINISTER
        )


@pytest.mark.parametrize(
    ("sent", "says", "reason"),
    [
        (AccessRequest(310, V5, None, b"", PEER), "username cannot be null.", "unsigned"),
        (request(310, SEND, user=None), "username cannot be null.", "unsigned"),
        (request(310, {**SEND, "AccessKey": ""}, user=None), "username cannot be null.", "unsigned"),
        (request(310, SEND, user="bob"), "check signature failed.", "user"),
        (request(310, SEND, user="gone"), "User:gone is disabled.", "user"),
        (request(310, SEND, secret="wrong"), "check signature failed.", "signature"),
        (request(310, {**SEND, "AccessKey": "alice"}, user=None), "check signature failed.", "signature"),
        (request(310, {**SEND, "b": "other"}), NO_RIGHT.format("Topic:other"), "rights"),
        (request(310, {"a": "p"}), "SEND_MESSAGE_V2 (310) is refused: header field b is missing",
         "unreadable"),
        (request(34), "HEART_BEAT (34) is refused: the body is missing", "unreadable"),
        (request(25, user="alice"), NO_RIGHT.format("Cluster:DefaultCluster"), "rights"),
        (request(54_321, user="alice"), NO_RIGHT.format("Cluster:DefaultCluster"), "rights"),
    ],
)  # fmt: skip
def test_refusals(sent: AccessRequest, says: str, reason: Reason) -> None:
    assert control(tables("Topic:t Pub Allow")).check(sent, NOW_MS) == Refused(16, says, reason)


def test_granted() -> None:
    access = control(tables("Topic:t Pub Allow"))
    assert access.check(request(310, SEND), NOW_MS) == Granted("alice", Role.OPERATE)
    assert access.check(request(25, user="root"), NOW_MS) == Granted("root", Role.ADMINISTER)


def test_who_may_read_the_cluster_does_not_read_messages_by_their_checksums() -> None:
    """The checksums of [a, b) and [a, b + 1) tell what byte b is."""
    access = control(tables("Cluster:* Get Allow"))
    assert isinstance(access.check(request(Code.KEELMQ_GET_REPLICA_DIGEST, {}), NOW_MS), Granted)
    ranges = {"startOffset": "0", "endOffset": "65", "pieceBytes": "65"}
    for code in (
        Code.KEELMQ_GET_LOG_CHECKSUMS,
        Code.KEELMQ_GET_QUEUE_CHECKSUMS,
        Code.KEELMQ_READ_LOG,
        Code.KEELMQ_CHECK_LOG_RECORDS,
    ):
        refused = access.check(request(code, ranges), NOW_MS)
        assert isinstance(refused, Refused) and refused.reason == "rights"


def test_every_code_is_refused_to_a_user_without_rights() -> None:
    """All but those that name nothing: they change nothing for anybody else."""
    access = control(tables())
    granted = [code for code in RULES if isinstance(access.check(request(code, {}), NOW_MS), Granted)]
    assert granted == [Code.UNREGISTER_CLIENT]


def test_every_code_is_refused_to_an_anonymous_client() -> None:
    access = control(tables())
    for code in RULES:
        assert remark(access.check(request(code, SEND, user=None), NOW_MS)) == "username cannot be null."


def test_pitfall_15_each_switch_works_alone() -> None:
    made = tables("Topic:t Pub Allow")
    only_who = control(made, authorization_enabled=False)
    assert only_who.check(request(310, {**SEND, "b": "other"}), NOW_MS) == Granted("alice", Role.OPERATE)
    assert remark(only_who.check(request(310, SEND, secret="wrong"), NOW_MS)) == "check signature failed."
    only_may = control(made, authentication_enabled=False)
    assert only_may.check(request(310, SEND, secret="wrong"), NOW_MS) == Granted("alice", Role.OPERATE)
    assert "no matched policies." in remark(only_may.check(request(310, {**SEND, "b": "other"}), NOW_MS))
    assert remark(only_may.check(request(310, SEND, user=None), NOW_MS)) == (
        "Authorization failed. Please verify your access rights and try again."
    )


def test_white_lists() -> None:
    access = control(
        tables("Topic:t Pub Allow"),
        authentication_whitelist=frozenset({310}),
        authorization_whitelist=frozenset({11}),
    )
    pull = {"topic": "x", "consumerGroup": "g"}
    assert access.check(request(11, pull), NOW_MS) == Granted("alice", Role.OPERATE)
    assert remark(access.check(request(11, pull, user=None), NOW_MS)) == "username cannot be null."
    assert access.check(request(310, SEND), NOW_MS) == Granted("alice", Role.OPERATE)
    # RocketMQ would trust the name: whoever is on the white list could be anybody.
    forged = request(310, SEND, secret="wrong")
    assert remark(access.check(forged, NOW_MS)).startswith("Authorization failed.")


# -- what is remembered -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stateful", [False, True])
def test_revocation_takes_effect_at_once(stateful: bool) -> None:
    made = tables("Topic:t Pub Allow")
    access = control(made, stateful_authentication=stateful)
    assert isinstance(access.check(request(310, SEND), NOW_MS), Granted)
    made.put(User("alice", SECRETS["alice"], status=UserStatus.DISABLE))
    assert remark(access.check(request(310, SEND), NOW_MS)) == "User:alice is disabled."
    made.put(User("alice", "another-secret"))
    assert remark(access.check(request(310, SEND), NOW_MS)) == "check signature failed."
    made.put(User("alice", SECRETS["alice"]))
    assert isinstance(access.check(request(310, SEND), NOW_MS), Granted)
    del made.acls["User:alice"]
    made.generation += 1
    assert "no matched policies." in remark(access.check(request(310, SEND), NOW_MS))


@pytest.mark.parametrize("stateful", [False, True])
def test_a_wrong_first_request_does_not_make_correct_ones_fail(stateful: bool) -> None:
    access = control(tables("Topic:t Pub Allow"), stateful_authentication=stateful)
    assert isinstance(access.check(request(310, SEND, secret="wrong"), NOW_MS), Refused)
    assert isinstance(access.check(request(310, SEND), NOW_MS), Granted)


def test_the_stateful_strategy_trusts_a_connection_for_a_while() -> None:
    access = control(tables("Topic:t Pub Allow"), stateful_authentication=True, stateful_expired_ms=1_000)
    wrong = request(310, SEND, secret="wrong", connection_id=7)
    assert isinstance(access.check(request(310, SEND, connection_id=7), NOW_MS), Granted)
    assert isinstance(access.check(wrong, NOW_MS + 999), Granted)
    assert isinstance(access.check(wrong._replace(connection_id=8), NOW_MS + 999), Refused)
    assert isinstance(access.check(wrong, NOW_MS + 1_000), Refused)
    administers = request(25, user="root", secret="wrong", connection_id=7)
    assert isinstance(access.check(request(25, user="root", connection_id=7), NOW_MS), Granted)
    assert isinstance(access.check(administers, NOW_MS), Refused)


def test_decisions_are_remembered_by_everything_that_counts() -> None:
    made = tables("Topic:t Pub,Sub Allow 10.0.0.0/8", "Group:g Sub Allow")
    access = control(made)
    asked = []
    acl = made.acl
    made.acl = lambda subject: asked.append(subject) or acl(subject)  # type: ignore[method-assign, func-returns-value]
    for _ in range(3):
        assert isinstance(access.check(request(310, SEND), NOW_MS), Granted)
    assert asked == ["User:alice"]
    others = [
        request(310, SEND, peer_ip="11.0.0.1"),
        request(310, {**SEND, "b": "u"}),
        request(11, {"topic": "t", "consumerGroup": "h"}),
        request(310, SEND, user="inner", secret="wrong"),
    ]
    assert [type(access.check(each, NOW_MS)) for each in others] == [Refused] * 4
    assert isinstance(access.check(request(11, {"topic": "t", "consumerGroup": "g"}), NOW_MS), Granted)


def test_memories_are_bounded() -> None:
    access = control(tables("Topic:* Pub Allow"), decision_cache_max=10, stateful_cache_max=10)
    for number in range(100):
        sent = request(310, {**SEND, "b": f"t{number}"}, connection_id=number)
        assert isinstance(access.check(sent, NOW_MS), Granted)
    assert access.remembered == (10, 10)


def test_bodies_are_checked_every_time() -> None:
    access = control(tables("Group:g Sub Allow"))
    mine = b'{"consumerGroup":"g","clientId":"c","mqSet":[]}'
    assert isinstance(access.check(request(41, {}, mine), NOW_MS), Granted)
    assert isinstance(access.check(request(41, {}, mine.replace(b'"g"', b'"v"')), NOW_MS), Refused)


# -- look-ups ----------------------------------------------------------------------------------------------


def test_the_topic_of_a_half_message_is_checked() -> None:
    access = control(tables("Topic:t Pub Allow"))
    for _ in range(2):  # the second time from memory
        granted = access.check(request(37, {"topic": "t", "commitLogOffset": "7"}), NOW_MS)
        assert isinstance(granted, Granted)
        (lookup,) = granted.lookups
        assert lookup.value == "7"
        assert access.check_topic(granted, lookup, "t", PEER) == granted._replace(lookups=())
        assert "access Topic:victim from" in remark(access.check_topic(granted, lookup, "victim", PEER))
    root = access.check(request(37, {"commitLogOffset": "8"}, user="root"), NOW_MS)
    assert isinstance(root, Granted)
    assert isinstance(access.check_topic(root, root.lookups[0], "victim", PEER), Granted)


def test_a_retry_topic_that_is_found_belongs_to_its_group() -> None:
    access = control(tables("Group:g Sub Allow"))
    granted = access.check(request(36, {"group": "g", "offset": "7"}), NOW_MS)
    assert isinstance(granted, Granted)
    assert isinstance(access.check_topic(granted, granted.lookups[0], "%RETRY%g", PEER), Granted)
    assert isinstance(access.check_topic(granted, granted.lookups[0], "%RETRY%victim", PEER), Refused)


# -- members ----------------------------------------------------------------------------------------------

MEMBERS = {"members_required": True, "member_users": frozenset({"inner"})}


@pytest.mark.parametrize("code", [103, 104, 904, 906, 1001, 1003, 1008, 1012, 1013, 29001, 29005])
def test_only_members_may_send_what_members_send(code: int) -> None:
    access = control(tables("* All Allow"), **MEMBERS)
    for user in ("alice", "root"):
        assert "is for members of this cluster only" in remark(access.check(request(code, user=user), NOW_MS))
    assert access.check(by_member(code), NOW_MS) == Granted("inner", RULES[code].role, is_member=True)


@pytest.mark.parametrize("switches", [{}, {"authentication_enabled": True}, {"authorization_enabled": True}])
def test_members_are_asked_for_with_and_without_acls(switches: dict[str, bool]) -> None:
    access = AccessControl(tables(), AccessSettings(**MEMBERS, **switches))  # type: ignore[arg-type]
    for code in (1001, 1002, 1009, 1011, 329):
        assert isinstance(access.check(request(code, user=None), NOW_MS), Refused)
        assert isinstance(access.check(by_member(code, number=code), NOW_MS), Granted)


def test_failures_of_clients_do_not_shut_a_member_out_that_has_the_same_address() -> None:
    access = control(tables(), **MEMBERS)
    wrong = request(Code.SEND_MESSAGE_V2, SEND, secret="wrong")
    for _ in range(30):
        access.check(wrong, NOW_MS)
    assert reason(access.check(request(Code.SEND_MESSAGE_V2, SEND), NOW_MS)) == "throttled"
    assert isinstance(access.check(by_member(1001), NOW_MS), Granted)


def test_a_members_request_counts_once() -> None:
    access = control(tables(), **MEMBERS)
    assert isinstance(access.check(by_member(1001), NOW_MS), Granted)
    assert "the request was sent before" in remark(access.check(by_member(1001), NOW_MS))
    replayed = by_member(1001, number=1)._replace(code=1013)
    assert "the proof of a member is for code 1001" in remark(access.check(replayed, NOW_MS))
    late = control(tables(), **MEMBERS).check(by_member(1001, number=2), NOW_MS + 31_000)
    assert "30 s is the limit" in remark(late)


def test_a_member_without_a_proof() -> None:
    """RocketMQ's brokers send none. Without it a captured heartbeat could be sent again as any request."""
    plain = request(904, {"brokerName": "b"}, user="inner")
    assert "the proof of a member is missing" in remark(control(tables(), **MEMBERS).check(plain, NOW_MS))
    captured = request(1011, {"brokerName": "b"}, user="inner")
    assert "the proof of a member is missing" in remark(control(tables(), **MEMBERS).check(captured, NOW_MS))
    lenient = control(tables(), **MEMBERS, proof_required=False)
    assert isinstance(lenient.check(plain, NOW_MS), Granted)


def test_a_proof_does_not_replace_a_signature() -> None:
    sent = by_member(1001)
    fields = {**dict(sent.ext_fields or {}), "Signature": base64.b64encode(b"x" * 20).decode()}
    access = control(tables(), **MEMBERS)
    assert remark(access.check(sent._replace(ext_fields=fields), NOW_MS)) == "check signature failed."
    assert isinstance(access.check(sent, NOW_MS), Granted)  # and the forged one used up no number


def test_certificates_of_members() -> None:
    access = control(tables(), members_required=True, member_certificates=frozenset({"broker-a"}))
    sent = request(1001, user=None)
    assert isinstance(access.check(sent._replace(certificate_names=["unknown"]), NOW_MS), Refused)
    found = access.check(sent._replace(certificate_names=["x", "broker-a"]), NOW_MS)
    assert found == Granted("broker-a", Role.ADMINISTER, is_member=True)


def test_administrators_may_have_to_prove_that_a_request_is_new() -> None:
    access = control(tables(), proof_to_administer=True)
    sent = request(25, {}, b"k=v", user="root")
    assert "the proof of a member is missing" in remark(access.check(sent, NOW_MS))
    assert isinstance(access.check(sent._replace(is_tls=True), NOW_MS), Granted)
    fields = with_proof(25, {}, b"k=v", now_ms=NOW_MS, uptime_ms=0, sender=SENDER, number=0)
    proven = request(25, fields, b"k=v", user="root")
    assert access.check(proven, NOW_MS) == Granted("root", Role.ADMINISTER)
    assert "the request was sent before" in remark(access.check(proven, NOW_MS))


# -- throttle ----------------------------------------------------------------------------------------------


def test_guessing_is_throttled_but_not_who_was_right() -> None:
    throttle = FailureThrottle(failures_max=3, refill_ms=1_000)
    access = AccessControl(
        tables("Topic:t Pub Allow"),
        AccessSettings(authentication_enabled=True, authorization_enabled=True),
        throttle=throttle,
    )
    assert isinstance(access.check(request(310, SEND, connection_id=1), NOW_MS), Granted)
    for _ in range(3):
        access.check(request(310, SEND, secret="guess", connection_id=2), NOW_MS)
    right_guess = request(310, SEND, connection_id=2)
    assert remark(access.check(right_guess, NOW_MS)) == (
        "too many failed authentications from 10.0.0.7; try again in 2 s"
    )
    assert isinstance(access.check(request(310, SEND, connection_id=1), NOW_MS), Granted)
    assert isinstance(access.check(right_guess._replace(peer_ip="10.0.0.8"), NOW_MS), Granted)
    assert isinstance(access.check(right_guess, NOW_MS + 1_000), Granted)


def test_guessing_keeps_nobody_else_out() -> None:
    """A program with a wrong secret, or without one at a broker's address, must not stop a fail-over."""
    access = AccessControl(
        tables("Topic:t Pub Allow"),
        AccessSettings(authentication_enabled=True, member_users=frozenset({"inner"}), proof_required=False),
        throttle=FailureThrottle(failures_max=3, refill_ms=1_000),
    )
    for user in ("root", "inner"):
        for _ in range(10):
            access.check(request(310, SEND, user=user, secret="guess", connection_id=2), NOW_MS)
    assert "too many" in remark(access.check(request(310, SEND, user="root", connection_id=3), NOW_MS))
    for user in ("alice", "inner"):
        assert isinstance(access.check(request(310, SEND, user=user, connection_id=3), NOW_MS), Granted)


def test_unsigned_requests_are_no_guesses() -> None:
    access = control(tables("Topic:t Pub Allow"))
    for _ in range(100):
        access.check(request(310, SEND, user=None), NOW_MS)
    assert isinstance(access.check(request(310, SEND), NOW_MS), Granted)


# -- ACL 1.0 -----------------------------------------------------------------------------------------------


def plain_request(
    code: int, fields: dict[str, str], user: str | None = "RocketMQ", **rest: object
) -> AccessRequest:
    return request(code, fields, user=user, secret="12345678", **rest)


def test_acl_1() -> None:
    access = AccessControl(tables(), AccessSettings(), plain=PLAIN)
    assert access.check(plain_request(310, SEND), NOW_MS) == Granted("RocketMQ", Role.OPERATE)
    assert access.check(plain_request(310, SEND), NOW_MS) == Granted("RocketMQ", Role.OPERATE)
    assert remark(access.check(plain_request(310, SEND, user=None), NOW_MS)) == (
        "AclException: No accessKey is configured"
    )
    other = access.check(plain_request(310, {**SEND, "b": "x"}), NOW_MS)
    assert remark(other) == "AclException: No permission for RocketMQ to PUB Topic:x from 10.0.0.7"
    for code in (17, 25, 215, 222, 329, 1011, 54):
        fields = {"topic": "t", "group": "g"}
        assert "Need admin permission" in remark(access.check(plain_request(code, fields), NOW_MS)), code
        assert isinstance(access.check(plain_request(code, fields, user="RocketAdmin"), NOW_MS), Granted)
    white = plain_request(310, SEND, user=None, peer_ip="192.168.1.1")
    assert access.check(white, NOW_MS) == Granted("", Role.OPERATE)


def test_every_refusal_has_its_reason() -> None:
    """Those of ACL 1.0, members and the throttle; test_refusals has the others."""
    plain = AccessControl(tables(), AccessSettings(), plain=PLAIN)
    found = {
        "ACL 1.0, unsigned": reason(plain.check(plain_request(310, SEND, user=None), NOW_MS)),
        "ACL 1.0, no such account": reason(plain.check(plain_request(310, SEND, user="bob"), NOW_MS)),
        "ACL 1.0, wrong key": reason(plain.check(request(310, SEND, user="RocketMQ", secret="x"), NOW_MS)),
        "ACL 1.0, no right": reason(plain.check(plain_request(310, {**SEND, "b": "x"}), NOW_MS)),
    }
    members = control(tables("* All Allow"), **MEMBERS)
    found["no member"] = reason(members.check(request(1001), NOW_MS))
    found["no proof"] = reason(members.check(request(1001, user="inner"), NOW_MS))
    throttled = AccessControl(
        tables(),
        AccessSettings(authentication_enabled=True),
        throttle=FailureThrottle(failures_max=1, refill_ms=1_000),
    )
    for _ in range(2):
        found["guesses"] = reason(throttled.check(request(310, SEND, secret="guess"), NOW_MS))
    assert found == {
        "ACL 1.0, unsigned": "unsigned",
        "ACL 1.0, no such account": "user",
        "ACL 1.0, wrong key": "signature",
        "ACL 1.0, no right": "rights",
        "no member": "member",
        "no proof": "proof",
        "guesses": "throttled",
    }


def test_acl_1_checks_what_the_broker_finds_out() -> None:
    access = AccessControl(tables(), AccessSettings(), plain=PLAIN)
    granted = access.check(plain_request(37, {"commitLogOffset": "7"}), NOW_MS)
    assert isinstance(granted, Granted)
    assert isinstance(access.check_topic(granted, granted.lookups[0], "t", PEER), Granted)
    assert isinstance(access.check_topic(granted, granted.lookups[0], "x", PEER), Refused)


def test_changed_files_count_at_once() -> None:
    access = AccessControl(tables(), AccessSettings(), plain=PLAIN)
    assert isinstance(access.check(plain_request(310, SEND), NOW_MS), Granted)
    account = {"accessKey": "RocketMQ", "secretKey": "12345678"}
    access.set_plain(parse_plain_acl([("f", {"accounts": [account]})])[0])
    assert isinstance(access.check(plain_request(310, SEND), NOW_MS), Refused)
    access.set_plain(None)
    assert isinstance(access.check(request(310, SEND, user=None), NOW_MS), Granted)


def test_both_generations_together() -> None:
    made = tables()
    made.put(User("RocketMQ", "12345678"))
    access = AccessControl(made, AccessSettings(authentication_enabled=True), plain=PLAIN)
    granted = access.check(plain_request(37, {"commitLogOffset": "7"}), NOW_MS)
    assert isinstance(granted, Granted) and granted.username == "RocketMQ"
    assert [each.actions for each in granted.lookups] == [(Action.PUB,)]
    # A white address of ACL 1.0 does not replace the signature of 2.0.
    white = plain_request(310, SEND, user=None, peer_ip="192.168.1.1")
    assert remark(access.check(white, NOW_MS)) == "username cannot be null."


def test_pitfall_12_what_is_disabled_touches_nothing() -> None:
    class Untouchable:
        generation = 0

        def user(self, username: str) -> User | None:
            raise AssertionError(username)

        def acl(self, subject: str) -> None:
            raise AssertionError(subject)

    access = AccessControl(Untouchable(), AccessSettings())
    fields = signed("alice", "x", SEND)
    assert isinstance(access.check(AccessRequest(310, V5, fields, b"", PEER), NOW_MS), Granted)
