"""Pulling: bodies byte for byte, codes of every status, long polling; and the small requests beside it."""

import tracemalloc
from pathlib import Path

import pytest

from broker.config.client_settings import ClientSettings
from broker.handlers import pull_subscriptions
from broker.message.record import decode
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Call, Reply
from keelmq.remoting.operations.route import TopicConfigSerializeWrapper
from keelmq.runtime.clock import now_ms
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer, damage_unit


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path)


def fill(broker: Broker, count: int, body: bytes = b"message %d", tags: str = "ABC") -> None:
    for index in range(count):
        properties = f"TAGS\x01{tags[index % len(tags)]}\x02UNIQ_KEY\x01K"
        assert broker.send(body % index if b"%" in body else body, i=properties) is not None
    broker.tick()


def answer(broker: Broker, offset: int, **settings: object) -> RemotingCommand:
    """The answer, by whichever way it came."""
    reply = broker.pull(offset, **settings)  # type: ignore[arg-type]
    if reply is None:
        (reply,) = broker.answers()
    return reply


def read(body: bytes) -> list[bytes]:
    at, found = 0, []
    while at < len(body):
        record = decode(body, at)
        found.append(record.body)
        at += record.size
    return found


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("big", [False, True])
def test_found(broker: Broker, lenient: bool, big: bool) -> None:
    fill(broker, 5, b"x" * 5_000 if big else b"message %d")
    reply = answer(broker, 1, lenient=lenient)
    assert (reply.code, reply.remark) == (0, "FOUND")
    assert reply.ext_fields == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "5", "minOffset": "0", "maxOffset": "5",
        "topicSysFlag": "0", "groupSysFlag": "0",
    }  # fmt: skip
    assert read(reply.body) == [b"x" * 5_000 if big else b"message %d" % index for index in range(1, 5)]
    log = broker.store.commit_log
    assert reply.body == bytes(log.view(log.max_offset - len(reply.body), 1 << 20))


