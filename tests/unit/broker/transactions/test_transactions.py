"""Transactions: what is stored (as RocketMQ stores it), how they end, how producers are asked, a new term."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.admission.send_gate import ROLE
from broker.config.client_settings import ClientSettings
from broker.message.record import PROPERTIES_BYTES_MAX, Record, decode, offset_message_id, parse_properties
from broker.transactions import service
from broker.transactions.core.state import End
from broker.transactions.handlers import EndTransactionHandler
from broker.transactions.messages import GIVEN_UP_TOPIC, GROUP, HALF_TOPIC, OP_TOPIC, ended_by
from broker.transactions.service import ABSENT_MS, BATCH_MAX, COPY_PERIOD_MS, TransactionService
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.command import decode as decode_frame
from keelmq.runtime.clock import wall_ms
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import open_metadata
from tests.support.store_parts import FakePeer, crash
from tests.unit.broker.message.test_record import RECORDS

FIXTURES = Path(__file__).parents[3] / "fixtures"
TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000
HALF = "TAGS\x01TagTx\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K"


class Scene:
    """A master with its transactions, and a producer; virtual time from now on."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.broker = Broker(path)
        self.metadata = open_metadata(path / "metadata")
        self.metadata.gate = self.broker.gate
        self.settings = ClientSettings.model_validate(settings)
        self.now = wall_ms()
        self.producers: list[FakePeer] = [FakePeer(7)]
        self.transactions = self.another()
        self.restart()

    def another(self) -> TransactionService:
        return TransactionService(
            self.broker.store,
            self.metadata,
            self.broker.writer,
            settings=self.settings,
            broker_name="b",
            find_producer=lambda group, _: self.producers[0] if group == "P" and self.producers else None,
            give_up_after_ms=72 * 3_600_000,
            clock=lambda: self.now,
        )

    def restart(self) -> None:
        """A new master of the same log: it knows what the log and the offsets say."""
        self.transactions = self.broker.context.transactional_messages = self.another()
        parts = self.broker.context
        self.handler = EndTransactionHandler(parts, self.broker.writer, self.transactions)
        self.broker.table.handlers.pop(37, None)
        self.broker.table.handlers.pop(323, None)
        self.handler.bind(self.broker.table)
        self.run()

    def run(self, more_ms: int = 0) -> None:
        self.now += more_ms
        for _ in range(4):
            while self.transactions.round():
                pass
            self.broker.tick()
            self.broker.store.flush()
        self.transactions.state.check_invariants()

    def half(self, body: bytes = b"half", properties: str = HALF, **changed: Any) -> Record:
        born = str(self.now) if "g" not in changed else changed["g"]
        reply = self.broker.send(body, i=properties, f="4", **(changed | {"g": born}))
        assert reply is not None and reply.code == 0, reply
        record = self.records(HALF_TOPIC.name)[-1]
        assert reply.ext_fields["queueOffset"] == str(record.queue_offset)
        return record

    async def end(self, half: Record, decision: int = 8, **changed: object) -> RemotingCommand | None:
        fields: dict[str, object] = {
            "topic": "TopicA", "producerGroup": "P", "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.offset, "commitOrRollback": decision, "fromTransactionCheck": "0",
            "msgId": "K", "transactionId": "K",
        }  # fmt: skip
        ext = {key: str(value) for key, value in (fields | changed).items()}
        raw = await self.broker.dispatcher.answer(RemotingCommand(37, 9, 0, None, ext), FakePeer())
        return None if raw is None else decode_frame(raw[4:])

    def records(self, topic: str = "TopicA", queue_id: int = 0) -> list[Record]:
        self.broker.tick()
        queue = self.broker.store.find_queue(topic, queue_id)
        units = [queue.unit(at) for at in range(queue.min_offset, queue.max_offset)] if queue else []
        return [decode(self.broker.store.commit_log.view(offset, size)) for offset, size, _ in units]

    def bodies(self, topic: str = "TopicA", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    def questions(self) -> list[RemotingCommand]:
        raw, found = b"".join(self.producers[0].sent), []
        self.producers[0].sent.clear()
        while raw:
            size = 4 + int.from_bytes(raw[:4], "big")
            found.append(decode_frame(raw[4:size]))
            raw = raw[size:]
        return found

    def offsets(self) -> tuple[int, int]:
        query = self.metadata.offsets.query
        return query(GROUP, HALF_TOPIC.name, 0), query(GROUP, OP_TOPIC.name, 0)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def captured(topic: str) -> list[Record]:
    return [record for _, record in RECORDS if record.topic == topic]


# -- what is stored ----------------------------------------------------------------------------------------


async def test_records_are_those_of_rocketmq(scene: Scene) -> None:
    """A commit and a rollback, captured: the half, the committed and the op record have the same fields, and
    the same properties but for their order."""
    their_half, their_end = captured(HALF_TOPIC.name)[0], captured(OP_TOPIC.name)[0]
    (their_commit,) = [record for _, record in RECORDS if record.prepared_offset][:1]
    sent = {
        key: value
        for key, value in parse_properties(their_half.properties).items()
        if key not in ("REAL_TOPIC", "REAL_QID", "__transactionId__", "MSG_REGION", "TRACE_ON", "CLUSTER")
    }
    text = "\x02".join(f"{key}\x01{value}" for key, value in sent.items())
    half = scene.half(b"tx commit", text)
    changed = {"REAL_TOPIC": "TopicA", "CLUSTER": "c"}
    assert parse_properties(half.properties) == parse_properties(their_half.properties) | changed
    assert (half.sys_flag, half.queue_id, half.prepared_offset) == (
        their_half.sys_flag,
        their_half.queue_id,
        0,
    )
    assert scene.bodies() == [], "nobody sees it"
    reply = await scene.end(half, producerGroup="FxTxProducer")
    assert reply is not None and reply.code == 0
    (committed,) = scene.records()
    assert committed.properties == half.properties and their_commit.properties == their_half.properties
    assert (committed.sys_flag, committed.body) == (their_commit.sys_flag, their_commit.body)
    assert committed.prepared_offset == half.offset and their_commit.prepared_offset == their_half.offset
    (op,) = scene.records(OP_TOPIC.name)
    assert op.properties == their_end.properties and op.body == b"0,"
    assert ended_by(their_end.body) == [0, 1]


def test_op_records_of_all_versions() -> None:
    assert ended_by(b"7") == [7] == ended_by(b"7,")
    assert ended_by(b"1,22,x,,-3,4") == [1, 22, 4]


async def test_a_captured_request_is_read(scene: Scene) -> None:
    raw = (FIXTURES / "frames" / "37-end-transaction-producer.req.bin").read_bytes()
    command = decode_frame(raw[4:])
    assert await scene.broker.dispatcher.answer(command, FakePeer()) is None, "oneway"


@pytest.mark.parametrize("lenient", [False, True])
def test_who_may_begin_none(scene: Scene, tmp_path: Path, lenient: bool) -> None:
    refused: list[tuple[dict[str, Any], int]] = [
        ({"i": "TRAN_MSG\x01true"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": HALF, "m": "true"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": HALF, "b": "RMQ_SYS_TRANS_HALF_TOPIC"}, ResponseCode.NO_PERMISSION),
        ({"i": HALF, "b": "rmq_sys_REVIVE_LOG_c"}, ResponseCode.NO_PERMISSION),
    ]
    for changed, code in refused:
        reply = scene.broker.send(lenient=lenient, **changed)
        assert reply is not None and reply.code == code, changed
    strict = Scene(tmp_path / "strict", rejectTransactionMessage="true")
    reply = strict.broker.send(lenient=lenient, i=HALF)
    assert reply is not None and reply.code == ResponseCode.NO_PERMISSION


def test_what_looks_like_a_transaction_and_is_none(scene: Scene) -> None:
    """A consumer sends a committed message back with all of its properties: a delayed retry."""
    reply = scene.broker.send(i=HALF + "\x02DELAY\x013", j="1", f="8")
    assert reply is not None and reply.code == 0
    assert scene.records(HALF_TOPIC.name) == [] and len(scene.records("SCHEDULE_TOPIC_XXXX", 2)) == 1


def test_a_client_cannot_name_another_transaction(scene: Scene) -> None:
    """TRAN_PREPARED_QUEUE_OFFSET of a client: the broker's own, of a message that is sent on."""
    first = scene.half(b"first")
    scene.half(b"second", HALF + "\x02TRAN_PREPARED_QUEUE_OFFSET\x010\x02TRANSACTION_CHECK_TIMES\x019")
    transaction_state = scene.transactions.state
    assert len(transaction_state) == 2 and transaction_state.find(first.queue_offset) is not None
    scene.restart()
    assert len(scene.transactions.state) == 2


# -- how it ends -------------------------------------------------------------------------------------------


async def test_each_ends_once(scene: Scene) -> None:
    """Repeated requests change nothing; another decision comes too late."""
    commit, roll_back = scene.half(b"commit", e="2"), scene.half(b"roll back")
    for _ in range(2):
        for half, decision in ((commit, 8), (roll_back, 12)):
            reply = await scene.end(half, decision)
            assert reply is not None and reply.code == 0
    for half, decision, word in ((commit, 12, "committed"), (roll_back, 8, "rolled back")):
        reply = await scene.end(half, decision)
        assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
        assert word in (reply.remark or "")
    assert scene.bodies("TopicA", 2) == [b"commit"] and scene.bodies() == []
    ended = scene.transactions.ended
    assert ended == {(End.COMMITTED, "TopicA"): 1, (End.ROLLED_BACK, "TopicA"): 1}
    assert sum(scene.transactions.commit_times["TopicA"].counts) == 1, "a rollback is not timed"
    assert scene.bodies(OP_TOPIC.name) == [b"0,", b"1,"]
    scene.run()
    assert scene.offsets() == (2, 2)
    scene.restart()
    reply = await scene.end(commit)
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert "long ago" in (reply.remark or "") and len(scene.records("TopicA", 2)) == 1


async def test_a_producer_that_does_not_know_yet(scene: Scene) -> None:
    half = scene.half()
    for decision, code in ((0, 0), (7, ResponseCode.SYSTEM_ERROR)):
        reply = await scene.end(half, decision)
        assert reply is not None and reply.code == code
    assert len(scene.transactions.state) == 1


async def test_a_slave_that_knows_no_master_ends_nothing(scene: Scene) -> None:
    """A client is told what RocketMQ's slaves say; a broker that forwards it, what it can wait for."""
    half = scene.half()
    scene.broker.gate.close(ROLE, "slave")
    for more, code in (({}, ResponseCode.SLAVE_NOT_AVAILABLE), ({"forwarded": "true"}, ResponseCode(14))):
        reply = await scene.end(half, 8, **more)
        assert reply is not None and reply.code == code
    assert len(scene.transactions.state) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"tranStateTableOffset": 5},
        {"commitLogOffset": 1},
        {"commitLogOffset": -1},
        {"commitLogOffset": 1 << 40},
        {"producerGroup": "Q"},
    ],
)
async def test_what_does_not_fit_ends_nothing(scene: Scene, changed: dict[str, object]) -> None:
    reply = await scene.end(scene.half(), 8, **changed)
    assert reply is not None and reply.code == ResponseCode.SYSTEM_ERROR
    assert scene.bodies() == [] and len(scene.transactions.state) == 1


