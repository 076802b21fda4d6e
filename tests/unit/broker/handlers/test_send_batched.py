"""Sends that one read brings: stored and answered as if they had come one by one."""

import json
from pathlib import Path

import pytest

from broker.admission.send_gate import DISK
from broker.store.batched_put import BatchedPut
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.route import TopicConfig
from tests.support.full_disk import full_disk
from tests.support.handler_parts import Broker
from tests.support.read_parts import Reader, request_frame, send_frame
from tests.support.store_parts import crash, open_store
from tests.support.together_parts import SLOW_PATH_FRAMES, Counted, begun, by_opaque, records


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames are enough."""
    monkeypatch.setattr("keelmq.remoting.connection.BATCHED_MIN", 2)


@pytest.fixture
async def broker(tmp_path: Path) -> Broker:
    return begun(tmp_path / "store")


@pytest.fixture
async def reader(broker: Broker) -> Reader:
    return Reader(broker.dispatcher)


async def test_one_write_of_the_log_and_one_of_the_socket(
    broker: Broker, reader: Reader, counted: Counted
) -> None:
    order = [0, 1, 0, 1, 1, 0]
    reader.read(b"".join(send_frame(n, b"%d" % n, e=str(queue)) for n, queue in enumerate(order)))
    assert counted.calls == [6]
    assert len(reader.transport.writes) == 1
    assert [int(record.body) for record in records(broker)] == list(range(6))
    assert (len(broker.soon), broker.ticks) == (1, 1)
    answers = by_opaque(reader.answers())
    assert [answers[n].ext_fields["queueOffset"] for n in range(6)] == ["0", "0", "1", "1", "2", "2"]
    broker.tick()
    for record in records(broker):
        answer = answers[int(record.body)]
        assert answer.code == 0 and answer.ext_fields["queueId"] == str(record.queue_id)
        assert int(answer.ext_fields["msgId"][16:], 16) == record.offset
        assert int(answer.ext_fields["queueOffset"]) == record.queue_offset
    assert [broker.store.max_queue_offset("TopicA", queue) for queue in (0, 1)] == [3, 3]
    assert broker.store.put_messages == 7
    assert broker.store.put_bytes == broker.store.commit_log.max_offset


async def test_few_go_the_plain_way(
    broker: Broker, reader: Reader, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.read(send_frame(1))
    monkeypatch.setattr("keelmq.remoting.connection.BATCHED_MIN", 4)
    reader.read(b"".join(send_frame(n) for n in (2, 3, 4)))
    assert counted.calls == []
    reader.read(b"".join(send_frame(n) for n in (5, 6, 7, 8)))
    assert counted.calls == [4]
    assert sorted(by_opaque(reader.answers())) == list(range(1, 9))


@pytest.mark.parametrize("slow_path_frame", SLOW_PATH_FRAMES, ids=range(len(SLOW_PATH_FRAMES)))
async def test_what_is_not_plain_ends_it(
    tmp_path: Path, broker: Broker, reader: Reader, counted: Counted, slow_path_frame: bytes
) -> None:
    """It has its own answer, and what stands behind it comes later."""
    alone = begun(tmp_path / "alone")
    one_by_one = Reader(alone.dispatcher)
    before = b"".join(send_frame(n, b"before") for n in range(3))
    after = b"".join(send_frame(n, b"after") for n in range(60, 63))
    reader.read(before + slow_path_frame + after)
    for frame in (before, slow_path_frame, after):
        one_by_one.read(frame)
    assert counted.calls[0] == 3
    found, expected = by_opaque(reader.answers()), by_opaque(one_by_one.answers())
    assert found.keys() == expected.keys()
    for opaque, answer in found.items():
        assert answer.code == expected[opaque].code and answer.remark == expected[opaque].remark, opaque
    stored = [(each.topic, each.queue_id, each.queue_offset, each.body) for each in records(broker)]
    assert stored == [(each.topic, each.queue_id, each.queue_offset, each.body) for each in records(alone)]
    alone.store.close()


async def test_a_slow_path_frame_first(broker: Broker, reader: Reader, counted: Counted) -> None:
    """The rest goes the plain way as well."""
    reader.read(request_frame(999, 1, {}) + send_frame(2) + send_frame(3))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(1, 3), (2, 0), (3, 0)]
    reader.read(send_frame(4, e="9") + send_frame(5) + send_frame(6))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(4, 29), (5, 0), (6, 0)]
    assert counted.calls == []


async def test_a_number_out_of_its_field_harms_nobody_else(
    broker: Broker, reader: Reader, counted: Counted
) -> None:
    reader.read(send_frame(1) + send_frame(2, h=str(2**40)) + send_frame(3))
    answers = by_opaque(reader.answers())
    assert counted.calls == [1]
    assert [answers[n].code for n in (1, 2, 3)] == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert [each.queue_offset for each in records(broker)] == [0, 1]


async def test_oneway_ones_are_stored_and_not_answered(broker: Broker, reader: Reader) -> None:
    reader.read(b"".join(send_frame(n, flag=2 * (n % 2)) for n in range(6)))
    answers = by_opaque(reader.answers())
    assert {n: answers[n].ext_fields["queueOffset"] for n in answers} == {0: "0", 2: "2", 4: "4"}
    reader.read(send_frame(7, flag=2) + send_frame(8, flag=2))
    assert reader.transport.writes == []
    assert len(list(records(broker))) == 8


async def test_keys_that_are_missing_or_strange(broker: Broker, reader: Reader) -> None:
    reader.read(send_frame(1, i="TAGS\x01T") + send_frame(2, i='UNIQ_KEY\x01a"b\\ü') + send_frame(3, i=""))
    answers = by_opaque(reader.answers())
    keys = [answers[n].ext_fields["transactionId"] for n in (1, 2, 3)]
    assert keys[1] == 'a"b\\ü' and len(keys[0]) == len(keys[2]) == 32 and keys[0] != keys[2]
    stored = [each.properties for each in records(broker)]
    assert [key.encode() in properties for key, properties in zip(keys, stored, strict=True)] == [True] * 3
    broker.tick()
    assert broker.store.index is not None
    queue = broker.store.queues.get("TopicA", 0)
    for key in keys:
        assert len(broker.store.index.find(queue.key_prefix_hash, key.encode(), 9, 0, 1 << 60)) == 1


async def test_several_topics(broker: Broker, reader: Reader, counted: Counted) -> None:
    broker.topics.update(TopicConfig(topic_name="TopicB", read_queue_nums=1, write_queue_nums=1))
    reader.read(b"".join(send_frame(n, b="TopicB" if n % 2 else "TopicA") for n in range(6)))
    assert counted.calls == [6]
    assert {(each.topic, each.queue_offset) for each in records(broker)} == {
        (topic, number) for topic in ("TopicA", "TopicB") for number in range(3)
    }


async def test_a_topic_with_wide_units(broker: Broker, reader: Reader, counted: Counted) -> None:
    """queue.type=BatchCQ."""
    wide = TopicConfig(
        topic_name="Wide", read_queue_nums=1, write_queue_nums=1, attributes={"queue.type": "BatchCQ"}
    )
    broker.topics.update(wide)
    reader.read(send_frame(1) + send_frame(2) + send_frame(3, b="Wide") + send_frame(4, b="Wide"))
    assert counted.calls == [2]
    assert [each.code for each in reader.answers()] == [0] * 4
    broker.tick()
    assert broker.store.max_queue_offset("Wide", 0) == 2


async def test_the_end_of_a_file(tmp_path: Path, counted: Counted) -> None:
    """The rest of it is too small for all of them, and each finds its place."""
    broker = Broker(tmp_path)
    reader = Reader(broker.dispatcher)
    body = bytes(20_000)
    for first in range(0, 90, 9):
        reader.read(b"".join(send_frame(first + n, body) for n in range(9)))
    answers = by_opaque(reader.answers())
    assert len(answers) == 90 and {each.code for each in answers.values()} == {0}
    assert set(counted.calls) == {0, 9}
    broker.tick()
    assert broker.store.max_queue_offset("TopicA", 0) == 90
    assert broker.store.commit_log.max_offset > 1 << 20
    crash(broker.store)
    again = open_store(tmp_path, commit_log_file_bytes=1 << 20)
    assert again.max_queue_offset("TopicA", 0) == 90


async def test_a_closed_gate_tells_each(broker: Broker, reader: Reader, counted: Counted) -> None:
    broker.gate.close(DISK, "no room")
    reader.read(send_frame(1) + send_frame(2))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(1, 14), (2, 14)]
    broker.gate.open(DISK)
    broker.gate.lease = lambda now_ms: True
    reader.read(send_frame(3) + send_frame(4))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(3, 14), (4, 14)]
    broker.gate.lease = None
    broker.gate.min_in_sync = 2
    reader.read(send_frame(5) + send_frame(6))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(5, 1), (6, 1)]
    assert counted.calls == [] and list(records(broker)) == []


async def test_a_producer_with_a_wide_address(broker: Broker) -> None:
    reader = Reader(broker.dispatcher, "2001:db8::7")
    reader.read(send_frame(1) + send_frame(2, f="48"))  # the client's host bits do not count
    reader.read(send_frame(3))
    first, second, alone = records(broker)
    assert first.born_host == second.born_host == alone.born_host and len(alone.born_host) == 20
    assert first.sys_flag == second.sys_flag == alone.sys_flag


async def test_consumers_that_wait_are_told(broker: Broker, reader: Reader) -> None:
    assert broker.pull(0, suspend_ms=5_000, queueId="1") is None
    reader.read(send_frame(1, e="0") + send_frame(2, b"for you", e="1"))
    broker.tick()
    broker.tick()
    assert [b"for you" in each.body for each in broker.answers()] == [True]


async def test_more_than_is_kept_for_dispatch(
    broker: Broker, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is confirmed."""
    monkeypatch.setattr("broker.store.dispatching.QUEUED_UNITS_MAX", 5)
    for first in (0, 4, 8):
        reader.read(b"".join(send_frame(first + n) for n in range(4)))
    assert len(broker.store.dispatcher.queued) < 3
    broker.tick()
    while broker.store.dispatcher.dispatch(3):
        pass
    assert broker.store.max_queue_offset("TopicA", 0) == 12


