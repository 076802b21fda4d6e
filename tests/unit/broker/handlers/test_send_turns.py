"""Sends that many connections bring in one turn of the event loop: stored together, answered one by one."""

from pathlib import Path

import pytest

from broker.admission.send_gate import DISK
from broker.store.batched_put import BatchedPut
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.turn_requests import FULL_TURN, TurnRequests
from tests.support.handler_parts import Broker
from tests.support.read_parts import SEND_FIELDS, V1_FIELDS, Reader, request_frame, send_frame
from tests.support.store_parts import crash, open_store
from tests.support.together_parts import SLOW_PATH_FRAMES, Counted, begun, by_opaque, records

COUNT = 8


class Clients:
    """Connections to one broker, each with an address of its own; the third one's is of IPv6."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        hosts = ["2001:db8::7" if n == 2 else f"10.0.0.{n}" for n in range(COUNT)]
        self.readers = [Reader(broker.dispatcher, host) for host in hosts]

    @property
    def turn(self) -> TurnRequests:
        entry = next(each for key, each in self.broker.dispatcher.fast_path.items() if b":310" in key)
        assert entry.turn is not None
        return entry.turn

    def full_turn(self) -> None:
        """The next turn is collected."""
        for reader in self.readers:
            reader.read(send_frame(99, b"first"))
            assert len(reader.answers()) == 1, "not collected yet"
        self.broker.tick()
        assert self.turn.is_on

    def read(self, frames: list[bytes]) -> None:
        """One read for each, of the first connections."""
        for reader, frame in zip(self.readers, frames, strict=False):
            reader.read(frame)

    def answers(self) -> list[list[RemotingCommand]]:
        return [reader.answers() for reader in self.readers]

    def one_each(self) -> list[RemotingCommand]:
        found = self.answers()
        assert [len(each) for each in found] == [1] * COUNT
        return [answer for each in found for answer in each]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.fixture
async def clients(tmp_path: Path) -> Clients:
    return Clients(begun(tmp_path / "store"))


@pytest.fixture
async def busy(clients: Clients) -> Clients:
    clients.full_turn()
    return clients


def stored(broker: Broker) -> list[bytes]:
    """Bodies of the records behind the first turn."""
    return [each.body for each in records(broker) if each.body != b"first"]


async def test_one_write_of_the_log_for_all(busy: Clients, counted: Counted) -> None:
    busy.read([send_frame(n, b"%d" % n, e=str(n % 2)) for n in range(COUNT)])
    assert counted.calls == [] and busy.answers() == [[]] * COUNT, "they are collected"
    busy.broker.tick()
    assert counted.calls == [COUNT]
    assert [len(reader.transport.writes) for reader in busy.readers] == [1] * COUNT
    answers = busy.one_each()
    assert [each.opaque for each in answers] == list(range(COUNT))
    found = [each for each in records(busy.broker) if each.body != b"first"]
    assert [each.body for each in found] == [b"%d" % n for n in range(COUNT)]
    for reader, record, answer in zip(busy.readers, found, answers, strict=True):
        assert record.born_host == reader.connection.address_bytes
        assert int(answer.ext_fields["msgId"][16:], 16) == record.offset
        assert int(answer.ext_fields["queueOffset"]) == record.queue_offset
        assert int(answer.ext_fields["queueId"]) == record.queue_id
    assert len({each.born_host for each in found}) == COUNT and len(found[2].born_host) == 20
    assert all(reader.connection.collected is None for reader in busy.readers)
    busy.broker.tick()
    assert busy.broker.store.confirm_offset == busy.broker.store.commit_log.max_offset


@pytest.mark.parametrize("waits", [False, True])
async def test_the_answers_to_one_read_leave_in_one_write(
    busy: Clients, counted: Counted, waits: bool
) -> None:
    busy.broker.gate.wait = waits
    busy.read([b"".join(send_frame(10 * n + m, b"%d%d" % (n, m)) for m in range(3)) for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [3 * COUNT]
    busy.broker.replicated()
    assert [len(reader.transport.writes) for reader in busy.readers] == [1] * COUNT
    assert [[each.opaque for each in found] for found in busy.answers()] == [
        [10 * n + m for m in range(3)] for n in range(COUNT)
    ]
    assert stored(busy.broker) == [b"%d%d" % (n, m) for n in range(COUNT) for m in range(3)]


async def test_a_client_alone_never_waits_for_a_turn(clients: Clients, counted: Counted) -> None:
    for n in range(3 * FULL_TURN):
        clients.readers[0].read(send_frame(n))
        assert [each.opaque for each in clients.readers[0].answers()] == [n]
        clients.broker.tick()
    assert not clients.turn.is_on and counted.calls == []


async def test_a_turn_that_is_not_full_is_the_last_one(busy: Clients, counted: Counted) -> None:
    busy.read([send_frame(n) for n in range(FULL_TURN)])
    busy.broker.tick()
    assert busy.turn.is_on
    busy.read([send_frame(n) for n in range(FULL_TURN - 1)])
    busy.broker.tick()
    assert not busy.turn.is_on and counted.calls == [FULL_TURN, FULL_TURN - 1]
    busy.answers()
    busy.readers[0].read(send_frame(50))
    assert [each.opaque for each in busy.readers[0].answers()] == [50]


async def test_a_batch_of_one_client_is_no_turn(clients: Clients) -> None:
    clients.readers[0].read(b"".join(send_frame(n) for n in range(4 * FULL_TURN)))
    clients.broker.tick()
    assert not clients.turn.is_on


@pytest.mark.parametrize("slow_path_frame", SLOW_PATH_FRAMES, ids=range(len(SLOW_PATH_FRAMES)))
@pytest.mark.parametrize("place", [0, 4, COUNT - 1])
async def test_what_is_not_plain_has_its_own_answer(
    tmp_path: Path, busy: Clients, slow_path_frame: bytes, place: int
) -> None:
    """And the others theirs."""
    alone = Clients(begun(tmp_path / "alone"))
    frames = [slow_path_frame if n == place else send_frame(n, b"%d" % n) for n in range(COUNT)]
    busy.read(frames)
    busy.broker.tick()
    alone.full_turn()
    alone.turn.is_on = False
    alone.read(frames)
    found, expected = busy.answers(), alone.answers()
    assert [[(each.opaque, each.code, each.remark) for each in answers] for answers in found] == [
        [(each.opaque, each.code, each.remark) for each in answers] for answers in expected
    ]
    assert sorted(stored(busy.broker)) == sorted(stored(alone.broker))
    alone.broker.store.close()


async def test_turns_with_many_slow_path_frames(busy: Clients, counted: Counted) -> None:
    """Each run of plain ones is stored together, if it is long enough."""
    delayed = "DELAY\x013\x02UNIQ_KEY\x01D"
    busy.read([send_frame(n, b"%d" % n, **({"i": delayed} if n in (0, 5) else {})) for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [4]
    assert [each.code for each in busy.one_each()] == [0] * COUNT
    assert stored(busy.broker) == [b"%d" % n for n in range(COUNT)]


async def test_those_that_wait_and_those_that_do_not(busy: Clients, counted: Counted) -> None:
    busy.broker.gate.wait = True
    no_wait = {"i": "UNIQ_KEY\x01K\x02WAIT\x01false"}
    busy.read([send_frame(n, b"%d" % n, **(no_wait if n == 4 else {})) for n in range(COUNT)])
    busy.broker.tick()
    assert stored(busy.broker) == [b"%d" % n for n in range(COUNT)]
    assert [[each.opaque for each in answers] for answers in busy.answers()] == [
        [4] if n == 4 else [] for n in range(COUNT)
    ]
    assert len(busy.broker.pending) == COUNT - 1
    busy.broker.replicated()
    assert [[each.opaque for each in answers] for answers in busy.answers()] == [
        [] if n == 4 else [n] for n in range(COUNT)
    ]


async def test_producers_that_do_not_wait(busy: Clients, counted: Counted) -> None:
    busy.broker.gate.wait = True
    busy.read([send_frame(n, i="UNIQ_KEY\x01K\x02WAIT\x01false") for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [COUNT] and len(busy.broker.pending) == 0
    assert [each.code for each in busy.one_each()] == [0] * COUNT


async def test_oneway_ones_are_stored_and_not_answered(busy: Clients, counted: Counted) -> None:
    busy.read([send_frame(n, b"%d" % n, flag=2 * (n % 2)) for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [COUNT] and len(stored(busy.broker)) == COUNT
    found = busy.answers()
    assert [[each.opaque for each in answers] for answers in found] == [
        [] if n % 2 else [n] for n in range(COUNT)
    ]
    assert [each.ext_fields["queueOffset"] for answers in found for each in answers] == [
        str(COUNT + n) for n in range(0, COUNT, 2)
    ]


async def test_replies_wait_for_the_replicas(busy: Clients) -> None:
    busy.broker.gate.wait = True
    busy.read([send_frame(n, flag=2 if n == 1 else 0) for n in range(COUNT)])
    busy.broker.tick()
    assert busy.answers() == [[]] * COUNT and len(busy.broker.pending) == COUNT - 1
    busy.broker.replicated()
    assert [len(each) for each in busy.answers()] == [1, 0, *[1] * (COUNT - 2)]
    assert len(busy.broker.pending) == 0


async def test_each_is_told_when_it_was_in_vain(busy: Clients) -> None:
    busy.broker.gate.wait = True
    busy.read([send_frame(n) for n in range(COUNT)])
    busy.broker.tick()
    assert busy.broker.pending.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, "role change") == COUNT
    answers = busy.one_each()
    assert [(each.opaque, each.code) for each in answers] == [(n, 12) for n in range(COUNT)]
    assert len({each.ext_fields["msgId"] for each in answers}) == COUNT


async def test_no_more_than_may_wait(tmp_path: Path) -> None:
    clients = Clients(begun(tmp_path, pending_max=5))
    clients.full_turn()
    clients.broker.gate.wait = True
    clients.read([send_frame(n) for n in range(COUNT)])
    clients.broker.tick()
    answered = {n: each.code for n, answers in enumerate(clients.answers()) for each in answers}
    assert answered == dict.fromkeys(range(5, COUNT), ResponseCode.SYSTEM_BUSY)
    assert len(clients.broker.pending) == 5


async def test_a_closed_gate_tells_each(busy: Clients, counted: Counted) -> None:
    busy.broker.gate.close(DISK, "no room")
    busy.read([send_frame(n) for n in range(COUNT)])
    busy.broker.tick()
    assert [each.code for each in busy.one_each()] == [ResponseCode.SERVICE_NOT_AVAILABLE] * COUNT
    assert counted.calls == [] and stored(busy.broker) == []


async def test_a_master_that_is_cut_off_stores_nothing(busy: Clients, counted: Counted) -> None:
    busy.broker.tick()
    busy.read([send_frame(n) for n in range(COUNT)])
    busy.broker.gate.lease = lambda now_ms: True  # it ends while they are collected
    busy.broker.tick()
    assert [each.code for each in busy.one_each()] == [ResponseCode.SERVICE_NOT_AVAILABLE] * COUNT
    assert counted.calls == [] and stored(busy.broker) == []


async def test_not_every_short_run_is_a_reason_to_begin_again(busy: Clients, counted: Counted) -> None:
    """Every second message waits for replicas, so no two of them are stored together."""
    waits = ["UNIQ_KEY\x01K\x02WAIT\x01true", "UNIQ_KEY\x01K\x02WAIT\x01false"]
    busy.read([send_frame(n, b"%d" % n, i=waits[n % 2]) for n in range(COUNT)])
    busy.broker.tick()
    assert [each.code for each in busy.one_each()] == [0] * COUNT
    assert stored(busy.broker) == [b"%d" % n for n in range(COUNT)]
    assert counted.calls == [1, 1]


async def test_a_number_out_of_its_field_harms_nobody_else(busy: Clients, counted: Counted) -> None:
    busy.read([send_frame(n, b"%d" % n, h=str(2**40 if n > 4 else 0)) for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [5]
    assert [each.code for each in busy.one_each()] == [0] * 5 + [ResponseCode.MESSAGE_ILLEGAL] * 3
    assert stored(busy.broker) == [b"%d" % n for n in range(5)]


async def test_the_end_of_a_file(tmp_path: Path, counted: Counted) -> None:
    """The rest of it is too small for all of them, and each finds its place."""
    clients = Clients(begun(tmp_path))
    clients.full_turn()
    bodies = [[b"%d %d" % (turn, n) + bytes(15_000) for n in range(COUNT)] for turn in range(12)]
    for turn in bodies:
        clients.read([send_frame(n, body) for n, body in enumerate(turn)])
        clients.broker.tick()
        assert [each.code for each in clients.one_each()] == [0] * COUNT
    assert 0 in counted.calls and COUNT in counted.calls
    clients.broker.tick()
    assert clients.broker.store.commit_log.max_offset > 1 << 20
    crash(clients.broker.store)
    again = open_store(tmp_path, commit_log_file_bytes=1 << 20)
    assert again.max_queue_offset("TopicA", 0) == COUNT * 13


# -- the order of one connection's requests ----------------------------------------------------------------


@pytest.mark.parametrize(
    "then",
    [
        request_frame(999, 50, {}),
        request_frame(320, 50, {"b": "NoSuchTopic"}),
        request_frame(10, 50, {"topic": "NoSuchTopic"}),
        b"".join(send_frame(50 + n, b"later %d" % n) for n in range(6)),
    ],
    ids=["another", "batch", "v1", "read"],
)
@pytest.mark.parametrize("in_one_read", [True, False])
async def test_a_later_request_waits_for_the_collected_one(
    busy: Clients, then: bytes, in_one_read: bool
) -> None:
    if in_one_read and b"later" in then:
        return  # such a read is a batch by itself
    reader = busy.readers[0]
    if in_one_read:
        reader.read(send_frame(1, b"one") + then)
    else:
        reader.read(send_frame(1, b"one"))
        assert reader.answers() == []
        reader.read(then)
    busy.broker.tick()
    found = reader.answers()
    assert [each.opaque for each in found[:2]] == [1, 50] and found[0].code == 0
    assert stored(busy.broker)[0] == b"one"


async def test_two_codes(busy: Clients) -> None:
    """Code 10 has a turn of its own."""
    frames = [
        request_frame(10, n, V1_FIELDS, b"%d" % n) if n % 2 else send_frame(n, b"%d" % n)
        for n in range(COUNT)
    ]
    busy.read(frames)
    busy.read([send_frame(20 + n, b"%d" % (20 + n)) for n in range(COUNT)])
    busy.broker.tick()
    busy.broker.tick()
    answers = busy.answers()
    assert [[(each.opaque, each.code) for each in found] for found in answers] == [
        [(n, 0), (20 + n, 0)] for n in range(COUNT)
    ]
    order = stored(busy.broker)
    assert len(order) == 2 * COUNT
    assert all(order.index(b"%d" % n) < order.index(b"%d" % (20 + n)) for n in range(COUNT))


async def test_a_frame_that_has_only_begun(busy: Clients) -> None:
    last = send_frame(50, b"last")
    busy.read([send_frame(n) + last[: 10 * n] for n in range(COUNT)])
    busy.broker.tick()
    assert [each.opaque for each in busy.one_each()] == list(range(COUNT))
    busy.read([last[10 * n :] for n in range(COUNT)])
    busy.broker.tick()
    assert [each.opaque for each in busy.one_each()] == [50] * COUNT


# -- connections that end, bounds, faults ------------------------------------------------------------------


async def test_a_connection_that_is_closed_here_gets_its_answer(busy: Clients) -> None:
    busy.read([send_frame(n, b"%d" % n) for n in range(COUNT)])
    busy.readers[0].connection.close()
    assert busy.readers[0].transport.closed
    assert [each.code for each in busy.one_each()] == [0] * COUNT
    busy.broker.tick()
    assert stored(busy.broker) == [b"%d" % n for n in range(COUNT)]


async def test_a_connection_that_is_lost_has_stored_its_message(busy: Clients) -> None:
    busy.read([send_frame(n, b"%d" % n) for n in range(COUNT)])
    busy.readers[0].transport.closed = True
    busy.readers[0].connection.connection_lost(None)
    assert stored(busy.broker) == [b"%d" % n for n in range(COUNT)]
    assert [[each.code for each in found] for found in busy.answers()] == [[], *[[0]] * (COUNT - 1)]
    busy.broker.tick()
    assert len(stored(busy.broker)) == COUNT


async def test_a_connection_that_is_aborted_meanwhile(busy: Clients) -> None:
    busy.read([send_frame(n, b"%d" % n) for n in range(COUNT)])
    busy.readers[0].connection.abort()
    busy.broker.tick()
    assert [[each.code for each in found] for found in busy.answers()] == [[], *[[0]] * (COUNT - 1)]


_BAD = b'{"code":310,"never ends'
GARBAGE = (4 + len(_BAD)).to_bytes(4, "big") + len(_BAD).to_bytes(4, "big") + _BAD


async def test_garbage_closes_its_own_connection(busy: Clients, caplog: pytest.LogCaptureFixture) -> None:
    busy.read([GARBAGE if n == 3 else send_frame(n) for n in range(COUNT)])
    busy.broker.tick()
    assert [reader.transport.closed for reader in busy.readers] == [n == 3 for n in range(COUNT)]
    assert [len(found) for found in busy.answers()] == [n != 3 for n in range(COUNT)]
    assert "closed 10.0.0.3" in caplog.text


@pytest.mark.parametrize("in_one_read", [True, False])
@pytest.mark.parametrize(
    "then",
    [
        request_frame(999, 50, {}),
        send_frame(50, b"later", i="UNIQ_KEY\x01K\x02K\x01" + "x" * 20_000),
        b"".join(send_frame(50 + n, b"later") for n in range(6)),
    ],
    ids=["another", "long", "read"],
)
async def test_what_follows_garbage_is_not_served(busy: Clients, then: bytes, in_one_read: bool) -> None:
    """And what came before it is answered."""
    if in_one_read and then.count(b"later") > 1:
        return  # such a read is a batch by itself
    reader = busy.readers[0]
    before = send_frame(1, b"before") + GARBAGE
    for data in [before + then] if in_one_read else [before, then]:
        reader.read(data)
    busy.broker.tick()
    assert reader.transport.closed
    assert [(each.opaque, each.code) for each in reader.answers()] == [(1, 0)]
    assert stored(busy.broker) == [b"before"]


@pytest.mark.parametrize("others", [0, COUNT - 1])
@pytest.mark.parametrize("after", [1, 4])
async def test_what_follows_garbage_in_a_turn_is_not_served(busy: Clients, others: int, after: int) -> None:
    """However many there are, of its connection or of others, which are served."""
    behind = b"".join(send_frame(20 + n, b"behind") for n in range(after))
    busy.read([GARBAGE + behind, *(send_frame(n, b"%d" % n) for n in range(others))])
    busy.broker.tick()
    assert [len(found) for found in busy.answers()] == [0] + [1] * others + [0] * (COUNT - 1 - others)
    assert stored(busy.broker) == [b"%d" % n for n in range(others)]


@pytest.mark.parametrize("count", [3, 5])
async def test_what_an_aborted_connection_has_sent_is_served(busy: Clients, count: int) -> None:
    """It may have been oneway, and a connection is aborted for what others do, too."""
    busy.readers[0].read(b"".join(send_frame(n, b"%d" % n, flag=2) for n in range(count)))
    busy.readers[0].connection.abort()
    busy.broker.tick()
    assert stored(busy.broker) == [b"%d" % n for n in range(count)]


async def test_full_before_the_turn_is_over(
    busy: Clients, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelmq.remoting.turn_requests.COLLECTED_MAX", 5)
    busy.read([send_frame(n) for n in range(COUNT)])
    assert counted.calls == [5]
    busy.broker.tick()
    assert counted.calls == [5] and busy.turn.is_on, "three are served alone, and the turn was full"
    assert [each.code for each in busy.one_each()] == [0] * COUNT


@pytest.mark.parametrize("part", ["body", "header"])
async def test_a_long_request_is_not_kept(busy: Clients, counted: Counted, part: str) -> None:
    size = 20_000
    long = send_frame(5, b"5", i="UNIQ_KEY\x01K\x02K\x01" + "x" * size)
    if part == "body":
        long = send_frame(5, b"5" + bytes(size))
    busy.read([long if n == 5 else send_frame(n, b"%d" % n) for n in range(COUNT)])
    assert counted.calls == [6]
    busy.broker.tick()
    assert [each.code for each in busy.one_each()] == [0] * COUNT
    assert [int(each[:1]) for each in stored(busy.broker)] == list(range(COUNT))


async def test_a_handler_that_fails_answers_each(
    busy: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether they are stored is not known: none of them is tried again."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(BatchedPut, "put", broken)
    busy.read([send_frame(n, flag=2 if n == 1 else 0) for n in range(COUNT)])
    busy.broker.tick()
    assert [[(each.opaque, each.code) for each in found] for found in busy.answers()] == [
        [] if n == 1 else [(n, 1)] for n in range(COUNT)
    ]
    assert "broken" in caplog.text and stored(busy.broker) == []


async def test_a_fault_ends_one_connection(
    busy: Clients, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr("keelmq.remoting.dispatch.Dispatcher.request", broken)
    busy.read([send_frame(n, e="01" if n == 3 else "0") for n in range(COUNT)])  # "01": the lenient way
    busy.broker.tick()
    assert [reader.transport.closed for reader in busy.readers] == [n == 3 for n in range(COUNT)]
    assert [len(found) for found in busy.answers()] == [n != 3 for n in range(COUNT)]
    assert "broken" in caplog.text and busy.turn.is_on


async def test_a_failed_run_with_a_header_that_only_the_fast_path_reads(
    busy: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its flag has more than 32 bits, so that it cannot be answered: its connection is closed, by itself."""

    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(BatchedPut, "put", broken)
    busy.read([send_frame(n, flag=2**40 if n == 3 else 0) for n in range(COUNT)])
    busy.readers[0].connection.close()
    assert [[each.code for each in found] for found in busy.answers()] == [
        [] if n == 3 else [1] for n in range(COUNT)
    ]
    assert [reader.transport.closed for reader in busy.readers] == [n in (0, 3) for n in range(COUNT)]


