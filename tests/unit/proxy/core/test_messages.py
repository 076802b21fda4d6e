"""Messages of gRPC as messages of remoting, and back."""

import gzip
import hashlib
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelmq.client.message import MessageExt, decode_properties
from proxy.core.limits import Limits
from proxy.core.messages import SYSTEM_NAMES, message_of, sent_of
from proxy.core.statuses import Refused
from proxy.core.times import duration, ms_of, timestamp
from proxy.wire import messaging_pb2 as pb

NOW_MS = 1_800_000_000_000
TOPIC = pb.Resource(name="T")
LIMITS = Limits()


def message(body: bytes = b"body", users: dict[str, str] | None = None, **system: Any) -> pb.Message:
    known = pb.SystemProperties(**{"message_id": "01AB", **system})
    return pb.Message(topic=TOPIC, user_properties=users or {}, system_properties=known, body=body)


def sent_properties(sent: pb.Message) -> dict[str, str]:
    return decode_properties(sent_of(sent, "T", now_ms=NOW_MS, limits=LIMITS).properties)


def stored(properties: dict[str, str], body: bytes = b"body", **more: Any) -> MessageExt:
    known = {
        "topic": "T", "body": body, "properties": properties, "queue_id": 3, "queue_offset": 7,
        "physical_offset": 99, "flag": 0, "sys_flag": 0, "born_timestamp": NOW_MS, "born_host": "10.0.0.1:5",
        "store_timestamp": NOW_MS + 1, "store_host": "10.0.0.2:10911", "reconsume_times": 0,
        "stored_bytes": 100,
    }  # fmt: skip
    return MessageExt(**(known | more))  # type: ignore[arg-type]


