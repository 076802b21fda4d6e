"""Timer messages: what is stored (as RocketMQ stores it), when they go out, recalls, new terms, limits."""

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from broker.admin.runtime_info import RuntimeInfo
from broker.admission.send_gate import ROLE
from broker.config.client_settings import ClientSettings
from broker.message.delay_levels import TIMER_TOPIC
from broker.message.record import Record, decode, parse_properties
from broker.message.timer_properties import deliver_at, out_ms, parse_handle, recall_handle
from broker.metadata.offsets import DelayOffsetTable
from broker.metadata.timers import READ_MS, READ_OFFSET, TimerProgressTable
from broker.stats.service import BrokerStats
from broker.store.queue.consume_queue import UNIT_BYTES
from broker.timers import service
from broker.timers.handlers import TimerHandlers
from broker.timers.service import FIRST_OFFSET_PERIOD_MS, TimerService
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.command import decode as decode_frame
from keelmq.runtime.clock import wall_ms
from tests.support.batch_parts import item
from tests.support.handler_parts import Broker
from tests.support.metadata_parts import open_metadata
from tests.support.store_parts import FakePeer, crash, open_store
from tests.unit.broker.message.test_record import RECORDS

FIXTURES = Path(__file__).parents[3] / "fixtures"
PRECISION_MS = 1_000