async def test_the_answer_waits_for_replicas(scene: Scene) -> None:
    scene.broker.gate.wait = True
    assert scene.broker.send(i=HALF, f="4") is None
    scene.broker.replicated()
    (answer,) = scene.broker.answers()
    assert answer.code == 0
    half = scene.records(HALF_TOPIC.name)[0]
    assert await scene.end(half) is None and len(scene.broker.pending) == 1
    scene.broker.replicated()
    assert scene.bodies() == [b"body"] and len(scene.broker.pending) == 0


async def test_an_op_record_that_finds_no_room_is_written_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    half, put = scene.half(), scene.broker.store.put

    def full(topic: object, *args: object, **more: object) -> tuple[int, int, int]:
        if topic is OP_TOPIC:
            raise OSError(28, "full")
        return put(topic, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(scene.broker.store, "put", full)
    reply = await scene.end(half)
    assert reply is not None and reply.code == 0 and scene.bodies() == [b"half"]
    assert scene.records(OP_TOPIC.name) == []
    scene.broker.gate.close("disk-full", "the disk is full")  # the same term goes on after it
    scene.run()
    monkeypatch.undo()
    scene.broker.gate.open("disk-full")
    scene.run()
    assert scene.bodies(OP_TOPIC.name) == [b"0,"] and len(scene.transactions.state) == 0


# -- questions ---------------------------------------------------------------------------------------------


async def test_a_producer_is_asked(scene: Scene) -> None:
    """The question shows the message as it was sent, and names the copy; the answer ends the transaction."""
    half = scene.half(b"body", e="3")
    scene.run(TIMEOUT_MS)
    assert scene.questions() == [], "of exactly transactionTimeOut (broker-ops pitfall 5)"
    scene.run(1)
    (question,) = scene.questions()
    copy = scene.records(HALF_TOPIC.name)[1]
    assert question.code == 39 and question.flag & 2
    assert question.ext_fields == {
        "topic": "TopicA", "tranStateTableOffset": "1", "commitLogOffset": str(copy.offset), "msgId": "K",
        "transactionId": "K", "bname": "b", "offsetMsgId": f"7F00000100002A9F{copy.offset:016X}",
    }  # fmt: skip
    seen = decode(question.body)
    assert (seen.topic, seen.queue_id, seen.body) == ("TopicA", 3, b"body")
    assert (seen.born_timestamp, seen.born_host) == (half.born_timestamp, half.born_host)
    properties = parse_properties(copy.properties)
    assert (properties["TRANSACTION_CHECK_TIMES"], properties["TRAN_PREPARED_QUEUE_OFFSET"]) == ("1", "0")
    scene.run(INTERVAL_MS - 1_000)
    assert scene.questions() == [], "transactionCheckInterval"
    reply = await scene.end(copy)
    assert reply is not None and reply.code == 0
    assert scene.bodies("TopicA", 3) == [b"body"] and scene.bodies(OP_TOPIC.name) == [b"1,"]
    scene.run(10 * INTERVAL_MS)
    assert scene.questions() == [] and scene.offsets() == (2, 1)


async def test_a_decision_that_crosses_the_question(scene: Scene) -> None:
    """Pitfalls 4 and 5 of broker-ops: the producer names the first copy, and is not asked again."""
    half = scene.half()
    scene.run(TIMEOUT_MS + 1)
    assert len(scene.questions()) == 1
    reply = await scene.end(half)
    assert reply is not None and reply.code == 0
    (copy,) = scene.records(HALF_TOPIC.name)[1:]
    reply = await scene.end(copy)
    assert reply is not None and reply.code == 0 and len(scene.records()) == 1, "once"
    scene.restart()
    scene.run(10 * INTERVAL_MS)
    assert scene.questions() == [] and len(scene.transactions.state) == 0


def test_the_producer_s_own_patience(scene: Scene) -> None:
    """CHECK_IMMUNITY_TIME_IN_SECONDS, longer and shorter than the broker's. Whoever is exactly so old is not
    asked yet (broker-ops pitfall 5)."""
    scene.half(b"long", HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160")
    scene.half(b"short", HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x012")
    scene.run(2_000)
    assert scene.questions() == []
    scene.run(1)
    assert [decode(each.body).body for each in scene.questions()] == [b"short"]
    scene.run(58_000)
    assert [decode(each.body).body for each in scene.questions()] == [b"short", b"long"]


def test_a_clock_that_is_ahead_does_not_wait_longer(scene: Scene) -> None:
    scene.half(g=str(scene.now + 10_000_000))
    scene.run(TIMEOUT_MS + 1_000)
    assert len(scene.questions()) == 1


async def test_a_clock_that_is_far_behind_has_the_usual_time_to_decide(scene: Scene) -> None:
    in_time = scene.half(b"in time", g="1")
    scene.half(b"never", g="1")
    scene.run(TIMEOUT_MS)
    assert scene.bodies(GIVEN_UP_TOPIC) == []
    reply = await scene.end(in_time)
    assert reply is not None and reply.code == 0 and scene.bodies() == [b"in time"]
    scene.producers = []
    scene.run(COPY_PERIOD_MS)
    scene.run(INTERVAL_MS)
    assert scene.bodies(GIVEN_UP_TOPIC) == [b"never"]


@pytest.mark.parametrize("seconds", [73 * 3_600, 9_999_999_999, 10**17])
def test_no_patience_is_longer_than_the_log_is_kept(scene: Scene, seconds: int) -> None:
    scene.half(b"patient", HALF + f"\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{seconds}")
    scene.run(72 * 3_600_000)
    assert scene.bodies(GIVEN_UP_TOPIC) == [] and len(scene.transactions.state) == 1
    scene.run(1)
    assert scene.bodies(GIVEN_UP_TOPIC) == [b"patient"] and scene.questions() == []
    assert len(scene.transactions.state) == 0


@pytest.mark.slow
@pytest.mark.parametrize("ahead_ms", [0, 10**12])
async def test_a_patient_one_holds_no_others_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    """The next master reads little. It is asked when it wanted to be, by whoever is master then, and given up
    by its age: its copies make it no younger, also if its producer's clock is ahead."""
    monkeypatch.setattr(service, "ENDED_BEHIND_OPEN_MAX", 20)
    patience = HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400"
    scene.half(b"patient", patience, g=str(scene.now + ahead_ms))
    for _ in range(200):
        assert (await scene.end(scene.half(b"quick"))) is not None
        scene.run()
    halves, ops = len(scene.records(HALF_TOPIC.name)), len(scene.records(OP_TOPIC.name))
    half_at, op_at = scene.offsets()
    assert halves - half_at <= 25 and ops - op_at <= 25
    assert halves < 215, "a copy for each twenty others"
    first, *copies = [each for each in scene.records(HALF_TOPIC.name) if each.body == b"patient"]
    assert copies and all(each.born_timestamp <= first.store_timestamp for each in copies)
    scene.restart()
    assert scene.transactions.state.find(0) is not None and len(scene.transactions.state) == 1
    scene.run(86_400_000 - 1_000)
    assert scene.questions() == []
    scene.run(INTERVAL_MS)
    (question,) = scene.questions()
    assert decode(question.body).body == b"patient"
    assert parse_properties(decode(question.body).properties)["TRANSACTION_CHECK_TIMES"] == "1"
    scene.producers = []
    scene.run(48 * 3_600_000)
    assert scene.bodies(GIVEN_UP_TOPIC) == [b"patient"]


def test_a_patient_one_is_asked_in_time_however_often_it_moved_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ENDED_BEHIND_OPEN_MAX", 0)
    scene.half(b"patient", HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160")
    for _ in range(6):
        for _ in range(5):
            scene.transactions.end(scene.half(b"quick"), End.COMMITTED)
        scene.run(10_000)
        assert scene.questions() == []
    scene.run(1)
    assert [decode(each.body).body for each in scene.questions()] == [b"patient"]


@pytest.mark.slow
def test_many_patient_ones_are_not_copied_for_each_other(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "ENDED_BEHIND_OPEN_MAX", 10)
    for number in range(100):
        scene.half(b"%d" % number, HALF + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0186400")
    scene.run()
    assert len(scene.records(HALF_TOPIC.name)) == 100
    for number in range(400):
        scene.transactions.end(scene.half(), End.ROLLED_BACK)
        if number % 10 == 0:
            scene.run()
    halves = len(scene.records(HALF_TOPIC.name))
    assert halves <= 2 * 500 and halves - scene.transactions.state.half_position <= 10 + 2 * 100
    scene.restart()
    assert len(scene.transactions.state) == 100


def test_nobody_decides(scene: Scene) -> None:
    """After transactionCheckMax questions the message is in TRANS_CHECK_MAX_TIME_TOPIC, once."""
    scene.half(b"lost")
    asked = 0
    for _ in range(20):
        scene.run(INTERVAL_MS)
        asked += len(scene.questions())
    assert asked == 15 and scene.bodies(GIVEN_UP_TOPIC) == [b"lost"]
    assert len(scene.transactions.state) == 0
    scene.restart()
    scene.run(INTERVAL_MS)
    assert scene.bodies(GIVEN_UP_TOPIC) == [b"lost"]
    assert scene.offsets()[0] == len(scene.records(HALF_TOPIC.name))


async def test_an_operator_gives_it_one_more_try(scene: Scene) -> None:
    """323: the producer is asked again, and its answer counts."""
    scene.half(b"lost")
    for _ in range(20):
        scene.run(INTERVAL_MS)
    scene.questions()
    (given_up,) = scene.records(GIVEN_UP_TOPIC)
    ids = (offset_message_id(given_up.store_host, given_up.offset), "0" * 32, "x", "z" * 32)
    for message_id, code in zip(ids, (0, 1, 1, 1), strict=True):
        ext = {"topic": "TopicA", "msgId": message_id}
        raw = await scene.broker.dispatcher.answer(RemotingCommand(323, 9, 0, None, ext), FakePeer())
        assert raw is not None and decode_frame(raw[4:]).code == code, message_id
    scene.run(INTERVAL_MS)
    (question,) = scene.questions()
    copy = scene.records(HALF_TOPIC.name)[-1]
    assert parse_properties(copy.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    reply = await scene.end(copy)
    assert reply is not None and reply.code == 0 and scene.bodies() == [b"lost"]
    assert decode(question.body).body == b"lost"


def test_without_a_producer_no_question_is_counted(scene: Scene) -> None:
    """After a switch producers take half a minute to be here, and are asked soon after. The copy moves on, so
    that the queues' beginnings can be forgotten."""
    scene.half()
    producers, scene.producers = scene.producers, []
    for _ in range(20):
        scene.run(COPY_PERIOD_MS)
    scene.producers = producers
    assert scene.questions() == [] and scene.bodies(GIVEN_UP_TOPIC) == []
    assert len(scene.records(HALF_TOPIC.name)) == 20 or len(scene.records(HALF_TOPIC.name)) == 21
    scene.run(ABSENT_MS)
    (question,) = scene.questions()
    assert parse_properties(decode(question.body).properties)["TRANSACTION_CHECK_TIMES"] == "1"
    scene.run()
    assert scene.offsets()[0] > 15
    scene.producers = []
    scene.run(72 * 3_600_000)
    assert len(scene.records(GIVEN_UP_TOPIC)) == 1, "older than the log is kept"


def test_an_absent_producer_costs_no_records_for_a_while(scene: Scene) -> None:
    scene.half()
    scene.producers = []
    for _ in range(40):
        scene.run(ABSENT_MS)
    assert len(scene.records(HALF_TOPIC.name)) == 1


@pytest.mark.parametrize("is_here", [True, False])
def test_one_that_cannot_be_copied_holds_no_others_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """Its UNIQ_KEY, which a half message has twice, leaves no room for the number of checks."""
    long = HALF + "K" * (PROPERTIES_BYTES_MAX // 2 - 83)
    reply = scene.broker.send(i=long, f="4", g=str(scene.now))
    assert reply is not None and reply.code == ResponseCode.MESSAGE_ILLEGAL
    monkeypatch.setattr("broker.handlers.scheduled_sends.COPY_ROOM_BYTES", 0)  # as RocketMQ stores them
    scene.half(b"long", long)
    monkeypatch.undo()
    scene.half(b"other")
    producers = scene.producers
    if not is_here:
        scene.producers = []
        scene.run(COPY_PERIOD_MS)
        scene.producers = producers
        scene.run(ABSENT_MS)
    scene.run(TIMEOUT_MS + 1)
    assert [decode(question.body).body for question in scene.questions()] == [b"other"]
    assert scene.bodies(GIVEN_UP_TOPIC) == [b"long"] and len(scene.transactions.state) == 1


# -- terms -------------------------------------------------------------------------------------------------


async def test_a_new_master_knows_what_is_open(scene: Scene) -> None:
    """Committed, rolled back, asked and untouched ones; its predecessor's offsets may be old."""
    halves = [scene.half(b"%d" % index) for index in range(6)]
    await scene.end(halves[0])
    scene.run(TIMEOUT_MS + 1)
    asked = {decode(each.body).body: each for each in scene.questions()}
    assert len(asked) == 5
    copies = {record.body: record for record in scene.records(HALF_TOPIC.name)[6:]}
    await scene.end(copies[b"1"], 12)
    await scene.end(copies[b"2"])
    young = scene.half(b"young")
    for forget in (False, True):
        if forget:  # nothing of the offsets was replicated
            scene.metadata.offsets.commit(GROUP, HALF_TOPIC.name, 0, 0)
            scene.metadata.offsets.commit(GROUP, OP_TOPIC.name, 0, 0)
        scene.restart()
        assert len(scene.transactions.state) == 4
        assert scene.transactions.state.half_position == copies[b"3"].queue_offset
    for record in (copies[b"3"], halves[4], copies[b"5"], young):
        reply = await scene.end(record)
        assert reply is not None and reply.code == 0
    assert scene.bodies() == [b"0", b"2", b"3", b"4", b"5", b"young"]
    scene.run()
    assert scene.offsets() == (len(scene.records(HALF_TOPIC.name)), len(scene.records(OP_TOPIC.name)))


async def test_a_crash_forgets_no_transaction(scene: Scene, tmp_path: Path) -> None:
    """kill -9: the store recovers, and the queues are read again."""
    for body in (b"committed", b"open"):
        half = scene.half(body)
    first = scene.records(HALF_TOPIC.name)[0]
    await scene.end(first)
    scene.run()
    scene.metadata.commit_staged()
    crash(scene.broker.store)
    again = Scene(tmp_path)
    again.broker.store.set_confirm_offset(again.broker.store.commit_log.max_offset)
    again.run()
    assert len(again.transactions.state) == 1
    again.run(TIMEOUT_MS + 1_000)
    (question,) = again.questions()
    assert decode(question.body).body == b"open"
    reply = await again.end(half)
    assert reply is not None and reply.code == 0 and again.bodies() == [b"committed", b"open"]


def test_offsets_follow_when_nothing_can_be_lost_any_more(scene: Scene) -> None:
    scene.run()
    half = scene.half()
    scene.broker.gate.wait = True  # from now on nothing is confirmed
    record = scene.transactions.end(half, End.ROLLED_BACK)
    assert isinstance(record, int) and record > 0
    scene.run()
    assert scene.offsets()[0] <= 0
    scene.broker.replicated()
    scene.run()
    assert scene.offsets() == (1, 1)


def test_halves_of_before_the_term_is_noticed(scene: Scene) -> None:
    scene.broker.gate.close(ROLE, "slave")
    scene.broker.store.become_slave()
    scene.run()
    assert not scene.transactions.is_ready
    scene.broker.store.become_master()
    scene.broker.gate.open(ROLE)
    scene.half(b"early")
    assert len(scene.transactions.state) == 0
    scene.run()
    assert len(scene.transactions.state) == 1


def test_halves_that_come_while_the_queues_are_read(scene: Scene) -> None:
    for _ in range(BATCH_MAX + 5):
        scene.half()
    scene.transactions = scene.broker.context.transactional_messages = scene.another()
    assert scene.transactions.round() and not scene.transactions.is_ready
    scene.broker.gate.wait = True  # the next one has no unit yet when the queues have been read
    assert scene.broker.send(b"late", i=HALF, f="4") is None
    while scene.transactions.round():
        pass
    assert scene.transactions.is_ready and len(scene.transactions.state) == BATCH_MAX + 6
    scene.transactions.state.check_invariants()


def test_a_death_of_the_task_costs_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.half()

    async def dies() -> None:
        await scene.transactions.run()

    def bug() -> bool:
        raise RuntimeError("bug")

    monkeypatch.setattr(scene.transactions, "round", bug)
    with pytest.raises(RuntimeError):
        step: Callable[[None], object] = dies().send
        step(None)
    monkeypatch.undo()
    assert not scene.transactions.is_ready
    scene.run()
    assert len(scene.transactions.state) == 1
