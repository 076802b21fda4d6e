"""What the console makes of bodies, topics' kinds, audit files and compressed messages: hostile ones, too."""

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from keelmq.client.copies import copy_of_dlq_message
from keelmq.client.message import COMPRESSED_FLAG, MessageExt, decode_messages
from keelmq.console.data import audit
from keelmq.console.data.messages import body_of, properties_of, row_of
from keelmq.console.data.topics import TopicKind, kind_of
from keelmq.remoting.operations.route import TopicConfig
from keelmq.security.audit.reader import AuditFilter


def message(body: bytes, **changes: object) -> MessageExt:
    made = MessageExt(
        topic="t", body=body, properties={}, queue_id=0, queue_offset=1, physical_offset=2, flag=0,
        sys_flag=0, born_timestamp=1, born_host="10.0.0.1:5", store_timestamp=2, store_host="10.0.0.2:10911",
        reconsume_times=0, stored_bytes=100,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def record(body: bytes, sys_flag: int) -> bytes:
    head = struct.pack(">iiiqqiq", 0, 0, 0, 7, 0, sys_flag, 1)  # queue id, flag, offsets
    crc = zlib.crc32(body) & 0x7FFFFFFF
    rest = (
        head[:0] + struct.pack(">iiii", -626843481, crc, 0, 0) + struct.pack(">qqiq", 7, 0, sys_flag, 1)
        + bytes([10, 0, 0, 1]) + struct.pack(">i", 5) + struct.pack(">q", 2)
        + bytes([10, 0, 0, 2]) + struct.pack(">i", 10911) + struct.pack(">iqi", 0, 0, len(body))
        + body + b"\x01t" + struct.pack(">h", 0)
    )  # fmt: skip
    return struct.pack(">i", len(rest) + 4) + rest


def test_a_small_message_cannot_fill_the_memory() -> None:
    packed = zlib.compress(bytes(5_000_000))
    assert len(packed) < 10_000
    (kept,) = decode_messages(record(packed, COMPRESSED_FLAG), inflated_max=100_000)
    assert kept.body == packed and "more than 100000 bytes" in kept.body_error
    assert body_of(kept).kind == "packed" and row_of(kept).preview == ""
    (inflated,) = decode_messages(record(packed, COMPRESSED_FLAG), inflated_max=5_000_000)
    assert len(inflated.body) == 5_000_000 and not inflated.body_error


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"plain", "text"), ("Zürich\n\t".encode(), "text"), (b'{"a": [1]}', "json"), (b"{not json", "text"),
        (b"[" * 200_000, "text"), (b"\x00\x01", "hex"), (b"\xff\xfe", "hex"), (b"a\x1b[31m", "hex"),
        (b"", "text"),
    ],
)  # fmt: skip
def test_kinds_of_bodies(body: bytes, kind: str) -> None:
    assert body_of(message(body)).kind == kind


def test_a_cut_splits_no_character() -> None:
    view = body_of(message("ääää".encode()), 5)
    assert (view.text, view.shown_bytes, view.bytes) == ("ää", 4, 8)
    assert len(body_of(message(bytes(1 << 20)), 1 << 20).text) < 100_000


def test_what_a_producer_has_set_is_bounded_and_on_one_line() -> None:
    """Keys, tags and properties may be 32 KiB of any characters, and a page shows 200 messages."""
    hostile = "k\x1b[2J\n\u202eadmin\x9b" + "x" * 30_000
    properties = {"KEYS": hostile, "TAGS": hostile, "UNIQ_KEY": hostile, "mine\x07": hostile, "short": "a b"}
    row = row_of(message(b"x" * 3_000_000, properties=properties))
    for text in (row.keys, row.tags, row.msg_id):
        assert text.startswith("k\\x1b[2J\\n\\u202eadmin\\x9bxxx") and text.isprintable()
        assert text.endswith(f"... ({len(hostile)} characters)") and len(text) < 350
    assert (row.body_bytes, len(row.preview)) == (3_000_000, 160)
    shown, more = properties_of(message(b"", properties=properties))
    assert shown["short"] == "a b" and more == 0 and "mine\\x07" in shown
    assert all(each.isprintable() and len(each) < 2_200 for each in (*shown, *shown.values()))
    many = {f"p{number:04d}": "v" for number in range(1_000)}
    shown, more = properties_of(message(b"", properties=many))
    assert (len(shown), more) == (128, 872)
    exact = row_of(message(b"", properties={"KEYS": "k" * 255}))
    assert exact.keys == "k" * 255, "nothing is added to what fits"


def test_a_body_cannot_turn_the_text_behind_it_around() -> None:
    view = body_of(message("a\u202eb\u2066c".encode()))
    assert (view.text, view.kind, view.shown_bytes) == ("a\\u202eb\\u2066c", "text", 9)
    assert row_of(message("a\u202eb".encode())).preview == "a\\u202eb"


def test_kinds_of_topics() -> None:
    fifo = TopicConfig(topic_name="x", attributes={"message.type": "FIFO"})
    assert kind_of("x", [fifo]) is TopicKind.FIFO
    assert kind_of("x", [TopicConfig(topic_name="x", order=True)]) is TopicKind.FIFO
    assert (
        kind_of("x", [TopicConfig(topic_name="x", attributes={"message.type": "dlq?"})]) is TopicKind.NORMAL
    )
    names = ("%RETRY%g", "%DLQ%g", "RMQ_SYS_TRACE_TOPIC", "broker-a", "orders")
    kinds = [kind_of(name, [], {"broker-a"}).value for name in names]
    assert kinds == ["retry", "dlq", "system", "system", "normal"]


def test_a_dead_letter_goes_to_its_group_or_its_topic() -> None:
    dead = message(b"x", topic="%DLQ%g", properties={"RETRY_TOPIC": "orders", "KEYS": "k", "mine": "1"})
    copy = copy_of_dlq_message(dead, "g", to_topic=False)
    assert copy.topic == "%RETRY%g" and copy.properties["RETRY_TOPIC"] == "orders"
    assert copy.properties["mine"] == "1" and tuple(copy.keys) == ("k",)
    copy = copy_of_dlq_message(dead, "g", to_topic=True)
    assert copy.topic == "orders" and "RETRY_TOPIC" not in copy.properties
    for bad in (replace(dead, properties={}), replace(dead, body_error="it is compressed")):
        with pytest.raises(ValueError, match=r"which topic|compressed"):
            copy_of_dlq_message(bad, "g", to_topic=False)


def test_the_audit_log_is_read_from_its_end(tmp_path: Path) -> None:
    def line(number: int, **more: object) -> str:
        return json.dumps({"ts": f"2026-03-01T12:00:{number:02d}.000Z", "n": number, **more}) + "\n"

    (tmp_path / "p-1.log.1").write_text(line(1) + "damaged\n" + line(2))
    (tmp_path / "p-1.log").write_text(line(4) + line(5, outcome="refused") + '{"torn')
    (tmp_path / "q-2.log").write_text(line(3))
    view = audit.read(tmp_path, AuditFilter(), 3)
    assert [each["n"] for each in view.entries] == [5, 4, 3]
    older = audit.read(tmp_path, AuditFilter(until=view.next or ""), 3)
    assert [each["n"] for each in older.entries] == [2, 1] and older.next is None
    assert older.unreadable_lines == 1
    assert [
        each["n"] for each in audit.read(tmp_path, AuditFilter(outcomes=frozenset({"refused"})), 3).entries
    ] == [5]
    missing = audit.read(tmp_path / "nowhere", AuditFilter(), 3)
    assert "cannot read" in missing.problem and "keelmq audit --dir" in missing.command