class Scene:
    """A master with its timers; virtual time for what goes out."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path, self.broker = path, Broker(path)
        self.metadata = open_metadata(path / "metadata")
        self.metadata.gate = self.broker.gate
        self.settings = ClientSettings.model_validate({"recallMessageEnable": True} | settings)
        self.broker.context.settings = self.settings
        self.broker.context.broker_name = "b"
        self.now = wall_ms()
        self.restart()
        writer = self.broker.writer
        TimerHandlers(self.broker.context, writer, self.metadata.timers).bind(self.broker.table)

    def restart(self) -> None:
        """A new master of the same log: it knows what the log and the progress say."""
        writer = self.broker.writer
        self.timers = self.broker.context.timers = TimerService(
            self.broker.store, self.metadata, writer, settings=self.settings, clock=lambda: self.now
        )
        self.run()

    def run(self, more_ms: int = 0) -> None:
        self.now += more_ms
        for _ in range(4):
            while self.timers.round():
                pass
            self.broker.tick()
            self.broker.store.flush()
        self.timers.wheel.check_invariants()

    def send(self, body: bytes = b"timer", **properties: object) -> RemotingCommand:
        text = "".join(f"{key}\x01{value}\x02" for key, value in ({"UNIQ_KEY": "K"} | properties).items())
        reply = self.broker.send(body, i=text)
        assert reply is not None
        self.broker.tick()
        return reply

    def records(self, topic: str = "TopicA", queue_id: int = 0) -> list[Record]:
        queue = self.broker.store.find_queue(topic, queue_id)
        units = [queue.unit(at) for at in range(queue.min_offset, queue.max_offset)] if queue else []
        return [decode(self.broker.store.commit_log.view(offset, size)) for offset, size, _ in units]

    def bodies(self) -> list[bytes]:
        return [record.body for record in self.records()]

    async def recall(self, handle: str, topic: str = "TopicA") -> RemotingCommand:
        ext = {"producerGroup": "P", "topic": topic, "recallHandle": handle}
        raw = await self.broker.dispatcher.answer(RemotingCommand(370, 9, 0, None, ext), FakePeer())
        assert raw is not None
        self.broker.tick()
        return decode_frame(raw[4:])


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def lose_unit(scene: Scene, topic: str, queue_id: int, number: int) -> None:
    """Zeros an entry of a queue, as a lost page does."""
    with (scene.broker.store.root / "consumequeue" / topic / str(queue_id) / f"{0:020d}").open("r+b") as file:
        file.seek(number * UNIT_BYTES)
        file.write(bytes(UNIT_BYTES))


def test_a_lost_entry_holds_no_other_timer_back(scene: Scene) -> None:
    for body in (b"a", b"b", b"c"):
        scene.send(body, TIMER_DELAY_SEC=3)
    lose_unit(scene, TIMER_TOPIC, 0, 1)
    scene.restart()
    scene.run(10_000)
    assert scene.bodies() == [b"a", b"c"]


# -- what is stored ----------------------------------------------------------------------------------------


def test_the_slot_of_a_time() -> None:
    """Captured: 3 s from ...22693 are in slot ...25000. A timer never goes out before it is due."""
    assert out_ms(1_795_247_422_693 + 3_000, PRECISION_MS) == 1_795_247_425_000
    for deliver_ms in (5_000, 5_001, 5_999, 6_000):
        goes_out = out_ms(deliver_ms, PRECISION_MS) + PRECISION_MS
        assert deliver_ms <= goes_out < deliver_ms + PRECISION_MS


def test_the_three_ways_to_say_when() -> None:
    assert deliver_at(b"TIMER_DELAY_SEC\x013\x02", 100) == 3_100
    assert deliver_at(b"TIMER_DELAY_MS\x013\x02", 100) == 103
    assert deliver_at(b"A\x01b\x02TIMER_DELIVER_MS\x01300", 100) == 300
    assert deliver_at(b"XTIMER_DELIVER_MS\x01300", 100) is None


def test_records_are_those_of_rocketmq(scene: Scene) -> None:
    theirs, *_ = [record for _, record in RECORDS if record.topic == TIMER_TOPIC]
    their_copy, *_ = [record for _, record in RECORDS if record.topic == "FxTimer"]
    added = {"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID", "MSG_REGION", "TRACE_ON", "CLUSTER"}
    sent = {key: value for key, value in parse_properties(theirs.properties).items() if key not in added}
    reply = scene.send(b"timer message", **sent)
    assert (reply.code, reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == (0, "0", "0")
    (waiting,) = scene.records(TIMER_TOPIC)
    seen, expected = parse_properties(waiting.properties), parse_properties(theirs.properties)
    slot_ms = int(seen["TIMER_OUT_MS"])
    changed = {"TIMER_OUT_MS": str(slot_ms), "REAL_TOPIC": "TopicA", "CLUSTER": "c"}
    assert seen == expected | changed
    assert 0 <= waiting.store_timestamp + 3_000 - slot_ms <= PRECISION_MS
    assert scene.bodies() == []
    scene.now = slot_ms + PRECISION_MS - 1
    scene.run()
    assert scene.bodies() == []
    scene.run(1)
    (copy,) = scene.records()
    assert copy.body == b"timer message" and copy.sys_flag == their_copy.sys_flag
    assert parse_properties(copy.properties).keys() == parse_properties(their_copy.properties).keys()
    assert parse_properties(copy.properties)["TIMER_DEQUEUE_MS"] == str(scene.now)


def test_units_are_made_again_from_the_log(scene: Scene) -> None:
    """A replica, and recovery, find the delivery times in the records."""
    for seconds in (5, 3, 9):
        scene.send(TIMER_DELAY_SEC=seconds)
    queue = scene.broker.store.find_queue(TIMER_TOPIC, 0)
    assert queue is not None
    units = [queue.unit(at) for at in range(3)]
    assert [code for _, _, code in units] == [
        int(parse_properties(record.properties)["TIMER_OUT_MS"]) for record in scene.records(TIMER_TOPIC)
    ]
    crash(scene.broker.store)
    store = open_store(scene.path, commit_log_file_bytes=1 << 20)
    store.set_confirm_offset(store.commit_log.max_offset)
    while store.dispatcher.dispatch(100):
        pass
    again = store.find_queue(TIMER_TOPIC, 0)
    assert again is not None and [again.unit(at) for at in range(3)] == units
    store.close()


# -- when they go out --------------------------------------------------------------------------------------


def test_in_the_order_of_their_times(scene: Scene) -> None:
    for seconds in (30, 10, 20, 10):
        scene.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    scene.send(b"past", TIMER_DELIVER_MS=1_000)
    assert scene.bodies() == [b"past"], "it is stored at once"
    scene.run(12_000)
    assert scene.bodies() == [b"past", b"10", b"10"]
    scene.run(20_000)
    assert scene.bodies() == [b"past", b"10", b"10", b"20", b"30"]
    assert len(scene.timers.wheel) == 0


def test_a_level_wins_and_a_transaction_is_not_delayed(scene: Scene) -> None:
    assert scene.send(DELAY=3, TIMER_DELAY_SEC=5).code == 0
    (waiting,) = scene.records("SCHEDULE_TOPIC_XXXX", 2)
    assert "TIMER_DELAY_SEC" not in parse_properties(waiting.properties)
    assert scene.records(TIMER_TOPIC) == []


@pytest.mark.parametrize(
    ("properties", "settings", "code"),
    [
        ({"TIMER_DELAY_SEC": 259_201}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": 11}, {"timerMaxDelaySec": 10}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "x"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": "9" * 30}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": 3, "p": "v" * 32_300}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": 1, "TIMER_DEL_UNIQKEY": "TopicA+K"}, {}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": 3, "TIMER_DEL_UNIQKEY": "Topic+K"}, {}, ResponseCode.NO_PERMISSION),
        ({"TIMER_DELAY_SEC": 3, "TIMER_DEL_UNIQKEY": "TopicAB+K"}, {}, ResponseCode.NO_PERMISSION),
        ({"TIMER_DELAY_SEC": 3}, {"timerWheelEnable": False}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_refused(tmp_path: Path, properties: dict[str, Any], settings: dict[str, Any], code: int) -> None:
    scene = Scene(tmp_path, **settings)
    assert scene.send(**properties).code == code
    assert scene.broker.store.commit_log.max_offset == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("soon", "property TIMER_DELAY_MS is 'soon', which is not a whole number"),
        ("--5", "is '--5', which is not a whole number"),
        ("-", "which is not a whole number"),
        ("1.5", "which is not a whole number"),
        (str(2**63), f"is '{2**63}', which is above {2**63 - 1} (64 bits)"),
        ("9" * 5_000, f"is '{'9' * 32}...', which is above"),
        (str(2**63 - 1), "is above timerMaxDelaySec 259200"),
    ],
)
def test_a_delay_that_cannot_be_is_refused_with_its_value(scene: Scene, text: str, says: str) -> None:
    reply = scene.send(TIMER_DELAY_MS=text)
    assert reply.code == ResponseCode.MESSAGE_ILLEGAL and says in (reply.remark or "")


def test_a_negative_delay_is_over_as_for_rocketmq(scene: Scene) -> None:
    assert scene.send(b"late", TIMER_DELAY_MS=-5).code == 0
    assert scene.bodies() == [b"late"]


def test_too_many(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.timers.core.wheel.TIMERS_MAX", 1)
    assert scene.send(TIMER_DELAY_SEC=3).code == 0
    scene.run()
    reply = scene.send(TIMER_DELAY_SEC=3)
    assert reply.code == ResponseCode.SYSTEM_ERROR and "flow control" in (reply.remark or "")


def test_a_pause(tmp_path: Path) -> None:
    """timerStopEnqueue: what comes meanwhile waits in the queue."""
    scene = Scene(tmp_path, timerStopEnqueue=True)
    scene.send(TIMER_DELAY_SEC=3)
    scene.run(10_000)
    assert scene.bodies() == []
    scene.settings = ClientSettings.model_validate({})
    scene.restart()
    assert scene.bodies() == [b"timer"]


def test_a_pause_does_not_stop_the_timers_of_before(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in nobody's wheel at a start: it is made of the queue. Each goes out once, also when a later
    start ends the pause, and none is lost."""
    monkeypatch.setattr(service, "READ_MAX", 2)
    for number in range(5):
        scene.send(b"old %d" % number, UNIQ_KEY=f"O{number}", TIMER_DELAY_SEC=3 + 20 * (number % 2))
    scene.run(10_000)
    old = [b"old 0", b"old 2", b"old 4"]
    assert scene.bodies() == old
    scene.settings = ClientSettings.model_validate({"timerStopEnqueue": True, "recallMessageEnable": True})
    scene.timers = scene.broker.context.timers = TimerService(
        scene.broker.store, scene.metadata, scene.broker.writer,
        settings=scene.settings, clock=lambda: scene.now,
    )  # fmt: skip
    scene.timers.round()  # the term has begun; what comes now has to wait
    for number in range(5):
        scene.send(b"new %d" % number, UNIQ_KEY=f"N{number}", TIMER_DELAY_SEC=3)
    scene.run()
    assert scene.bodies() == old and scene.timers.unread == 5 and scene.timers.waiting == 2
    scene.run(20_000)
    old += [b"old 1", b"old 3"]
    assert scene.bodies() == old and scene.timers.unread == 5
    for _ in range(3):
        scene.run(FIRST_OFFSET_PERIOD_MS)
    assert scene.bodies() == old and scene.timers.wheel.frontier.read_offset == 5
    scene.settings = ClientSettings.model_validate({})
    scene.restart()
    assert scene.bodies() == old + [b"new %d" % number for number in range(5)]