def test_a_damaged_queue_is_refused(broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log, however often a consumer asks; what is not damaged is found."""
    fill(broker, 5)
    damage_unit(tmp_path, 2)
    assert read(answer(broker, 1).body) == [b"message 1"]
    for _ in range(3):
        reply = answer(broker, 2)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert reply.remark is not None and "TopicA, queue 0, is damaged near offset 2" in reply.remark
    (line,) = [each for each in caplog.records if "damaged" in each.getMessage()]
    assert line.exc_info is None
    assert read(answer(broker, 3).body) == [b"message 3", b"message 4"]


def test_limits_of_the_request(broker: Broker) -> None:
    fill(broker, 9)
    assert len(read(answer(broker, 0, maxMsgNums="4").body)) == 4
    assert len(read(answer(broker, 0, maxMsgNums="0").body)) == 1
    assert len(read(answer(broker, 0, maxMsgBytes="1").body)) == 1


@pytest.mark.parametrize(
    ("subscription", "bodies"),
    [("*", 9), ("", 9), ("A", 3), ("A||B", 6), (" A || C ", 6), ("A||*", 9), ("D", 0), (None, 9)],
)
def test_tags(broker: Broker, subscription: str | None, bodies: int) -> None:
    fill(broker, 9)
    for _ in range(2):  # the second time from the cache
        reply = answer(broker, 0, subscription=subscription)
        assert len(read(reply.body)) == bodies
        if bodies == 0:
            assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (20, "9")


@pytest.mark.parametrize(
    ("filled", "offset", "master", "code", "remark"),
    [
        (0, 0, True, 19, "NO_MATCHED_LOGIC_QUEUE"),
        (0, 7, True, 21, "NO_MATCHED_LOGIC_QUEUE"),
        (3, 3, True, 19, "OFFSET_OVERFLOW_ONE"),
        (3, 9, True, 21, "OFFSET_OVERFLOW_BADLY"),
        (3, 9, False, 20, "OFFSET_OVERFLOW_BADLY"),
        (3, -1, True, 21, "OFFSET_TOO_SMALL"),
    ],
)
def test_codes(broker: Broker, filled: int, offset: int, master: bool, code: int, remark: str) -> None:
    fill(broker, filled)
    broker.store.dispatcher.is_master = master
    reply = answer(broker, offset)
    assert (reply.code, reply.remark, reply.body) == (code, remark, b"")


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "Nobody"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER),
        ({"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_refused(broker: Broker, changed: dict[str, object], code: int) -> None:
    assert answer(broker, 0, **changed).code == code


def test_a_broker_without_the_permission_to_read(broker: Broker) -> None:
    fill(broker, 1)
    broker.context.readable = False
    assert answer(broker, 0).code == ResponseCode.NO_PERMISSION


def test_a_missing_field_is_named(broker: Broker) -> None:
    assert answer(broker, 0, lenient=True, maxMsgNums=None).remark == "header field maxMsgNums is missing"


# -- long polling ------------------------------------------------------------------------------------------


def test_a_suspended_pull_is_answered_by_the_next_message(broker: Broker) -> None:
    assert broker.pull(0, suspend_ms=15_000) is None
    assert broker.handlers.pull.waiting_count == 1
    broker.gate.wait = True
    broker.send(b"hello")
    broker.tick()
    assert broker.answers() == []  # not replicated: nobody may see it
    broker.replicated()
    replies = {reply.code: reply for reply in broker.answers() if reply.body}
    assert read(replies[0].body) == [b"hello"]
    assert broker.handlers.pull.waiting_count == 0


def test_other_tags_do_not_end_the_wait_but_move_it(broker: Broker) -> None:
    assert broker.pull(0, suspend_ms=15_000, subscription="B") is None
    fill(broker, 1, tags="A")
    assert broker.answers() == []
    assert broker.handlers.pull.waiting_count == 1
    fill(broker, 1, b"wanted", tags="B")
    (reply,) = broker.answers()
    assert (read(reply.body), reply.ext_fields["nextBeginOffset"]) == ([b"wanted"], "2")


def test_the_time_of_a_suspended_pull_ends(broker: Broker) -> None:
    start = now_ms()
    assert broker.pull(0, suspend_ms=15_000, subscription="B") is None
    fill(broker, 1, tags="A")
    broker.handlers.expire(start + 14_000)
    assert broker.answers() == []
    broker.handlers.expire(now_ms() + 15_000)
    (reply,) = broker.answers()
    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (19, "1")
    fill(broker, 1, tags="B")
    assert broker.answers() == []  # answered once


def test_a_closed_connection_is_forgotten(broker: Broker) -> None:
    assert broker.pull(0, suspend_ms=15_000) is None
    broker.peer.closing = True
    broker.handlers.expire(now_ms())
    assert broker.handlers.pull.waiting_count == 0
    assert broker.answers() == []


def test_too_many_waiters_are_answered_at_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.store.queue.queue_table.WAITERS_MAX", 1)
    assert broker.pull(0, suspend_ms=15_000) is None
    reply = broker.pull(0, suspend_ms=15_000)
    assert reply is not None and reply.code == 19


def test_without_the_flag_nobody_waits(broker: Broker) -> None:
    assert answer(broker, 0, suspendTimeoutMillis="15000").code == 19
    assert answer(broker, 0, sysFlag="6").code == 19


def test_subscriptions_kept_are_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_subscriptions, "CACHED_MAX", 1)
    fill(broker, 3)
    assert [len(read(answer(broker, 0, subscription=tag).body)) for tag in ("A", "B", "B||C")] == [1, 1, 2]


def test_subscriptions_kept_have_a_limit_of_memory(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 of the longest SQL92 expressions take 11 GB."""
    monkeypatch.setattr(pull_subscriptions, "CACHED_CHARS_MAX", 8 * 2 * 4_000)
    broker.use_settings(ClientSettings.model_validate({"enablePropertyFilter": True}))
    fill(broker, 1)
    tracemalloc.start()
    try:
        for number in range(1_000, 1_020):
            text = f"a > {number} OR " * 330 + "a > 0"
            reply = answer(broker, 0, subscription=text, expressionType="SQL92")
            assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY, reply.remark
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4_000_000


# -- the other requests ------------------------------------------------------------------------------------


async def ask(broker: Broker, code: int, **fields: object) -> Reply:
    operation, handler = broker.table.handlers[code]
    reply = await handler(operation.request(**fields), Call(FakePeer()))
    return reply if isinstance(reply, Reply) else Reply(header=reply)


async def test_offsets_are_those_that_consumers_see(broker: Broker) -> None:
    fill(broker, 3)
    broker.gate.wait = True
    broker.send()
    assert (await ask(broker, 30, topic="TopicA", queue_id=0)).header.offset == 3  # type: ignore[union-attr]
    assert (await ask(broker, 31, topic="TopicA", queue_id=0)).header.offset == 0  # type: ignore[union-attr]
    assert (await ask(broker, 30, topic="Nobody", queue_id=7)).header.offset == 0  # type: ignore[union-attr]


async def test_the_topics(broker: Broker) -> None:
    answer = TopicConfigSerializeWrapper.model_validate_json((await ask(broker, 21)).body)
    assert answer.topic_config_table == broker.topics.table.rows
    assert answer.data_version == broker.topics.data_version