async def test_a_batch_of_a_client_is_no_turn(clients: Clients) -> None:
    """Code 320: many messages, and one request."""
    item = bytes.fromhex("00000017 00000000 00000000 00000000 00000001 78 0000")
    clients.readers[0].read(request_frame(320, 1, SEND_FIELDS | {"m": "true"}, item * (2 * FULL_TURN)))
    clients.broker.tick()
    assert len(stored(clients.broker)) == 2 * FULL_TURN and not clients.turn.is_on


async def test_keys_that_are_missing(busy: Clients, counted: Counted) -> None:
    busy.read([send_frame(n, i="") for n in range(COUNT)])
    busy.broker.tick()
    assert counted.calls == [COUNT]
    assert len({by_opaque([each])[each.opaque].ext_fields["transactionId"] for each in busy.one_each()}) == 8


@pytest.mark.parametrize("code", [310, 10])
async def test_latencies_are_counted(busy: Clients, code: int) -> None:
    def answered() -> int:
        found = busy.broker.pending.latency.histograms
        return sum(sum(each.counts) for answers, each in found.items() if answers.request_code == code)

    before = answered()
    fields = V1_FIELDS if code == 10 else SEND_FIELDS
    busy.read([request_frame(code, n, fields) for n in range(COUNT)])
    busy.broker.tick()
    busy.broker.tick()
    assert answered() - before == COUNT
