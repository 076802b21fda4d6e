"""Every leaf in its three ways: as it is interpreted, its twin's way interpreted, and the compiled twin."""

import importlib
import struct
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.admission.pending_replies import reply_frame
from broker.message.batch_records import ITEMS_MAX, Batch
from broker.message.indexed_keys import Keyed
from broker.message.property_scan import waits_for_replicas
from broker.message.record import host_bits, index_keys, key_hash, parse_properties, tags_code
from broker.message.record_bytes import CommonFields, Message, queue_cursor, record_parts
from broker.message.record_scan import new_queue_scan
from broker.put.send_replies import reply_template, reply_texts
from broker.put.success_frames import Answered
from broker.store.index.index_entries import ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES
from broker.store.queue.size_counts import SMALL_BYTES, no_records
from broker.store.queue.unit_ranges import Ranges, ranges_of
from keelmq.remoting.frame import frame_bytes
from keelmq.runtime.compiled import leaves

unhurried = settings(deadline=None)  # the twin's way is slow where it is interpreted
NAMES = [
    "UNIQ_KEY", "TAGS", "KEYS", "DELAY", "TIMER_", "TIMER", "_", "TRAN_MSG", "POP_CK", "WAIT", "false",
    "WAIT\x01false", "WAIT\x01", "NOWAIT\x01false", "falsey", "TIMER_DELAY_MS\x011", "DELAY\x01",
    "POP_CK\x01", "true", "\x01", "\x02", "\x01", "\x02", "\x01", "\x02", "\0", "a", "é", "\ud7ff", "𐀀",
    "TagA", "k1 k2", " ", "X",
]  # fmt: skip
texts = st.lists(st.sampled_from(NAMES), max_size=16).map("".join) | st.text(max_size=40)
raw_properties = texts.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=40)


def ways(module: str, function: str) -> list[Callable[..., Any]]:
    leaf = leaves[module]
    source, interpreted = importlib.import_module(module), leaf.interpreted[function]

    def as_the_twin(*arguments: Any, **options: Any) -> Any:
        with mock.patch.object(source, "_IS_COMPILED", True):
            return interpreted(*arguments, **options)

    return [interpreted, as_the_twin] + ([] if leaf.twin is None else [getattr(leaf.twin, function)])


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    """What it returns, or what it refuses, and why."""
    try:
        return function(*arguments)
    except (ValueError, struct.error) as error:
        return type(error), str(error)


def same(functions: list[Callable[..., Any]], *arguments: Any) -> Any:
    found = [outcome(function, *arguments) for function in functions]
    assert all(each == found[0] for each in found[1:]), found
    return found[0]


# -- frames ----------------------------------------------------------------------------------------------

WHOLE_FRAMES = ways("keelmq.remoting.frame", "whole_frames")
frames = st.builds(
    lambda kind, header, body, more: (
        struct.pack(">ii", 4 + len(header) + len(body), kind << 24 | len(header) + more) + header + body
    ),
    st.sampled_from([0, 1, 1, 2, -1]),
    st.binary(max_size=20),
    st.binary(max_size=20),
    st.sampled_from([0, 0, 0, 1, 30]),
)


@unhurried
@given(st.lists(frames, max_size=6).map(b"".join) | st.binary(max_size=40), st.integers(0, 12))
@example(b"\xff\xff\xff\xff" * 4, 0)
@example(b"\x80\0\0\0" + bytes(12), 0)
@example(b"\0\0\0\x03" + bytes(12), 0)
def test_whole_frames(data: bytes, cut: int) -> None:
    data = data[: len(data) - cut]
    at = 0
    for serialize_type, header, body, end in same(WHOLE_FRAMES, data):
        assert data[at + 4 : end] == bytes([serialize_type]) + len(header).to_bytes(3, "big") + header + body
        assert frame_bytes(data, at, len(data)) == end - at
        at = end


# -- properties ------------------------------------------------------------------------------------------