async def test_a_full_disk_between_two_queues(broker: Broker, reader: Reader) -> None:
    """The first one has its units, the second one has no room: nothing is there twice when it has."""
    store = broker.store
    with full_disk(store.root / "consumequeue" / "TopicA" / "1"):
        reader.read(b"".join(send_frame(n, e=str(n % 2)) for n in range(4)))
        broker.tick()
        assert store.dispatcher.dispatch_fault and store.dispatch_offset < store.confirm_offset
        assert [store.queues.get("TopicA", queue).max_offset for queue in (0, 1)] == [2, 0]
    reader.read(send_frame(9, e="0"))
    broker.tick()
    assert not store.dispatcher.dispatch_fault and store.dispatch_offset == store.commit_log.max_offset
    assert [store.queues.get("TopicA", queue).max_offset for queue in (0, 1)] == [3, 2]
    assert sum(store.queues.get("TopicA", queue).put_bytes for queue in (0, 1)) == sum(
        record.size for record in records(broker)
    )
    assert store.index is not None
    assert len(store.index.find(store.queues.get("TopicA", 0).key_prefix_hash, b"AC11", 99, 0, 1 << 60)) == 5


async def test_sealed_records(tmp_path: Path, counted: Counted) -> None:
    """enabledAppendPropCRC: each has its own checksum."""
    broker = begun(tmp_path, append_prop_crc=True)
    reader = Reader(broker.dispatcher)
    reader.read(send_frame(1) + send_frame(2))
    assert counted.calls == [] and [each.code for each in reader.answers()] == [0, 0]
    assert all(b"__CRC32#" in each.properties for each in records(broker))