def test_what_cannot_be_delivered_holds_up_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is illegal is passed over; one that finds no room is tried again."""
    for body in (b"illegal", b"good"):
        scene.send(body, TIMER_DELAY_SEC=3)
    put, problems = scene.broker.store.put, [OSError(28, "full"), ValueError("illegal")]

    def fails(*args: Any, **more: Any) -> tuple[int, int, int]:
        if problems:
            raise problems.pop(0)
        return put(*args, **more)

    monkeypatch.setattr(scene.broker.store, "put", fails)
    scene.now += 5_000
    scene.timers.round()
    assert len(problems) == 1 and scene.bodies() == []
    scene.run()
    assert scene.bodies() == [b"good"]


# -- recalls -----------------------------------------------------------------------------------------------


async def test_a_message_is_taken_back(scene: Scene) -> None:
    """Of two for the same time, the one with the key; also by a master that came later."""
    handle = scene.send(b"taken back", UNIQ_KEY="K1", TIMER_DELAY_SEC=60).ext_fields["recallHandle"]
    slot_ms = parse_handle(handle).deliver_ms - 1
    scene.send(b"stays", UNIQ_KEY="K2", TIMER_DELIVER_MS=slot_ms + 1)
    scene.send(b"also", UNIQ_KEY="K3", TIMER_DELIVER_MS=slot_ms + 1)
    text = base64.urlsafe_b64decode(handle) + b" more"  # RocketMQ reads five parts, and ignores others
    answer = await scene.recall(base64.urlsafe_b64encode(text).decode())
    assert (answer.code, answer.ext_fields["msgId"]) == (0, "K1")
    scene.run()
    scene.restart()
    scene.run(62_000)
    assert scene.bodies() == [b"stays", b"also"]


def test_no_timer_is_made_by_a_send_to_the_timer_queue(scene: Scene) -> None:
    """It would go to whatever topic it names: an op record there ends transactions of others."""
    crafted: dict[str, Any] = {
        "TIMER_OUT_MS": scene.now, "REAL_TOPIC": "RMQ_SYS_TRANS_OP_HALF_TOPIC", "REAL_QID": 0,
    }  # fmt: skip
    text = "".join(f"{key}\x01{value}\x02" for key, value in crafted.items())
    for code in (310, 320):
        fields = {"a": "g", "b": TIMER_TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}
        reply = scene.broker.request(code, fields | {"i": text}, item(b"0,1,"))
        assert reply is not None and reply.code == ResponseCode.NO_PERMISSION
    scene.run(10 * PRECISION_MS)
    assert scene.records(TIMER_TOPIC) == scene.records("RMQ_SYS_TRANS_OP_HALF_TOPIC") == []


async def test_recalls_that_are_refused(scene: Scene, tmp_path: Path) -> None:
    good = scene.send(TIMER_DELAY_SEC=60).ext_fields["recallHandle"]
    deliver_ms = parse_handle(good).deliver_ms
    for handle, topic, code in (
        ("???", "TopicA", 604),
        ("djEgYQ==", "TopicA", 604),
        (recall_handle("TopicA", "other", deliver_ms, "K"), "TopicA", 604),
        (recall_handle("Other", "b", deliver_ms, "K"), "TopicA", 604),
        (recall_handle("TopicA", "b", 1_000, "K"), "TopicA", 604),
        (recall_handle("TopicA", "b", deliver_ms + 10**9, "K"), "TopicA", 604),
        (good, "Absent", ResponseCode.TOPIC_NOT_EXIST),
        (recall_handle(TIMER_TOPIC, "b", deliver_ms, "K"), TIMER_TOPIC, ResponseCode.TOPIC_NOT_EXIST),
    ):
        assert (await scene.recall(handle, topic)).code == code, (handle, topic)
    closed = Scene(tmp_path / "closed", recallMessageEnable=False)
    assert (await closed.recall(good)).code == ResponseCode.NO_PERMISSION
    scene.broker.gate.close(ROLE, "slave")
    assert (await scene.recall(good)).code == ResponseCode.SLAVE_NOT_AVAILABLE


# -- terms -------------------------------------------------------------------------------------------------


def test_a_new_master_goes_on(scene: Scene) -> None:
    """What was delivered is not delivered again, and nothing is forgotten."""
    for seconds in (5, 50, 5, 100):
        scene.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    scene.run(7_000)
    assert scene.bodies() == [b"5", b"5"]
    scene.restart()
    scene.run(50_000)
    assert scene.bodies() == [b"5", b"5", b"50"]
    scene.send(b"late", TIMER_DELAY_SEC=1)  # of real time, that is: long since due
    scene.restart()
    scene.run(50_000)
    assert scene.bodies() == [b"5", b"5", b"50", b"late", b"100"]


def test_a_crash_loses_no_timer_and_repeats_none(scene: Scene) -> None:
    """kill -9: the store recovers, and the progress is in its journal."""
    for seconds in (5, 50, 100):
        scene.send(b"%d" % seconds, TIMER_DELAY_SEC=seconds)
    scene.run(7_000)
    scene.run()
    assert scene.timers.is_settled
    scene.metadata.commit_staged()
    crash(scene.broker.store)
    again = Scene(scene.path)
    again.broker.store.set_confirm_offset(again.broker.store.commit_log.max_offset)
    again.now = scene.now + 50_000
    again.run()
    assert again.bodies() == [b"5", b"50"] and len(again.timers.wheel) == 1


def test_a_clock_that_was_ahead_delivers_no_later_timer_early(scene: Scene) -> None:
    """What went out meanwhile stays out, also for the next master."""
    scene.send(b"before", TIMER_DELIVER_MS=scene.now + 1_800_000)
    scene.run(3_600_000)
    assert scene.bodies() == [b"before"]
    scene.run(-3_600_000)
    scene.send(b"soon", TIMER_DELIVER_MS=scene.now + 60_000)
    scene.send(b"after", TIMER_DELIVER_MS=scene.now + 600_000)
    scene.run(30_000)
    assert scene.bodies() == [b"before"]
    scene.run(60_000)
    assert scene.bodies() == [b"before", b"soon"]
    scene.restart()
    assert scene.bodies() == [b"before", b"soon"]
    scene.run(600_000)
    scene.restart()
    scene.run(3_600_000)
    assert scene.bodies() == [b"before", b"soon", b"after"]


def test_progress_follows_when_nothing_can_be_lost_any_more(scene: Scene) -> None:
    scene.send(TIMER_DELAY_SEC=3)
    scene.run()
    scene.broker.gate.wait = True  # from now on nothing is confirmed
    scene.run(10_000)
    assert scene.metadata.timers.get(READ_MS, -1) == -1
    scene.broker.replicated()
    assert scene.bodies() == [b"timer"]
    scene.run()
    scene.restart()
    scene.run()
    assert scene.bodies() == [b"timer"]


def test_progress_beyond_the_queue_hides_no_timer(scene: Scene) -> None:
    """store pitfall 20, of timers: the log was cut, or the table is another one's."""
    rows = {"readMs": scene.now + 60_000, "readOffset": 9, "phaseOffset": 9, "firstOffset": 9, "slotMs": -1}
    scene.metadata.timers.advance(rows)
    scene.restart()
    scene.send(TIMER_DELAY_SEC=3)
    scene.run(10_000)
    assert scene.bodies() == [b"timer"]