SCAN_PROPERTIES = ways("broker.message.property_scan", "scan_properties")
NOT_PLAIN = {"DELAY", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TRAN_MSG", "POP_CK"} | {
    "_SYS_MSG_PRIORITY_"
}


def is_waiting(properties: bytes) -> bool:
    """As a consumer's reader of properties would tell it."""
    return parse_properties(properties).get("WAIT") != "false"


@unhurried
@given(texts)
@example("")
@example("TIMER_")
@example("_SYS_MSG_PRIORITY_\x013")
@example("_")
@example("\x01")
@example("aUNIQ_KEY\x01x\x02UNIQ_KEY\x01y\x02UNIQ_KEY\x01\x01z")
@example("TAGS\x01a\x02TAGS\x01b\x02KEYS\x01")
@example("TAGS\x01" + "ü" * 300)
@example("TAGS\x01" + "z" * 300)
@example("\ud800")
@example("NOWAIT\x01false")
@example("WAIT\x01falsey\x02")
@example("note\x01WAIT\x01false")
@example("WAIT\x01false\x02NOWAIT\x01true\x02WAIT\x01")
@example("WAIT\x01false\x02WAIT\x01true")
@example("WAIT\x01true\x02WAIT\x01false")
def test_look(text: str) -> None:
    found = same(SCAN_PROPERTIES, text)
    if found[0] is not UnicodeEncodeError:
        assert found[3:] == (tags_code(found[0]), *index_keys(found[0]))
        assert found[2] == is_waiting(found[0]) == waits_for_replicas(found[0])
        assert not found[1] or not NOT_PLAIN & set(parse_properties(found[0]))


@unhurried
@given(raw_properties)
@example(b"UNIQ_KEY\x01")
@example(b"TAGS\x01\xff\xfe\x02KEYS\x01\xff")
def test_scan_of_properties(properties: bytes) -> None:
    """Of records, whose text may be anything."""
    found = same(ways("broker.message.property_scan", "scan"), properties)
    assert found[0] == properties and found[3:] == (tags_code(properties), *index_keys(properties))
    assert found[2] == is_waiting(properties) == waits_for_replicas(properties)


# -- the index -------------------------------------------------------------------------------------------

COLUMNS = ways("broker.message.indexed_keys", "columns")
WRITE_ENTRIES = ways("broker.store.index.index_entries", "write_entries")
SLOTS, ENTRIES = 7, 40
key_bytes = (
    st.text("0123456789ABCDEF", max_size=40).map(str.encode)
    | st.text("ab 0Z~", max_size=40).map(str.encode)
    | st.binary(max_size=20)
    | st.sampled_from([b"x" * 1_025, b"\xe9" * 1_030, b"0" * 1_024])
)
offsets = st.integers(0, 2**63 - 1)
one_key = key_bytes.map(lambda key: key.replace(b" ", b""))
keyed = st.tuples(st.integers(-(2**31), 2**31 - 1), offsets, st.integers(0, 2**62), one_key, key_bytes)


@pytest.mark.slow
@unhurried
@given(st.lists(keyed, max_size=12))
@example([(0, 0, 0, b"polygenelubricants", b"")])  # Java's hash of it is the one whose abs() overflows
@example([(31, 1, 2, b"", b"  a  b ")])
def test_columns(records: list[Keyed]) -> None:
    expected = []
    for prefix_hash, offset, timestamp, unique_key, keys in records:
        for key in [unique_key, *keys.split(b" ")]:
            if key:
                expected.append((key_hash(prefix_hash, key), offset, timestamp))
    hashes, found_offsets, timestamps = same(COLUMNS, records)
    assert list(zip(hashes, found_offsets, timestamps, strict=True)) == expected