# -- replies that wait -------------------------------------------------------------------------------------


async def test_they_leave_when_all_of_them_are_replicated(broker: Broker, reader: Reader) -> None:
    broker.gate.wait = True
    reader.read(b"".join(send_frame(n) for n in range(4)))
    broker.tick()
    assert reader.transport.writes == [] and len(broker.pending) == 4
    last = list(records(broker))[-1]
    broker.pending.release(last.offset)
    assert reader.transport.writes == []
    broker.pending.release(last.offset + last.size)
    assert len(reader.transport.writes) == 1 and len(broker.pending) == 0
    assert [(each.opaque, each.code) for each in reader.answers()] == [(n, 0) for n in range(4)]


async def test_producers_that_do_not_wait(broker: Broker, reader: Reader, counted: Counted) -> None:
    broker.gate.wait = True
    no_wait = "UNIQ_KEY\x01K\x02WAIT\x01false"
    reader.read(b"".join(send_frame(n, i=no_wait) for n in range(3)) + send_frame(9))
    assert counted.calls == [3]
    assert [each.opaque for each in reader.answers()] == [0, 1, 2]
    reader.read(send_frame(4, flag=2) + send_frame(5, flag=2))
    assert len(broker.pending) == 1, "nobody waits for the answer to a oneway message"
    reader.read(b"".join(send_frame(n, i="UNIQ_KEY\x01K\x02NOWAIT\x01false") for n in (6, 7)))
    assert reader.answers() == [] and len(broker.pending) == 3, "their property has another name"


