"""The reader of plain sends: whatever a header looks like, it finds what msgspec finds."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.message.inner_batch import INNER_BATCH
from broker.message.record_bytes import Message, QueueCursor, queue_cursor
from broker.put.plain_sends import PlainSend, plain_sends
from broker.put.send_commands import SendCommandV1, SendCommandV2
from broker.put.success_frames import Answered, key_text
from keelmq.remoting.dispatch import fast_path_key
from keelmq.remoting.frame import Frame
from keelmq.runtime.compiled import leaves
from tests.bench.frames import EXT_FIELDS, send_header
from tests.property.test_compiled_leaves import texts, unhurried, ways

PLAIN_SENDS = ways("broker.put.plain_sends", "plain_sends")
KEY = fast_path_key(310)
decode = msgspec.json.Decoder(SendCommandV2, strict=False).decode
TOP = {"code": 310, "extFields": EXT_FIELDS, "flag": 0, "language": "JAVA", "opaque": 7, "version": 479}


def frames_of(*headers: bytes) -> list[Frame]:
    return [(0, header, b"body %d" % number, 0) for number, header in enumerate(headers)]


def found(frames: list[Frame]) -> list[PlainSend]:
    """What every way finds, and msgspec alone."""
    expected: list[PlainSend] = plain_sends(frames, KEY, decode, False)
    for way in PLAIN_SENDS:
        assert way(frames, KEY, decode, True) == expected
    return expected


def written(top: dict[str, Any], **options: Any) -> bytes:
    return json.dumps(top, separators=(",", ":"), **options).encode()


def refuses_to_decode(header: bytes) -> Any:
    raise AssertionError(f"decoded by msgspec: {header!r}")


def test_the_form_that_clients_write_needs_no_msgspec() -> None:
    twin = leaves["broker.put.plain_sends"].twin
    ways_of_the_twin = PLAIN_SENDS[1:] if twin is not None else PLAIN_SENDS[1:2]
    frames = frames_of(
        send_header(), written(TOP), written(TOP | {"flag": 2, "remark": "", "opaque": 2**31 - 1})
    )
    for way in ways_of_the_twin:
        first, second, third = way(frames, KEY, refuses_to_decode, True)
        assert first[:2] == (b"BenchmarkTest", 0) and first[6] == b"body 0"
        assert first[7].startswith(b"UNIQ_KEY\x017F0000010D2E1B6D0586512A6E6C0001\x02WAIT\x01true\x02")
        assert first[7].endswith(b"\x02KEYS\x01order-000000042\x02")
        assert second[8:] == (
            True,
            2598919,
            b"7F0000010D2E1B6D0586512A6E6C0001",
            b"order-000000042",
            7,
            False,
        )
        assert third[-2:] == (2**31 - 1, True)
    assert found(frames) == [first, second, third]


@pytest.mark.parametrize(
    "top",
    [
        TOP | {"flag": 1},
        TOP | {"flag": 3},
        TOP | {"extFields": EXT_FIELDS | {"m": "true"}},
        TOP | {"extFields": EXT_FIELDS | {"i": "DELAY\x013"}},
        TOP | {"extFields": EXT_FIELDS | {"i": "UNIQ_KEY\x01\x00"}},
        TOP | {"opaque": 2**31},
        {name: value for name, value in TOP.items() if name != "opaque"},
        *({**TOP, "extFields": {k: v for k, v in EXT_FIELDS.items() if k != name}} for name in "be"),
        *({**TOP, "extFields": EXT_FIELDS | {name: "x"}} for name in "defghjlm"),
        *({**TOP, "extFields": EXT_FIELDS | {name: "01"}} for name in "eghj"),
        TOP | {"extFields": EXT_FIELDS | {"m": "falsey"}},
        *({**TOP, "extFields": EXT_FIELDS | {name: 5}} for name in "abci"),
        *({**TOP, "extFields": EXT_FIELDS | {name: "2147483648"}} for name in "efhj"),
        *({**TOP, "extFields": EXT_FIELDS | {name: str(-(2**70))}} for name in "efhj"),
        *({**TOP, "extFields": EXT_FIELDS | {"g": each}} for each in (str(2**63), str(-(2**63) - 1))),
        {name: value for name, value in TOP.items() if name != "extFields"},
        TOP | {"extFields": None},
    ],
    ids=range(38),
)
def test_what_is_no_plain_send_ends_it(top: dict[str, Any]) -> None:
    assert len(found(frames_of(send_header(), written(top), send_header()))) == 1


def test_the_longest_numbers_that_a_record_has_room_for() -> None:
    most = EXT_FIELDS | {"f": "65536", "g": str(2**63 - 1), "h": str(2**31 - 1), "j": str(2**31 - 1)}
    least = EXT_FIELDS | {"f": str(-(2**31)), "g": str(-(2**63)), "h": str(-(2**31)), "j": str(-(2**31))}
    sends = found(frames_of(*(written(TOP | {"extFields": fields}) for fields in (most, least))))
    assert [send[2:6] for send in sends] == [
        (2**31 - 1, 65_536, 2**63 - 1, 2**31 - 1),
        (-(2**31), -(2**31), -(2**63), -(2**31)),
    ]


def test_other_frames_end_it() -> None:
    (plain,) = frames_of(send_header())
    other = send_header().replace(b'"code":310', b'"code":311')
    for end in ((1, *plain[1:]), (0, other, b"", 0), (0, b"", b"", 0), (0, send_header()[:-1], b"", 0)):
        assert len(found([plain, end, plain])) == 1


def test_headers_that_msgspec_reads() -> None:
    """They are plain sends as well: with spaces, with other escapes, longer than the scratch."""
    others = [
        json.dumps(TOP).replace('{"code": 310', '{"code":310').encode(),
        written(TOP | {"extFields": EXT_FIELDS | {"i": "a\x01ü\x02"}}, ensure_ascii=False),
        written(TOP | {"extFields": EXT_FIELDS | {"i": 'a\x01"\\\n\x02', "a": "ü"}}),
        written(TOP | {"extFields": EXT_FIELDS | {"i": "a\x01ü\x02"}}),
        written(TOP | {"extFields": EXT_FIELDS | {"h": "-1", "l": "-1"}}),
        written(TOP | {"opaque": -1, "remark": None}),
        written(TOP | {"extFields": EXT_FIELDS | {"i": "a\x01" + "p" * 9_000}}),
    ]
    assert len(found(frames_of(*others))) == len(others)


def test_what_stands_twice_or_elsewhere() -> None:
    fields = written(EXT_FIELDS | {"b": "Other", "h": "3"})
    header = written(TOP)
    twice = [
        header.replace(b'"flag":0', b'"extFields":{"b":"Other","e":"1"},"flag":0'),
        header.replace(b'"flag":0', b'"extFields":' + fields + b',"opaque":8'),
        header.replace(b'"b":', b'"b":"Other","b":'),
        header.replace(b'"flag":0', b'"i":"text","b":"Other","e":"1","flag":0'),
        header.replace(b'"a":', b'"opaque":"9","flag":"1","extFields":"x","a":'),
        header.replace(b'"n":', b'"b1":"Other","e1":"1","n":'),
    ]
    sends = found(frames_of(*twice))
    assert [send[0] for send in sends] == [b"Other"] * 2 + [b"BenchmarkTest"] * 4
    assert [send[1] for send in sends[2:]] == [0] * 4


def test_no_properties() -> None:
    empty, absent = EXT_FIELDS | {"i": ""}, {name: value for name, value in EXT_FIELDS.items() if name != "i"}
    sends = found(frames_of(*(written(TOP | {"extFields": fields}) for fields in (empty, absent))))
    assert [send[7] for send in sends] == [b"", b""]


def test_a_header_that_ends_too_early() -> None:
    header = send_header()
    for end in range(len(KEY), len(header)):
        assert found(frames_of(header[:end])) == []


numbers = st.sampled_from(["0", "5", "00", "-1", "", "1.5", "1e3", "9" * 18, "9" * 19, " 1", "true", "\x01"])
odd: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just({}) | st.just([1])
)
values = numbers | texts | st.sampled_from(["false", "true", "TopicA"]) | odd
ext_fields = st.dictionaries(st.sampled_from([*"abcdefghijklmn", "ab", "", "extFields"]), values, max_size=9)
tops = st.dictionaries(
    st.sampled_from(["flag", "opaque", "language", "remark", "extFields", "fla", "i", "b", "e"]),
    values,
    max_size=4,
)


@unhurried
@given(ext_fields, tops, st.booleans(), st.booleans())
@example({"ab": 0}, {}, False, True)
@example({"ab": "Other"}, {}, False, True)
def test_any_values(ext: dict[str, Any], top: dict[str, Any], first: bool, is_ascii: bool) -> None:
    whole = (
        TOP | top | {"extFields": EXT_FIELDS | ext} if first else TOP | {"extFields": ext | EXT_FIELDS} | top
    )
    found(frames_of(written(whole, ensure_ascii=is_ascii).replace(b'"ab":', b'"b":', 1)))


pieces = st.sampled_from(
    [
        b'"',
        b"\\",
        b"\\u0001",
        b"\\u00",
        b"{",
        b"}",
        b":",
        b",",
        b"\0",
        b"\x1f",
        b"\x7f",
        b"\xc3\xbc",
        b"\xff",
        b"0",
        b"-",
        b" ",
    ]
)


@unhurried
@given(
    st.lists(
        st.tuples(st.integers(12, len(send_header())), st.integers(0, 5), pieces | st.binary(max_size=3)),
        max_size=3,
    )
)
@example([(len(send_header()) - 1, 1, b"")])
@example([(len(send_header()), 0, b"}")])
def test_damaged_headers(damages: list[tuple[int, int, bytes]]) -> None:
    header = send_header()
    for at, count, piece in damages:
        header = header[:at] + piece + header[at + count :]
    found(frames_of(header))


def test_long_names_are_for_msgspec() -> None:
    header = written(TOP | {"code": 10, "extFields": {"topic": "T", "queueId": "3", "properties": "K\x01v"}})
    v1 = msgspec.json.Decoder(SendCommandV1, strict=False).decode
    for way in PLAIN_SENDS:
        ((topic, queue_id, *_),) = way(frames_of(header), fast_path_key(10), v1, False)
        assert (topic, queue_id) == (b"T", 3)


# -- what of them is stored together ---------------------------------------------------------------------

MESSAGES_OF = ways("broker.put.plain_sends", "messages_of")
SUFFIX = b"CLUSTER\x01c\x02"
plain = st.tuples(
    st.sampled_from([*[b"TopicA", b"TopicB"] * 8, b"None"]),
    st.integers(0, 1),
    st.just(0),
    st.sampled_from([*[0, 1, 16] * 8, 4, 8, 128, -1]),
    st.just(7),
    st.just(1),
    st.sampled_from([*[b"", b"ab"] * 4, b"abc", b"abcd"]),
    st.sampled_from([*[b"", b"K\x01v\x02"] * 4, b"K\x01long\x02"]),
    st.sampled_from([*[True] * 8, False]),
    st.just(5),
    st.sampled_from([b"", b"AC11", b'a"b', b"\xff"]),
    st.just(b"k"),
    st.integers(-5, 5),
    st.booleans(),
)


def together(
    sends: list[PlainSend], body_bytes_max: int, properties_bytes_max: int
) -> tuple[list[Message], list[Answered], int]:
    """One by one, as plainly as can be."""
    messages, answered = list[Message](), list[Answered]()
    for number, send in enumerate(sends):
        (
            topic,
            queue_id,
            flag,
            sys_flag,
            born,
            times,
            body,
            properties,
            waits,
            code,
            key,
            keys,
            opaque,
            way,
        ) = send
        if waits is not sends[0][8] or sys_flag & (12 | INNER_BATCH) or topic == b"None":
            break
        if len(body) > body_bytes_max or len(properties) > properties_bytes_max:
            break
        made = b"" if key else b"made%d" % [not each[10] for each in sends[:number]].count(True)
        cursor = queue_cursor(topic, queue_id, 0, None)
        stored = properties + (b"UNIQ_KEY\x01" + made + b"\x02" if made else b"") + SUFFIX
        host = b"host%d" % number
        messages.append((cursor, flag, sys_flag, born, host, times, body, stored, code, key or made, keys))
        answered.append((queue_id, key_text(key or made), opaque, way))
    return messages, answered, [each[3] for each in answered].count(False)


@unhurried
@given(st.lists(plain, max_size=12), st.integers(2, 4), st.sampled_from([0, 4, 7, 99]))
def test_messages_of(sends: list[PlainSend], body_bytes_max: int, properties_bytes_max: int) -> None:
    hosts = [b"host%d" % number for number in range(len(sends))]
    for way in MESSAGES_OF:
        asked: list[tuple[bytes, int]] = []
        made = itertools.count()

        def cursor_of(
            topic: bytes, queue_id: int, asked: list[tuple[bytes, int]] = asked
        ) -> QueueCursor | None:
            asked.append((topic, queue_id))
            return None if topic == b"None" else queue_cursor(topic, queue_id, 0, None)

        def new_key(made: Iterator[int] = made) -> bytes:
            return b"made%d" % next(made)

        limits = body_bytes_max, properties_bytes_max, SUFFIX
        messages, answered, count = way(sends, hosts, cursor_of, new_key, limits)
        assert (messages, answered, count) == together(sends, body_bytes_max, properties_bytes_max)
        assert len(asked) == len(set(asked)), "each queue has one cursor"
        cursors = {(each[0][0], each[0][1]): each[0] for each in messages}
        assert all(cursors[each[0][0], each[0][1]] is each[0] for each in messages)