@unhurried
@given(
    st.integers(1, 5),
    st.integers(0, 2**62),
    st.lists(st.tuples(st.integers(0, 2**31 - 1), offsets, st.integers(0, 2**62)), min_size=1, max_size=20),
)
def test_write_entries(first: int, begin: int, entries: list[tuple[int, int, int]]) -> None:
    columns = tuple(list(column) for column in zip(*entries, strict=True))
    files = []
    for function in WRITE_ENTRIES:
        file = bytearray(HEADER_BYTES + SLOTS * SLOT_BYTES + ENTRIES * ENTRY_BYTES)
        used = function(memoryview(file), SLOTS, first, begin, columns)
        assert used == len({hashed % SLOTS for hashed, _, _ in entries})
        files.append(bytes(file))
    assert len(set(files)) == 1
    begins = HEADER_BYTES + SLOTS * SLOT_BYTES + first * ENTRY_BYTES
    raw = files[0][begins : begins + len(entries) * ENTRY_BYTES]
    seconds = [min(max((each - begin) // 1000, 0), 2**31 - 1) for _, _, each in entries]
    assert [each[:3] for each in struct.iter_unpack(">iqii", raw)] == [
        (hashed, offset, second) for (hashed, offset, _), second in zip(entries, seconds, strict=True)
    ]


# -- batches ---------------------------------------------------------------------------------------------

RECORDS_OF = ways("broker.message.batch_records", "records_of")
lengths = st.integers(-(2**31), 2**31 - 1) | st.integers(-30, 60)


def item(body: bytes, properties: bytes, flag: int, more: int = 0, size: int | None = None) -> bytes:
    """`more`: what the length of the properties says too much. size: what the item says of itself."""
    whole = 22 + len(body) + len(properties) if size is None else size
    length = max(min(len(properties) + more, 2**15 - 1), -(2**15))
    return struct.pack(">iiiii", whole, 1, 2, flag, len(body)) + body + struct.pack(">h", length) + properties


good = st.builds(item, st.binary(max_size=60), raw_properties, st.integers(-(2**31), 2**31 - 1))
bad = st.builds(
    item, st.binary(max_size=9), raw_properties, st.just(0), st.integers(-3, 3), st.none() | lengths
)
heads = st.builds(lambda *numbers: struct.pack(">iiiii", *numbers), *[lengths] * 5)


@unhurried
@given(
    st.lists(good, min_size=1, max_size=6).map(b"".join)
    | st.lists(good | bad | heads | st.binary(max_size=30), max_size=6).map(b"".join),
    st.sampled_from([b"", b"CLUSTER\x01c", b"TAGS\x01t\x02KEYS\x01k", b"s" * 32_700]),
    st.sampled_from([b"\x06TopicA", b"\x00\x80" + b"t" * 128]),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 2**62),
)
@example(b"", b"", b"\x01t", 0, 0)
@example(item(b"b", b"a\x01\0", 0), b"", b"\x01t", 0, 0)
@example(item(b"b", b"p" * 32_767, 0), b"", b"\x01t", 0, 0)
@example(item(b"b", b"a\x01b", 0)[:-1], b"", b"\x01t", 0, 0)
def test_records_of(body: bytes, shared: bytes, topic: bytes, prefix: int | None, offset: int) -> None:
    batch = Batch(body, topic, 3, 2**40, b"m" * 52, shared, prefix, 1_795_247_382_069)
    found = same(RECORDS_OF, batch, offset)
    if isinstance(found[0], bytes):
        units = list(struct.iter_unpack(">qiq", found.units))
        assert [place for place, _, _ in units] == found.offsets
        assert units[0][0] == offset and sum(size for _, size, _ in units) == len(found.raw)
        assert len(found.keys) == (0 if prefix is None else len(units))


# -- records ---------------------------------------------------------------------------------------------

RECORD_BYTES = ways("broker.message.record_bytes", "record_bytes")
i32, i64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
parts = st.tuples(
    st.binary(max_size=60), st.sampled_from([b"\x01t", b"\0\x80" + b"t" * 128]), st.binary(max_size=40)
)


def fields_of(numbers: tuple[int, ...], born: bytes, store: bytes, texts: tuple[bytes, ...]) -> Any:
    queue_id, flag, queue_offset, offset, sys_flag, born_ms, store_ms, times, prepared = numbers
    size = 90 - 16 + len(born) + len(store) + sum(map(len, texts))
    head = size, queue_id, flag, queue_offset, offset, sys_flag, born_ms, born, store_ms, store
    return *head, times, prepared, *texts


@unhurried
@given(st.tuples(i32, i32, i64, i64, i32, i64, i64, i32, i64), hosts, hosts, parts)
@example((0,) * 9, bytes(8), bytes(8), (b"", b"\x01t", b"p" * 32_767))
@example((0,) * 9, bytes(8), bytes(8), (b"", b"\x01t", b"p" * 32_768))
def test_record_bytes(numbers: tuple[int, ...], born: bytes, store: bytes, texts: tuple[bytes, ...]) -> None:
    found = [outcome(way, fields_of(numbers, born, store, texts)) for way in RECORD_BYTES]
    if len(texts[2]) > 32_767:
        assert {each[0] for each in found} == {struct.error}
    else:
        whole = b"".join(record_parts(fields_of(numbers, born, store, texts)))
        assert all(each == whole for each in found)


@pytest.mark.parametrize("place", range(9))
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**200])
def test_a_record_with_a_number_out_of_its_field(place: int, number: int) -> None:
    numbers = (0,) * place + (number,) + (0,) * (8 - place)
    fields = fields_of(numbers, bytes(8), bytes(8), (b"", b"\x01t", b""))
    ways_tested = RECORD_BYTES[::2]
    assert [outcome(way, fields)[0] for way in ways_tested] == [struct.error] * len(ways_tested)