def test_a_master_without_timers_writes_nothing(scene: Scene) -> None:
    scene.run(10_000)
    assert not scene.metadata.timers.is_staged and scene.broker.store.commit_log.max_offset == 0


def test_only_a_master_delivers(scene: Scene) -> None:
    scene.send(TIMER_DELAY_SEC=3)
    scene.broker.gate.close(ROLE, "slave")
    scene.broker.store.become_slave()
    scene.run(10_000)
    assert scene.bodies() == []
    scene.broker.store.become_master()
    scene.run()
    assert scene.bodies() == []
    scene.broker.gate.open(ROLE)
    scene.run()
    assert scene.bodies() == [b"timer"]


def test_a_gate_that_is_closed_for_a_while_repeats_nothing(scene: Scene) -> None:
    """A disk that was full, or a hand-over that failed: the same term goes on, also with what no other broker
    knows yet."""
    scene.send(TIMER_DELAY_SEC=3)
    scene.run()
    scene.broker.gate.wait = True  # nothing is confirmed, and so nothing settled
    scene.run(10_000)
    assert not scene.timers.is_settled
    scene.broker.gate.close(ROLE, "a full disk")
    scene.run(10_000)
    scene.broker.gate.open(ROLE)
    scene.run(10_000)
    scene.broker.replicated()
    scene.run(10_000)
    assert scene.bodies() == [b"timer"] and scene.timers.is_settled


