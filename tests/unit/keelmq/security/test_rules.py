"""What each request code needs. The table of the reference, the bodies, and the ways around a check."""

import base64
import json
from typing import Any

import pytest

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.command import parse_header
from keelmq.remoting.operations.clients import UnregisterClientRequest
from keelmq.security.core.acls import Action
from keelmq.security.core.contexts import LookupKind, Role, Unreadable, spellings
from keelmq.security.core.rules import RULES, TABLES, UNKNOWN, required_contexts, rule_of
from tests.unit.keelmq.security.parts import NOW_MS

CLUSTER = "C1"


def needs(code: int, ext_fields: dict[str, str] | None = None, body: object = b"") -> list[str]:
    """Each context as "Topic:t Pub Get"."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [
        " ".join([context.resource.key, *(each.name.capitalize() for each in context.actions)])
        for context in required_contexts(code, ext_fields, raw, CLUSTER).contexts
    ]


def test_every_request_code_has_an_entry() -> None:
    assert [code for code in RequestCode if code not in RULES] == []
    assert [code for code in RULES if code not in RequestCode.__members__.values()] == []
    # No table overwrites an entry of another one.
    assert sum(len(table) for table in TABLES) == len(RULES)


def test_pitfall_19_an_unknown_code_needs_an_administrator() -> None:
    assert rule_of(54) is UNKNOWN
    assert needs(54) == needs(987_654) == ["Cluster:C1 Update"]
    assert UNKNOWN.role is Role.ADMINISTER


def test_every_rule_asks_for_something() -> None:
    """A rule without needs lets everybody in."""
    assert [RequestCode(code).name for code, rule in RULES.items() if not rule.needs and not rule.body] == []


@pytest.mark.parametrize("code", [11, 361, 200_050, 200_052, 12])
@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_where_messages_of_all_topics_wait_only_who_may_change_the_cluster_reads(
    code: int, topic: str
) -> None:
    """Else a right to all topics would overrule that one of them is denied."""
    wanted = needs(code, {"topic": topic, "consumerGroup": "g"})
    assert f"Cluster:{CLUSTER} Update" in wanted
    assert len(wanted) > 1
    assert f"Cluster:{CLUSTER} Update" not in needs(code, {"topic": "t", "consumerGroup": "g"})


HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {
            "groupName": "g",
            "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}],
        }
    ],
}
LOCKS = {"consumerGroup": "g", "clientId": "c", "mqSet": [{"topic": "t", "brokerName": "b", "queueId": 0}]}


@pytest.mark.parametrize(
    ("code", "fields", "body", "expected"),
    [
        (105, {"topic": "t"}, b"", ["Topic:t Pub Sub Get"]),
        (105, {"topic": "%RETRY%g"}, b"", ["Group:g Sub Get"]),
        (10, {"topic": "t"}, b"", ["Topic:t Pub"]),
        (310, {"b": "t", "a": "p"}, b"", ["Topic:t Pub"]),
        (320, {"b": "t", "a": "p"}, b"", ["Topic:t Pub"]),
        (370, {"topic": "t", "recallHandle": ""}, b"", ["Topic:t Pub"]),
        (37, {"topic": "t", "commitLogOffset": "7"}, b"", ["Topic:t Pub"]),
        (37, {"commitLogOffset": "7"}, b"", []),
        (36, {"group": "g", "offset": "7"}, b"", ["Group:g Sub"]),
        (11, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (361, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (11, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", ["Group:g Sub"]),
        (12, {"topic": "t"}, b"", ["Topic:t Sub Get"]),
        (34, {}, HEARTBEAT, ["Group:g Sub", "Topic:t Sub"]),
        (35, {"clientID": "c", "consumerGroup": "g"}, b"", ["Group:g Sub"]),
        (38, {"consumerGroup": "g"}, b"", ["Group:g Sub Get"]),
        (14, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub Get", "Group:g Sub Get"]),
        (15, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub Update", "Group:g Sub Update"]),
        (15, {"topic": "%RETRY%g", "consumerGroup": "g"}, b"", ["Group:g Sub Update"]),
        (41, {}, LOCKS, ["Group:g Sub", "Topic:t Sub"]),
        (42, {}, LOCKS, ["Group:g Sub", "Topic:t Sub"]),
        (17, {"topic": "t"}, b"", ["Topic:t Create"]),
        (215, {"topic": "t"}, b"", ["Topic:t Delete"]),
        (5002, {}, {"topicList": ["t", "%RETRY%g"]}, ["Topic:t Delete", "Group:g Delete"]),
        (5003, {}, {"groupNameList": ["g", "h"]}, ["Group:g Delete", "Group:h Delete"]),
        (202, {"topic": "t"}, b"", ["Topic:t Get"]),
        (222, {"topic": "t", "group": "g"}, b"", ["Topic:t Update", "Group:g Update"]),
        (345, {"topic": "t", "group": "g"}, b"", ["Topic:t Get", "Group:g Get"]),
        (314, {"srcGroup": "a", "destGroup": "b"}, b"", ["Group:a Update", "Group:b Update"]),
        (3001, {"username": "u"}, b"", ["Cluster:C1 Update"]),
        (3004, {"username": "u"}, b"", ["Cluster:C1 Get"]),
        (315, {}, b"", ["Cluster:C1 Get"]),
        (200050, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (200051, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (200053, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (200054, {"topic": "t", "consumerGroup": "g"}, b"", ["Topic:t Sub", "Group:g Sub"]),
        (325, {"b": "R"}, b"", ["Topic:R Pub"]),
        (
            400,
            {},
            {"topic": "t", "consumerGroup": "g", "clientId": "c"},
            ["Topic:t Sub Get", "Group:g Sub Get"],
        ),
        (401, {}, {"topic": "t", "consumerGroup": "g"}, ["Topic:t Update", "Group:g Update"]),
        (46, {}, {"group": "g", "subscriptionData": {"topic": "t"}}, ["Group:g Sub", "Topic:t Sub"]),
        (200, {}, {"groupName": "g"}, ["Group:g Create"]),
        (
            225,
            {},
            {"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]},
            ["Group:g Create", "Group:h Create"],
        ),
        (18, {}, {"topicConfigList": [{"topicName": "t"}]}, ["Topic:t Create"]),
    ],
)
def test_contexts(code: int, fields: dict[str, str], body: object, expected: list[str]) -> None:
    assert needs(code, fields, body) == expected


@pytest.mark.parametrize("code", [25, 26, 28, 21, 43, 45, 201])
def test_requests_without_a_header_need_the_cluster(code: int) -> None:
    """RocketMQ lets any known user send them."""
    (need,) = needs(code)
    assert need.startswith("Cluster:C1 ")


def test_pitfall_2_no_ext_fields() -> None:
    for code in RULES:
        try:
            required_contexts(code, None, b"", CLUSTER)
        except Unreadable as error:
            assert str(error)
    with pytest.raises(Unreadable, match="header field topic is missing"):
        required_contexts(10, None, b"", CLUSTER)


def test_pitfall_4_sending_to_a_retry_topic_needs_its_group() -> None:
    """The group field may be of a producer inside of the client."""
    assert needs(310, {"b": "%RETRY%g", "a": "CLIENT_INNER_PRODUCER"}) == ["Group:g Sub"]
    assert needs(10, {"topic": "%RETRY%g", "producerGroup": "p"}) == ["Group:g Sub"]


def test_pitfall_5_the_route_of_a_retry_topic_needs_its_group() -> None:
    assert needs(105, {"topic": "%RETRY%g"}) == ["Group:g Sub Get"]


def test_pitfall_6_a_producer_that_leaves_names_no_group() -> None:
    assert needs(35, {"clientID": "c", "producerGroup": "p"}) == []
    assert needs(35, {"clientID": "c", "producerGroup": "p", "consumerGroup": ""}) == []


def test_pitfall_11_traces_may_be_sent_by_everybody_known() -> None:
    trace = "RMQ_SYS_TRACE_TOPIC"
    assert needs(310, {"b": trace}) == needs(10, {"topic": trace}) == needs(105, {"topic": trace}) == []
    assert needs(11, {"topic": trace, "consumerGroup": "g"})[0] == f"Topic:{trace} Sub"


@pytest.mark.parametrize("code", [34, 41, 42, 46, 200, 225, 18, 400, 401, 200151])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"7", b"[" * 5_000])
def test_a_body_that_cannot_be_read_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(Unreadable):
        required_contexts(code, {}, body, CLUSTER)


def test_a_heartbeat_with_a_wrong_member_is_refused() -> None:
    with pytest.raises(Unreadable, match="consumerDataSet"):
        required_contexts(34, {}, b'{"clientID":"c","consumerDataSet":7}', CLUSTER)


def test_a_large_body_has_the_limits_of_its_request_here_too() -> None:
    """The body is read for the check before it is read for the handler: a heartbeat of 15 MiB without any
    sense kept a broker busy for 20 s."""
    with pytest.raises(Unreadable, match="more lists and objects"):
        needs(34, body=b'{"clientID":[' + b"[]," * 400_000 + b"[]]}")


def test_bodies_are_read_tolerantly() -> None:
    """As fastjson and clients in other languages write them."""
    body = b'{clientID:"c",consumerDataSet:[{groupName:"g",consumeType:1,subscriptionDataSet:null}]}\n'
    assert needs(34, {}, body) == ["Group:g Sub"]


# -- ways around ------------------------------------------------------------------------------------------


def test_the_retry_topic_of_another_group_cannot_be_pulled() -> None:
    assert needs(11, {"topic": "%RETRY%victim", "consumerGroup": "mine"}) == [
        "Group:victim Sub",
        "Group:mine Sub",
    ]
    body = {**HEARTBEAT, "consumerDataSet": [
        {"groupName": "mine", "subscriptionDataSet": [{"topic": "%RETRY%victim"}]}
    ]}  # fmt: skip
    assert needs(34, {}, body) == ["Group:mine Sub", "Group:victim Sub"]


def test_a_pop_retry_topic_of_another_group_cannot_be_pulled() -> None:
    for name in ("%RETRY%victim+t", "%RETRY%victim_t"):
        (first, _) = needs(11, {"topic": name, "consumerGroup": "mine"})
        assert first in ("Group:victim Sub", "Group:victim_t Sub")


def test_both_spellings_that_handlers_take_are_checked() -> None:
    """Header and body models take consumer_group where consumerGroup is absent or empty."""
    for fields in ({"consumer_group": "v"}, {"consumerGroup": "", "consumer_group": "v"}):
        header = parse_header(UnregisterClientRequest, {"clientID": "c", **fields})
        assert needs(35, fields) == [f"Group:{header.consumer_group} Sub"] == ["Group:v Sub"]
    both = {"consumerGroup": "mine", "consumer_group": "v"}
    assert parse_header(UnregisterClientRequest, {"clientID": "c", **both}).consumer_group == "mine"
    assert needs(35, both) == ["Group:mine Sub"]
    body = {"clientID": "c", "consumer_data_set": [{"group_name": "v"}]}
    assert needs(34, {}, body) == ["Group:v Sub"]
    assert spellings("commitLogOffset", "clientID") == (
        "commitLogOffset",
        "clientID",
        "commit_log_offset",
        "client_id",
    )


def test_a_member_that_is_there_twice_counts_as_for_the_handler() -> None:
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"mine"}],"consumerDataSet":[{"groupName":"v"}]}'
    assert needs(34, {}, body) == ["Group:v Sub"]


def test_a_recall_handle_names_its_topic() -> None:
    handle = base64.urlsafe_b64encode(f"v1 victim broker-a {NOW_MS} ID".encode()).decode()
    assert needs(370, {"topic": "mine", "recallHandle": handle}) == ["Topic:mine Pub", "Topic:victim Pub"]
    assert needs(370, {"topic": "mine", "recallHandle": handle.rstrip("=")})[1] == "Topic:victim Pub"
    assert needs(370, {"topic": "mine", "recallHandle": "\ud800"}) == ["Topic:mine Pub"]


def test_every_message_of_a_batch_acknowledgement_is_checked() -> None:
    ack = {"so": 0, "q": 0, "rq": 0, "pt": 0, "b": ""}
    body = {"acks": [{"c": "g", "t": "t", **ack}, {"c": "v", "topic": "w", **ack}]}
    assert needs(200151, {}, body) == ["Topic:t Sub", "Group:g Sub", "Topic:w Sub", "Group:v Sub"]


@pytest.mark.parametrize(
    ("code", "fields", "kind", "value", "action"),
    [
        (37, {"topic": "mine", "commitLogOffset": "7"}, LookupKind.HALF_MESSAGE, "7", Action.PUB),
        (36, {"group": "mine", "offset": "8"}, LookupKind.LOG_OFFSET, "8", Action.SUB),
        (33, {"offset": "9"}, LookupKind.LOG_OFFSET, "9", Action.SUB),
        (
            309,
            {"consumerGroup": "mine", "clientId": "c", "msgId": "AB"},
            LookupKind.MESSAGE_ID,
            "AB",
            Action.SUB,
        ),
        (323, {"msgId": "AB"}, LookupKind.MESSAGE_ID, "AB", Action.UPDATE),
    ],
)
def test_what_only_the_broker_can_find_out(
    code: int, fields: dict[str, str], kind: LookupKind, value: str, action: Action
) -> None:
    (lookup,) = required_contexts(code, fields, b"", CLUSTER).lookups
    assert (lookup.kind, lookup.value) == (kind, value)
    assert action in lookup.actions


# -- members and roles --------------------------------------------------------------------------------------


def test_what_only_members_may_send() -> None:
    registration = {103, 104, 322, 904, 905, 906, 29001, 29005, 29006, 29007}
    controller = {1001, 1003, 1008, *range(1012, 1019)}
    tables = {45, 60, 61, 402}
    expected = registration | controller | tables
    assert {code for code, rule in RULES.items() if rule.members_only} == expected


@pytest.mark.parametrize(
    "code",
    [25, 27, 318, 329, 1009, 1011, 29013, 29014, 29021, 29022, 29041, 29043, 3001, 3004, 3010],
)
def test_dangerous_requests_need_the_administrator(code: int) -> None:
    assert rule_of(code).role is Role.ADMINISTER


def test_what_reads_only_has_the_role_read() -> None:
    names: dict[str, Any] = {RequestCode(code).name: rule for code, rule in RULES.items()}
    assert names["GET_BROKER_CONFIG"].role is names["GET_CONSUME_STATS"].role is Role.READ
    writes = ("UPDATE_", "DELETE_", "PUT_", "AUTH_CREATE", "CLEAN_", "WIPE_", "SEND_", "REGISTER_", "RESET_")
    assert [name for name, rule in names.items() if name.startswith(writes) and rule.role is Role.READ] == []