# -- what one read brings ---------------------------------------------------------------------------------

RECORDS_BYTES = ways("broker.message.record_bytes", "records_bytes")
places = st.tuples(
    st.sampled_from([b"\x01t", b"\0\x80" + b"t" * 128]), i32, st.integers(0, 2**62), st.none() | i32
)
sent = st.tuples(
    st.integers(0, 2), i32, i32, i64, hosts, i32, st.binary(max_size=60), st.binary(max_size=40), i64,
    st.binary(max_size=9), key_bytes,
)  # fmt: skip
SHARED = CommonFields(1_795_247_382_069, bytes(20), 0x20)


@unhurried
@given(st.lists(places, min_size=3, max_size=3), st.lists(sent, max_size=6), st.integers(0, 2**62))
def test_records_bytes(
    where: list[tuple[bytes, int, int, int | None]], rows: list[tuple[Any, ...]], offset: int
) -> None:
    results = []
    for way in RECORDS_BYTES:
        made = [queue_cursor(*each) for each in where]
        messages: list[Message] = [(made[row[0]], *row[1:]) for row in rows]
        results.append((way(messages, SHARED, offset), made))
    found, grown = results[0]
    assert all(each == results[0] for each in results[1:])
    whole, units, keys, at = b"", [bytearray() for _ in where], [], offset
    counts = [first for _, _, first, _ in where]
    for number, flag, sys_flag, born_ms, born, times, body, properties, code, *own in rows:
        topic, queue_id, _, prefix = where[number]
        bits, now_ms = host_bits(sys_flag, born, SHARED.store_host), SHARED.store_timestamp
        numbers = queue_id, flag, counts[number], at, bits, born_ms, now_ms, times, 0
        raw = b"".join(record_parts(fields_of(numbers, born, SHARED.store_host, (body, topic, properties))))
        units[number] += struct.pack(">qiq", at, len(raw), code)
        if prefix is not None:
            keys.append((prefix, at, SHARED.store_timestamp, *own))
        counts[number] += 1
        whole += raw
        at = offset + len(whole)
    assert (found.raw, found.keys) == (whole, keys)
    assert [place[2] for place in grown] == counts
    assert [place[3] for place in grown] == units
    assert sum(place[4] for place in grown) == len(whole)
    assert [(row[0], each) for row, each in zip(rows, found.queue_offsets, strict=True)] == [
        (number, where[number][2] + [row[0] for row in rows[:index]].count(number))
        for index, (number, *_) in enumerate(rows)
    ]