# -- RocketMQ's replicas and masters -----------------------------------------------------------------------


async def test_the_checkpoint_of_rocketmq(scene: Scene, tmp_path: Path) -> None:
    """Captured: 60 answers 56 bytes. What a master of theirs has delivered is known here."""
    theirs = decode_frame((FIXTURES / "frames" / "60-timer-checkpoint-broker.resp.bin").read_bytes()[4:])
    next_slot_ms, _, offset, *_ = struct.unpack(">7q", theirs.body)
    table = TimerProgressTable(tmp_path / "theirs.json")
    table.load()
    assert table.adopt(theirs.body, 3) is None
    assert table.data_version.state_version == 3
    again = struct.unpack(">7q", table.checkpoint(PRECISION_MS))
    assert (again[0], again[2], again[3]) == (next_slot_ms // 1_000 * 1_000, offset, offset)
    assert table.adopt(theirs.body, 3) is None and table.adopt(theirs.body, 2) is not None
    assert table.adopt(b"short", 3) is not None
    table.journal.close()
    for code in (60, 61):
        raw = await scene.broker.dispatcher.answer(RemotingCommand(code, 9), FakePeer())
        assert raw is not None
        answer = decode_frame(raw[4:])
        assert answer.code == 0 and (len(answer.body) == 56 or b"timingCount" in answer.body)


def test_progress_of_rocketmqs_file_is_continued(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start on RocketMQ's directory delivers what RocketMQ has not; later ones have our file."""
    scene.send(b"done", TIMER_DELAY_SEC=3)
    scene.run(10_000)
    scene.send(b"open", TIMER_DELAY_SEC=3)
    scene.run()
    theirs = tmp_path / "theirs" / "config" / "timercheck"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(scene.metadata.timers.checkpoint(PRECISION_MS).ljust(4_096, b"\0"))
    scene.metadata = open_metadata(tmp_path / "theirs")
    scene.restart()
    scene.run(10_000)
    assert scene.bodies() == [b"done", b"open"] and "has no progress" not in caplog.text

    progress = scene.metadata.timers
    offset = progress.get(READ_OFFSET, -1)
    progress.advance({READ_MS: 5})
    progress.commit_staged()  # only the journal has it, and only this number
    again = TimerProgressTable(progress.path)
    again.load()
    assert (again.get(READ_MS, -1), again.get(READ_OFFSET, -1)) == (5, offset) and offset > 0
    again.journal.close()

    theirs.write_bytes(b"short")
    other = TimerProgressTable(theirs.with_name("other.json"))
    other.load()
    assert not other.table.rows and f"{theirs} is too short" in caplog.text
    other.journal.close()


def test_what_is_told_of_timers(scene: Scene) -> None:
    """The runtime keys (28) that clusterList shows: how many, how late, how fast."""
    now = [0]
    stats = BrokerStats(
        scene.broker.store,
        scene.broker.context.reads,
        "c",
        clock=lambda: now[0],
        timer_counts=lambda: (scene.timers.added, scene.timers.delivered),
    )
    info = RuntimeInfo(scene.broker.context, stats, DelayOffsetTable(scene.path / "delayOffset.json"))

    def told() -> dict[str, str]:
        return {key[5:]: text for key, text in info.table().items() if key.startswith("timer")}

    idle = {
        "CongestNum": "0",
        "OffsetBehind": "0",
        "ReadBehind": "0",
        "EnqueueTps": "0.0",
        "DequeueTps": "0.0",
    }
    assert told() == idle
    stats.tick()
    for _ in range(3):
        scene.send(TIMER_DELAY_SEC=10)
    assert told() == idle | {"OffsetBehind": "3"}
    scene.run()
    now[0] = 10_000
    stats.tick()
    assert told() == idle | {"CongestNum": "3", "EnqueueTps": "0.3"}
    scene.now += 20_000
    assert 7 <= int(told()["ReadBehind"]) <= 10
    scene.run()
    now[0] = 20_000
    stats.tick()
    rates = {"EnqueueTps": "0.15", "DequeueTps": "0.15"}  # one sample in 10 s: of 20 s
    assert told() == idle | rates
    scene.send(TIMER_DELAY_SEC=100)
    scene.restart()
    assert told()["CongestNum"] == "1" and scene.timers.added == 0  # it came in an earlier term
    scene.broker.store.become_slave()
    scene.now += 200_000
    scene.run()
    assert told() == idle | rates