@pytest.mark.parametrize(
    ("code", "has_place"),
    [(ResponseCode.SERVICE_NOT_AVAILABLE, False), (ResponseCode.FLUSH_SLAVE_TIMEOUT, True)],
)
async def test_each_is_told_when_it_was_in_vain(
    broker: Broker, reader: Reader, code: int, has_place: bool
) -> None:
    broker.gate.wait = True
    reader.read(b"".join(send_frame(n) for n in range(3)))
    assert broker.pending.fail_all(code, "role change") == 3
    found = reader.answers()
    assert [(each.opaque, each.code, each.remark) for each in found] == [
        (n, code, "role change") for n in range(3)
    ]
    assert all(("msgId" in each.ext_fields) is has_place for each in found)
    assert len(broker.pending) == 0 and broker.pending.room == 100


async def test_each_is_told_when_it_took_too_long(broker: Broker, reader: Reader) -> None:
    broker.gate.wait = True
    reader.read(b"".join(send_frame(n) for n in range(3)))
    assert broker.pending.expire(1 << 60, 3_000) == 3
    found = reader.answers()
    assert [(each.opaque, each.code) for each in found] == [(n, 12) for n in range(3)]
    assert len({each.ext_fields["msgId"] for each in found}) == 3


async def test_no_more_than_may_wait(tmp_path: Path) -> None:
    broker = begun(tmp_path, pending_max=5)
    reader = Reader(broker.dispatcher)
    broker.gate.wait = True
    reader.read(b"".join(send_frame(n) for n in range(8)))
    refused = by_opaque(reader.answers())
    assert {opaque: each.code for opaque, each in refused.items()} == dict.fromkeys(
        (5, 6, 7), ResponseCode.SYSTEM_BUSY
    )
    assert len(broker.pending) == 5 == len(list(records(broker)))
    broker.replicated()
    reader.answers()
    reader.read(send_frame(9) + send_frame(10))
    assert len(broker.pending) == 2


# -- the connection's part ---------------------------------------------------------------------------------


async def test_a_handler_that_fails_answers_each(
    broker: Broker, reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether they are stored is not known: none of them is tried again."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(BatchedPut, "put", broken)
    reader.read(send_frame(1) + send_frame(2, flag=2) + send_frame(3) + request_frame(999, 4, {}))
    assert [(each.opaque, each.code) for each in reader.answers()] == [(1, 1), (3, 1), (4, 3)]
    assert "broken" in caplog.text
    assert list(records(broker)) == []


async def test_the_beginning_of_a_frame_waits_behind_them(broker: Broker, reader: Reader) -> None:
    last = send_frame(3)
    reader.read(send_frame(1) + send_frame(2) + last[:30])
    assert [each.opaque for each in reader.answers()] == [1, 2]
    reader.read(last[30:])
    assert [each.opaque for each in reader.answers()] == [3]


async def test_a_response_with_the_number_of_a_request(broker: Broker, reader: Reader) -> None:
    header = json.loads(send_frame(2)[8:-4])
    reply = request_frame(310, 2, header["extFields"], flag=1)
    reader.read(send_frame(1) + send_frame(4) + reply + send_frame(3))
    assert [each.opaque for each in reader.answers()] == [1, 4, 3]