@pytest.mark.parametrize("place", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**200])
def test_a_message_with_a_number_out_of_its_field(place: int, number: int) -> None:
    def messages() -> list[Message]:
        queue = queue_cursor(b"\x01t", 0, 0, 0)
        good: list[Any] = [queue, 0, 0, 0, bytes(8), 0, b"", b"", 0, b"", b""]
        bad = good.copy()
        bad[place] = number
        return [tuple(good), tuple(bad)]

    assert {outcome(way, messages(), SHARED, 0)[0] for way in RECORDS_BYTES[::2]} == {struct.error}


def test_a_message_with_too_many_properties() -> None:
    def message(properties_bytes: int) -> Message:
        cursor = queue_cursor(b"\x01t", 0, 0, None)
        return (cursor, 0, 0, 0, bytes(8), 0, b"", b"p" * properties_bytes, 0, b"", b"")

    for way in RECORDS_BYTES:
        assert way([message(32_767), message(32_767)], SHARED, 0).queue_offsets == [0, 0]
    found = [outcome(way, [message(32_767), message(32_768)], SHARED, 0) for way in RECORDS_BYTES]
    assert {each[0] for each in found} == {struct.error}


SUCCESS_FRAMES = ways("broker.put.success_frames", "success_frames")
SUCCESS_FRAME_LIST = ways("broker.put.success_frames", "success_frame_list")
counts = st.integers(0, 2**63 - 1) | st.sampled_from([0, 9, 10, 99, 100, 10**18 - 1, 10**18])


@unhurried
@given(
    st.sampled_from([bytes(8), bytes(range(20))]),
    st.lists(
        st.tuples(
            offsets,
            counts,
            st.tuples(
                st.integers(0, 2**31 - 1), st.binary(max_size=40), i32, st.sampled_from([False, False, True])
            ),
        ),
        max_size=5,
    ),
)
@example(
    bytes(8),
    [(0, 0, (0, b"", -(2**31), False)), (2**63 - 1, 2**63 - 1, (2**31 - 1, b"k" * 600, 2**31 - 1, False))],
)
def test_success_frames(host: bytes, stored: list[tuple[int, int, Answered]]) -> None:
    template, lists = reply_template(host), [[each[place] for each in stored] for place in range(3)]
    each = [
        None if is_oneway else reply_frame(template % (offset, queue_id, queue_offset, key, opaque))
        for offset, queue_offset, (queue_id, key, opaque, is_oneway) in stored
    ]
    assert same(SUCCESS_FRAME_LIST, reply_texts(host), *lists) == each
    assert same(SUCCESS_FRAMES, reply_texts(host), *lists) == b"".join(frame for frame in each if frame)


# -- batches, again --------------------------------------------------------------------------------------


def test_too_many_items() -> None:
    batch = Batch(item(b"", b"", 0) * (ITEMS_MAX + 1), b"\x01t", 0, 0, b"", b"", None, 0)
    assert same(RECORDS_OF[::2], batch, 0)[0] is ValueError


def test_a_number_out_of_its_field() -> None:
    batch = Batch(item(b"", b"", 0), b"\x01t", 2**40, 0, b"", b"", None, 0)
    assert same(RECORDS_OF, batch, 0)[0] is struct.error


# -- sizes -----------------------------------------------------------------------------------------------

COUNT_LARGE = ways("broker.store.queue.size_counts", "count_large")
sizes = st.sampled_from([1, 2, 1_023, 1_024, 1_025, 4_096, 4_097, 524_289, 2**31 - 1]) | st.integers(1, 9_000)


@unhurried
@given(st.lists(sizes, max_size=20))
@example([300, 300, 2_000, 2_000, 2_000, 5_000, 300, 2_000])
def test_count_large(found: list[int]) -> None:
    units = b"".join(struct.pack(">qiq", at, size, -1) for at, size in enumerate(found))
    expected = no_records()
    for size in found:
        if size > SMALL_BYTES:
            expected[(size - 1).bit_length()] += 1
    for count_large in COUNT_LARGE:
        counts = no_records()
        count_large(counts, units, len(found), sum(found))
        assert counts == expected