def test_a_normal_message() -> None:
    sent = message(
        users={"a": "b"}, tag="tag", keys=["k1", "k2"], born_host="h", born_timestamp=timestamp(NOW_MS)
    )
    assert sent_properties(sent) == {
        "a": "b", "UNIQ_KEY": "01AB", "WAIT": "true", "TAGS": "tag", "KEYS": "k1 k2", "__BORNHOST": "h",
        "BORN_TIMESTAMP": str(NOW_MS),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("system", "properties", "flag"),
    [
        ({"message_group": "g"}, {"__SHARDINGKEY": "g"}, 0),
        ({"delivery_timestamp": timestamp(NOW_MS + 5)}, {"TIMER_DELIVER_MS": str(NOW_MS + 5)}, 0),
        ({"priority": 3}, {"_SYS_MSG_PRIORITY_": "3"}, 0),
        ({"message_type": pb.TRANSACTION}, {"TRAN_MSG": "true", "PGROUP": "T"}, 4),
        (
            {
                "message_type": pb.TRANSACTION,
                "orphaned_transaction_recovery_duration": duration(5_999),
            },
            {"TRAN_MSG": "true", "PGROUP": "T", "CHECK_IMMUNITY_TIME_IN_SECONDS": "5"},
            4,
        ),
    ],
)
def test_each_kind_has_its_properties(system: dict[str, Any], properties: dict[str, str], flag: int) -> None:
    sent = sent_of(message(**system), "T", now_ms=NOW_MS, limits=LIMITS)
    found = decode_properties(sent.properties)
    assert {name: found.get(name) for name in properties} == properties
    assert sent.sys_flag == flag
    assert sent.message_group == system.get("message_group")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(message_id=""), pb.ILLEGAL_MESSAGE_ID),
        (message(b""), pb.MESSAGE_BODY_EMPTY),
        (message(bytes(LIMITS.max_message_size + 1)), pb.MESSAGE_BODY_TOO_LARGE),
        (message(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
        (message(tag=" "), pb.ILLEGAL_MESSAGE_TAG),
        (message(keys=[""]), pb.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\x01"]), pb.ILLEGAL_MESSAGE_KEY),
        (message(users={"KEYS": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(users={"a": "x\x02"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(trace_context="x\x02"), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(users={str(at): "x" for at in range(129)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(users={"a": "x" * (16 << 10)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(message_group="g" * 64), pb.ILLEGAL_MESSAGE_GROUP),
        (message(message_group=""), pb.ILLEGAL_MESSAGE_GROUP),
        (message(delivery_timestamp=timestamp(NOW_MS + 86_400_001)), pb.ILLEGAL_DELIVERY_TIME),
        (message(priority=-1), pb.BAD_REQUEST),
        (message(lite_topic="l"), pb.UNSUPPORTED),
        (
            message(message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=duration(3_600_001)),
            pb.BAD_REQUEST,
        ),
        (message(message_group="g", priority=1), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            message(message_type=pb.TRANSACTION, delivery_timestamp=timestamp(NOW_MS)),
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (message(message_type=pb.FIFO), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(message_type=77), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (message(b"not gzip", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (message(gzip.compress(b"x" * 99)[:-9], body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (
            message(gzip.compress(bytes(LIMITS.max_message_size + 1)), body_encoding=pb.GZIP),
            pb.MESSAGE_BODY_TOO_LARGE,
        ),
    ],
)
def test_what_is_refused(sent: pb.Message, code: pb.Code) -> None:
    with pytest.raises(Refused) as refused:
        sent_of(sent, "T", now_ms=NOW_MS, limits=LIMITS)
    assert refused.value.status.code == code
    assert refused.value.status.message


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_compressed_body_is_inflated(compress: Any) -> None:
    """Consumers of remoting do not know GZIP."""
    sent = message(compress(b"x" * 10_000), body_encoding=pb.GZIP)
    assert sent_of(sent, "T", now_ms=NOW_MS, limits=LIMITS).body == b"x" * 10_000


def test_a_message_that_is_received() -> None:
    found = message_of(
        stored(
            {
                "a": "b", "UNIQ_KEY": "01AB", "TAGS": "t", "KEYS": "k1 k2", "__SHARDINGKEY": "g",
                "__BORNHOST": "h", "BORN_TIMESTAMP": "1000", "CLUSTER": "c", "DLQ_ORIGIN_TOPIC": "o",
                "DLQ_ORIGIN_MESSAGE_ID": "i", "TRACE_CONTEXT": "x", "_SYS_MSG_PRIORITY_": "2",
            }
        ),
        TOPIC,
        attempt=3,
    )  # fmt: skip
    system = found.system_properties
    assert dict(found.user_properties) == {"a": "b"}
    assert (system.message_id, system.tag, list(system.keys)) == ("01AB", "t", ["k1", "k2"])
    assert (system.message_group, system.message_type) == ("g", pb.FIFO)
    assert (system.born_host, ms_of(system.born_timestamp)) == ("h", 1_000)
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 7, 3)
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("o", "i")
    assert (system.trace_context, system.priority) == ("x", 2)
    assert system.body_encoding == pb.IDENTITY


def test_the_digest_is_md5() -> None:
    """Clients compare CRC32 in different notations, and take every message for corrupted."""
    digest = message_of(stored({}), TOPIC).system_properties.body_digest
    assert digest.type == pb.MD5
    assert digest.checksum == hashlib.md5(b"body").hexdigest().upper()


def test_a_message_of_remoting_has_an_id_and_its_own_times() -> None:
    found = message_of(stored({"BORN_TIMESTAMP": "9" * 30, "TIMER_OUT_MS": "x"}), TOPIC).system_properties
    assert found.message_id == "0A00000200002A9F0000000000000063"
    assert ms_of(found.born_timestamp) == NOW_MS
    assert not found.HasField("delivery_timestamp")


texts = st.text(st.characters(min_codepoint=32, exclude_characters="\x7f", codec="utf-8"), min_size=1)
words = texts.map(lambda text: "".join(text.split())).filter(lambda text: text.strip() != "")


@given(
    body=st.binary(min_size=1),
    users=st.dictionaries(texts.filter(lambda name: name not in SYSTEM_NAMES), texts, max_size=5),
    tag=st.none() | words.filter(lambda tag: "|" not in tag),
    keys=st.lists(words, max_size=3),
    kind=st.sampled_from(["", "message_group", "delivery_timestamp", "priority"]),
)
def test_what_is_sent_is_received(
    body: bytes, users: dict[str, str], tag: str | None, keys: list[str], kind: str
) -> None:
    values: dict[str, Any] = {
        "message_group": "g", "delivery_timestamp": timestamp(NOW_MS), "priority": 0,
    }  # fmt: skip
    system = {kind: values[kind]} if kind else {}
    if tag is not None:
        system["tag"] = tag
    first = message(body, users, keys=keys, **system)
    sent = sent_of(first, "T", now_ms=NOW_MS, limits=LIMITS)
    again = message_of(stored(decode_properties(sent.properties), sent.body), TOPIC)
    assert again.body == body
    assert dict(again.user_properties) == users
    known = again.system_properties
    assert (known.message_id, list(known.keys), known.message_type) == ("01AB", keys, sent.kind)
    assert known.HasField("tag") == (tag is not None) and known.tag == (tag or "")
    if kind:
        assert getattr(known, kind) == values[kind]


@given(raw=st.binary(max_size=200))
def test_any_protobuf_is_a_message_or_refused(raw: bytes) -> None:
    try:
        found = pb.Message.FromString(raw)
    except Exception:  # noqa: BLE001 - gRPC refuses these
        return
    try:
        sent_of(found, "T", now_ms=NOW_MS, limits=LIMITS)
    except Refused as refused:
        assert refused.status.code >= pb.BAD_REQUEST
