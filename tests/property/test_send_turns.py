"""Sends of many connections are answered and stored as if each had been served when it came."""

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from keelmq.remoting.turn_requests import TurnRequests
from tests.property.test_compiled_leaves import unhurried
from tests.support.read_parts import V1_FIELDS, Reader, request_frame, send_frame
from tests.support.together_parts import begun, records

CONNECTIONS = 8
KINDS = [
    "plain",
    "other queue",
    "v1",
    "oneway",
    "delayed",
    "no wait",
    "no topic",
    "no queue",
    "unknown",
    "wide",
]

Read = tuple[int, list[str], int]
"""Connection, what it sends, how many bytes of the last frame arrive later."""
reads = st.tuples(
    st.integers(0, CONNECTIONS - 1),
    st.lists(st.sampled_from(["plain"] * 8 + KINDS), min_size=1, max_size=7),
    st.sampled_from([0, 0, 0, 3, 40]),
)
turns = st.lists(st.lists(reads, max_size=14), min_size=1, max_size=4)


def frame_of(kind: str, opaque: int) -> bytes:
    body = b"%d" % opaque
    if kind == "v1":
        return request_frame(10, opaque, V1_FIELDS, body)
    if kind == "unknown":
        return request_frame(999, opaque, {})
    changed = {
        "other queue": {"e": "3"},
        "delayed": {"i": "DELAY\x013\x02UNIQ_KEY\x01D"},
        "no wait": {"i": "UNIQ_KEY\x01W\x02WAIT\x01false"},
        "no topic": {"b": "Nowhere", "c": ""},
        "no queue": {"e": "9"},
        "wide": {"h": str(2**40)},
    }.get(kind, {})
    return send_frame(opaque, body, flag=2 if kind == "oneway" else 0, **changed)


Outcome = tuple[list[list[tuple[int, int]]], list[list[tuple[int, bytes]]], int]


async def outcome(loads: list[list[Read]], *, collects: bool, waits: bool) -> Outcome:
    """For each connection the answers (opaque, code) and the records (queue, body), in order; and how many
    turns there were at most in the TurnRequests."""
    with tempfile.TemporaryDirectory() as directory:
        broker = begun(Path(directory))
        readers = [Reader(broker.dispatcher, f"10.0.0.{n}") for n in range(CONNECTIONS)]
        entries = broker.dispatcher.fast_path.values()
        collecting: list[TurnRequests] = [each.turn for each in entries if each.turn is not None]
        broker.gate.wait = waits
        opaque, rests, collected = 0, [b""] * CONNECTIONS, 0
        for load in loads:
            for turn in collecting:
                turn.is_on = collects
            for connection, kinds, later in load:
                raw = rests[connection]
                for kind in kinds:
                    raw += frame_of(kind, opaque)
                    opaque += 1
                end = len(raw) - later
                rests[connection] = raw[end:]
                readers[connection].read(raw[:end])
            collected += sum(reader.connection.collected is not None for reader in readers)
            broker.tick()
        for reader, rest in zip(readers, rests, strict=True):
            if rest:
                reader.read(rest)
        broker.tick()
        broker.replicated()
        answers = [[(each.opaque, each.code) for each in reader.answers()] for reader in readers]
        own: list[list[tuple[int, bytes]]] = [[] for _ in readers]
        for record in records(broker):
            own[record.born_host[3]].append((record.queue_id, record.body))
        broker.store.close()
        return answers, own, collected


@unhurried
@given(turns, st.booleans())
async def test_as_if_each_had_been_served_when_it_came(loads: list[list[Read]], waits: bool) -> None:
    answers, stored, _ = await outcome(loads, collects=True, waits=waits)
    expected, expected_stored, none = await outcome(loads, collects=False, waits=waits)
    assert none == 0
    assert stored == expected_stored
    if waits:  # an answer that waits for replicas overtakes none of its kind, but others overtake it
        answers, expected = [sorted(each) for each in answers], [sorted(each) for each in expected]
    assert answers == expected
    assert all(len(set(each)) == len(each) for each in answers), "answered twice"