@unhurried
@given(sizes, st.integers(2, 50), st.integers(1, 3))
def test_count_large_of_messages_that_share_records(size: int, messages: int, records: int) -> None:
    for count_large in COUNT_LARGE:
        counts = no_records()
        count_large(counts, bytes(46 * records), messages, size * messages)
        assert sum(counts) == (messages if size > SMALL_BYTES else 0)
        assert counts[(size - 1).bit_length()] == sum(counts)


# -- ranges of a queue's records -------------------------------------------------------------------------

NEXT_RECORDS = ways("broker.store.queue.unit_ranges", "next_records")
JOINED = ways("broker.store.queue.unit_ranges", "joined")
COPIED = ways("broker.store.queue.unit_ranges", "copied")
BASE = 2**40
gaps_and_sizes = st.lists(
    st.tuples(st.sampled_from([0, 0, 1, 2**33]), st.sampled_from([1, 2, 300, 2**31 - 1])),
    min_size=1,
    max_size=9,
)


def units_of(places: list[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qiq", offset, size, -1) for offset, size in places)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 5, 105, 205, 2**40, 2**62, 2**62 + 1, 2**63 - 1]),
            st.sampled_from([0, 1, 100]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_next_records_of_a_damaged_queue(places: list[tuple[int, int]]) -> None:
    records = same(NEXT_RECORDS, units_of(places), 2**40, 0)
    is_whole = all(size for _, size in places) and max(places)[0] <= 2**62
    is_whole = is_whole and all(sum(before) <= after[0] for before, after in pairwise(places))
    assert (records is not None) == is_whole


@unhurried
@given(gaps_and_sizes, st.sampled_from([1, 300, 2_000, 2**31, 2**40]), st.sampled_from([0, BASE, BASE + 1]))
def test_next_records(found: list[tuple[int, int]], bytes_max: int, log_min: int) -> None:
    places, at = list[tuple[int, int]](), BASE
    for gap, size in found:
        places.append((at + gap, size))
        at += gap + size
    units = units_of(places)
    records = same(NEXT_RECORDS, units, bytes_max, log_min)
    total = sum(size for _, size in places)
    if total > bytes_max or places[0][0] < log_min:
        assert records is None
        return
    ranges = ranges_of(units)
    assert records == (len(places), total, places[0][0], sum(places[-1]), len(ranges))
    assert all(end < start for (_, end), (start, _) in pairwise(ranges)), "adjacent records share a range"
    assert [each for start, end in ranges for each in (start, end)] == [
        each
        for (offset, size), before, after in zip(
            places, [None, *places[:-1]], [*places[1:], None], strict=True
        )
        for each in (
            *([offset] if before is None or sum(before) != offset else []),
            *([offset + size] if after is None or after[0] != offset + size else []),
        )
    ]


@unhurried
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-2, 62), st.integers(-2, 62)), max_size=5))
@example(b"abcd", [(0, 4), (4, 4)])
@example(b"abcd", [(3, 5)])
@example(b"abcd", [(-1, 2)])
@example(b"abcd", [(2, 1)])
def test_joined(log: bytes, places: list[tuple[int, int]]) -> None:
    ranges: Ranges = [(BASE + start, BASE + end) for start, end in places]
    whole = same(JOINED, memoryview(log), BASE, ranges)
    if all(0 <= start <= end <= len(log) for start, end in places):
        assert whole == b"".join(log[start:end] for start, end in places)
    else:
        assert whole[0] is ValueError


@unhurried
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(-2, 62), st.integers(0, 62)), max_size=5))
@example(b"abcd", [(0, 4), (4, 0)])
@example(b"abcd", [(3, 2)])
@example(b"abcd", [(-1, 2)])
@example(b"abcd", [(0, 1), (2**63 - 1 - BASE, 2**31 - 1)])
def test_copied(log: bytes, places: list[tuple[int, int]]) -> None:
    units = units_of([(BASE + start, size) for start, size in places])
    whole = same(COPIED, memoryview(log), BASE, units)
    if all(0 <= start <= start + size <= len(log) for start, size in places):
        assert whole == b"".join(log[start : start + size] for start, size in places)
    else:
        assert whole[0] is ValueError


# -- many records of the log ---------------------------------------------------------------------------------

SCAN_ENDS = ways("broker.message.record_scan", "scan_ends")
SCAN_UNITS = ways("broker.message.record_scan", "scan_units")
LOG_AT = 2**33
KNOWN_TOPICS = (b"T", b"Topic", b"L" * 200)
logged = st.tuples(
    st.sampled_from([*KNOWN_TOPICS, b"unknown"]),
    st.sampled_from([0, 0, 1, 7]),  # queueId; no place for 7
    st.sampled_from([0, 1, 1, 2]),  # how much further the queue offset is
    st.sampled_from([0, 0, 0, 0, 0x10, 0x20, 0x30, 0x4, 0x8, 0xC, 0x80]),  # sysFlag
    st.binary(max_size=12),
    raw_properties,
)
damage = st.lists(st.tuples(st.integers(0, 2_000), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])), max_size=2)


def log_of(records: list[tuple[bytes, int, int, int, bytes, bytes]]) -> bytearray:
    whole, offsets = bytearray(), dict[tuple[bytes, int], int]()
    for topic, queue_id, step, sys_flag, body, properties in records:
        if not properties and step == 2:  # the end of a file
            whole += struct.pack(">iI", 8 + len(body), 0xCBD43194) + body
            continue
        queue_offset = offsets[topic, queue_id] = offsets.get((topic, queue_id), 4) + step
        wide = (bytes(20 if sys_flag & bit else 8) for bit in (0x10, 0x20))
        topic_raw = bytes([len(topic)]) + topic if len(topic) < 128 else struct.pack(">h", len(topic)) + topic
        born_host, store_host = wide
        size = 88 + len(born_host) + len(store_host) - 16 + len(body) + len(topic_raw) + 2 + len(properties)
        whole += b"".join(record_parts((
            size, queue_id, 0, queue_offset, LOG_AT + len(whole), sys_flag, 1, born_host, 99 + len(whole),
            store_host, 0, 0, body, topic_raw, properties,
        )))  # fmt: skip
    return whole


@unhurried
@given(
    st.lists(logged, max_size=8), damage, st.integers(0, 60), st.integers(1, 9), st.booleans(), st.booleans()
)
@example([(b"T", 0, 1, 0, b"b", b"TAGS\x01a")] * 4, [], 0, 9, True, True)
def test_scan(
    records: list[tuple[bytes, int, int, int, bytes, bytes]],
    changes: list[tuple[int, int]],
    cut: int,
    count_max: int,
    check_crc: bool,
    has_keys: bool,
) -> None:
    whole = log_of(records)
    for at, byte in changes:
        if at < len(whole):
            whole[at] = byte
    raw = bytes(whole[: len(whole) - cut])

    def scanned(function: Callable[..., Any], *more: Any, **options: Any) -> Any:
        queue_scans = {
            topic: {
                queue_id: new_queue_scan(
                    f"{topic!r}{queue_id}", queue_id, is_plain=queue_id == 0 or check_crc
                )
                for queue_id in (0, 1)
            }
            for topic in KNOWN_TOPICS
        }
        return function(raw, LOG_AT, count_max, queue_scans, *more, **options), queue_scans

    found = [scanned(function) for function in SCAN_ENDS]
    assert all(each == found[0] for each in found[1:]), found
    with_units = []
    for function in SCAN_UNITS:
        keys: list[Keyed] | None = [] if has_keys else None
        with_units.append((scanned(function, keys, check_crc=check_crc), keys))
    assert all(each == with_units[0] for each in with_units[1:]), with_units
    is_known = all(each[0] != b"unknown" and each[1] < 2 and not each[3] & 0x80 for each in records)
    if is_known and not changes and not cut and count_max >= len(records):
        assert found[0][0].end == LOG_AT + len(whole)
