"""What a pull is checked for beside its queue: group, subscription and filter, and who should serve it."""

from pathlib import Path

import pytest

from broker.clients.core.registry import Client, Consumer, Subscription
from broker.config.client_settings import ClientSettings
from broker.filter.core.subscription import parse
from broker.handlers.pull import NO_SQL_OF_BATCHES
from broker.message.record import decode, tag_code
from broker.metadata.groups import Group
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.runtime.clock import now_ms
from tests.support.handler_parts import Broker
from tests.support.items import memory_grows_by
from tests.support.store_parts import damage_unit
from tests.unit.broker.handlers.test_pull_handler import answer, fill, read


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    broker = Broker(tmp_path)
    allow(broker, enablePropertyFilter=True)
    return broker


def allow(broker: Broker, **settings: object) -> None:
    broker.use_settings(ClientSettings.model_validate(settings))


def subscribe(
    broker: Broker, text: str = "A", kind: str = "TAG", version: int = 5, model: str = "CLUSTERING"
) -> None:
    try:
        wanted = parse(text, kind, tag_code)
    except ValueError:
        wanted = None
    subscription = Subscription("TopicA", text, kind, version, wanted)
    consumer = Consumer("g", "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", (subscription,))
    broker.context.registry.heartbeat(Client(1, "c", "h", "JAVA", 1), [consumer], [], now_ms=0)


def group(broker: Broker, forbidden: dict[str, int] | None = None, **config: object) -> None:
    row = Group(SubscriptionGroupConfig(group_name="g", **config), forbidden or {})  # type: ignore[arg-type]
    broker.context.find_group = lambda *_: row


@pytest.mark.parametrize(
    ("changed", "code", "forbidden"),
    [
        ({"consume_enable": False}, ResponseCode.NO_PERMISSION, "2"),
        ({"forbidden": {"TopicA": 1}}, ResponseCode.NO_PERMISSION, "5"),
        ({"forbidden": {"TopicB": 1}}, 0, None),
    ],
)
def test_what_a_group_may_not(
    broker: Broker, changed: dict[str, object], code: int, forbidden: str | None
) -> None:
    fill(broker, 1)
    group(broker, **changed)  # type: ignore[arg-type]
    reply = answer(broker, 0)
    assert (reply.code, reply.ext_fields.get("forbiddenType")) == (code, forbidden)


def test_an_unknown_group(broker: Broker) -> None:
    """Strict clients read the header fields of a refusal, too."""
    broker.context.find_group = lambda *_: None
    reply = answer(broker, 7)
    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert reply.ext_fields == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "0"
    }  # fmt: skip


def test_a_queue_that_can_only_be_written(broker: Broker) -> None:
    config = broker.topics.topics["TopicA"].config
    broker.topics.update(config.model_copy(update={"read_queue_nums": 2}))
    assert answer(broker, 0, queueId="1").code == 19
    assert answer(broker, 0, queueId="2").code == ResponseCode.INVALID_PARAMETER
    broker.topics.update(config.model_copy(update={"perm": 2}))
    assert answer(broker, 0).code == ResponseCode.NO_PERMISSION


# -- subscriptions of heartbeats ---------------------------------------------------------------------------


def by_heartbeat(broker: Broker, **more: object) -> RemotingCommand:
    return answer(broker, 0, **({"sysFlag": "0"} | more))


def test_the_heartbeats_subscription_counts(broker: Broker) -> None:
    fill(broker, 9)
    assert by_heartbeat(broker).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    subscribe(broker)
    assert len(read(by_heartbeat(broker, subVersion="5").body)) == 3
    assert len(read(by_heartbeat(broker, subVersion="4", subscription="B||C").body)) == 3
    reply = by_heartbeat(broker, subVersion="6")
    assert reply.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    broker.topics.update(broker.topics.topics["TopicA"].config.model_copy(update={"topic_name": "Other"}))
    assert by_heartbeat(broker, topic="Other").code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_equal_hashes_pass_and_the_client_looks(broker: Broker) -> None:
    fill(broker, 2, tags=["Aa", "BB"])  # type: ignore[arg-type]
    assert len(read(answer(broker, 0, subscription="Aa").body)) == 2


def test_tags_filter_retries_too(broker: Broker) -> None:
    """broker-ops pitfall 21: a tag expression is asked for on a retry topic as on any other."""
    broker.topics.ensure("%RETRY%g", 1)
    for tag in "ABA":
        broker.send(b="%RETRY%g", i=f"TAGS\x01{tag}\x02RETRY_TOPIC\x01TopicA")
    broker.tick()
    assert len(read(answer(broker, 0, topic="%RETRY%g", subscription="A").body)) == 2
    assert len(read(answer(broker, 0, topic="%RETRY%g").body)) == 3


def test_broadcasting_can_be_forbidden(broker: Broker) -> None:
    subscribe(broker, model="BROADCASTING")
    assert by_heartbeat(broker).code == 19
    group(broker, consume_broadcast_enable=False)
    reply = by_heartbeat(broker)
    assert (reply.code, reply.ext_fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")


# -- a subscription that changes while a pull waits --------------------------------------------------------


def suspended(broker: Broker, **fields: object) -> None:
    assert broker.pull(0, suspend_ms=15_000, **{"sysFlag": "2", **fields}) is None  # type: ignore[arg-type]


def test_what_was_passed_over_is_found_when_the_group_wants_it_now(broker: Broker) -> None:
    """PullRequestHoldService asks again for the offset that the client named, by what the group wants now."""
    subscribe(broker, "B", version=5)
    suspended(broker)
    fill(broker, 1, b"older", tags="A")
    assert broker.answers() == []
    subscribe(broker, "A", version=6)
    fill(broker, 1, b"newer", tags="A")
    (reply,) = broker.answers()
    assert (read(reply.body), reply.ext_fields["nextBeginOffset"]) == ([b"older", b"newer"], "2")


def test_what_was_passed_over_is_found_when_the_time_of_the_pull_ends(broker: Broker) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker)
    fill(broker, 1, b"older", tags="A")
    subscribe(broker, "A", version=6)
    broker.handlers.expire(now_ms() + 15_000)
    (reply,) = broker.answers()
    assert (reply.code, read(reply.body)) == (0, [b"older"])


def must_be_refused(broker: Broker, its_time_ends: bool) -> None:
    """The suspended pull, because of damage, when its time ends or the next message comes."""
    if its_time_ends:
        broker.handlers.expire(now_ms() + 15_000)
    else:
        fill(broker, 1, tags="A")
    (reply,) = broker.answers()
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert reply.remark is not None and "TopicA, queue 0, is damaged near offset 0" in reply.remark


@pytest.mark.parametrize("its_time_ends", [False, True])
def test_what_was_passed_over_and_is_damaged_now_is_refused(
    broker: Broker, tmp_path: Path, its_time_ends: bool
) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker)
    fill(broker, 1, tags="A")
    damage_unit(tmp_path, 0)
    subscribe(broker, "A", version=6)
    must_be_refused(broker, its_time_ends)
    assert broker.handlers.pull.waiting_count == 0


def test_a_newer_version_of_the_same_begins_where_it_was(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java clients count the version up whenever their queues change."""
    subscribe(broker, "B", version=5)
    suspended(broker)
    fill(broker, 3, tags="A")
    subscribe(broker, "B", version=6)
    asked: list[int] = []
    get = broker.store.get
    monkeypatch.setattr(
        broker.store, "get", lambda *args, **more: asked.append(args[2]) or get(*args, **more)
    )
    fill(broker, 1, tags="A")
    assert asked == [3, 4] and broker.answers() == []


def test_a_pull_with_its_own_expression_keeps_it(broker: Broker) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker, sysFlag="6", subscription="B")
    fill(broker, 1, b"older", tags="A")
    subscribe(broker, "A", version=6)
    fill(broker, 1, b"newer", tags="A")
    assert broker.answers() == []


def test_a_pull_whose_subscription_went_is_told(broker: Broker) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker)
    suspended(broker)
    broker.context.registry.closed(1)
    broker.handlers.expire(now_ms() + 15_000)
    first, second = broker.answers()
    assert first.code == second.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert broker.handlers.pull.waiting_count == 0


@pytest.mark.parametrize("flag", [2, 2 + 4 + 8])
def test_a_waiting_pull_keeps_no_text_that_is_not_looked_at(broker: Broker, flag: int) -> None:
    subscribe(broker, "B", version=5)
    fill(broker, 1)
    with memory_grows_by(3_000_000):
        for number in range(8):
            text = str(number) * 1_000_000
            waits = broker.pull(1, suspend_ms=15_000, sysFlag=str(flag), subscription=text)
            assert waits is None
    assert broker.handlers.pull.waiting_count == 8
    fill(broker, 1, b"wanted", tags="B")
    assert [reply.code for reply in broker.answers()] == [0] * 8


def test_a_waiting_pull_of_batches_is_refused_when_its_group_comes_with_sql(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker)
    monkeypatch.setattr(broker.store.queues, "is_batch", lambda topic: topic == "TopicA")
    subscribe(broker, "a > 1", "SQL92", version=6)
    broker.handlers.expire(now_ms() + 15_000)
    (reply,) = broker.answers()
    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, NO_SQL_OF_BATCHES)


@pytest.mark.parametrize("its_time_ends", [False, True])
def test_sql_over_a_damaged_queue_is_refused(broker: Broker, tmp_path: Path, its_time_ends: bool) -> None:
    subscribe(broker, "B", version=5)
    suspended(broker)
    fill(broker, 1, tags="A")
    damage_unit(tmp_path, 0, (7, 20))
    subscribe(broker, "TAGS = 'A'", "SQL92", version=6)
    assert by_heartbeat(broker, subVersion="6").code == ResponseCode.SYSTEM_ERROR
    must_be_refused(broker, its_time_ends)


# -- SQL92 -------------------------------------------------------------------------------------------------


def fill_numbers(broker: Broker, count: int) -> None:
    for index in range(count):
        broker.send(b"%d" % index, i=f"n\x01{index}\x02TAGS\x01A\x02UNIQ_KEY\x01K")
    broker.tick()


@pytest.mark.parametrize("lenient", [False, True])
def test_sql_filters(broker: Broker, lenient: bool) -> None:
    fill_numbers(broker, 6)
    wanted = {
        "subscription": "n >= 2 AND n <> 4 AND TAGS = 'A'",
        "expressionType": "SQL92",
        "lenient": lenient,
    }
    reply = answer(broker, 0, **wanted)
    assert read(reply.body) == [b"2", b"3", b"5"]
    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (0, "6")
    assert decode(reply.body).size < len(reply.body)
    reply = answer(broker, 0, **(wanted | {"subscription": "n > 100"}))
    assert (reply.code, reply.body, reply.ext_fields["nextBeginOffset"]) == (20, b"", "6")


def test_sql_wakes_for_what_it_wants(broker: Broker) -> None:
    assert broker.pull(0, suspend_ms=15_000, subscription="n = 1", expressionType="SQL92") is None
    fill_numbers(broker, 2)
    (reply,) = broker.answers()
    assert read(reply.body) == [b"1"]


def test_sql_by_heartbeat(broker: Broker) -> None:
    fill_numbers(broker, 3)
    subscribe(broker, "n > 1", "SQL92")
    assert read(by_heartbeat(broker).body) == [b"2"]
    subscribe(broker, "n >", "SQL92", version=6)
    assert by_heartbeat(broker).code == ResponseCode.FILTER_DATA_NOT_EXIST
    subscribe(broker, "n > 1", "SQL92", version=7)
    allow(broker)
    assert by_heartbeat(broker).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(("kind", "text"), [("SQL92", "n >"), ("SQL92", "((("), ("XPATH", "n")])
def test_what_is_no_expression_is_refused(broker: Broker, kind: str, text: str) -> None:
    reply = answer(broker, 0, subscription=text, expressionType=kind)
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert reply.remark is not None and "failed" in reply.remark


# -- who serves --------------------------------------------------------------------------------------------


def test_a_replica_sends_consumers_to_its_master(broker: Broker) -> None:
    fill(broker, 3)
    broker.store.dispatcher.is_master = False
    broker.context.sends_to_master = lambda: True
    assert answer(broker, 0).code == 0
    reply = answer(broker, 3, suspend_ms=15_000)
    assert (reply.code, reply.ext_fields["suggestWhichBrokerId"]) == (20, "0")
    broker.context.sends_to_master = lambda: False  # nobody else is there: it holds them like a master
    assert broker.pull(3, suspend_ms=15_000) is None


@pytest.mark.parametrize("has_master", [True, False])
@pytest.mark.parametrize(("topic", "offset"), [("TopicA", 9), ("TopicA", -1), ("TopicB", 9)])
def test_a_replica_that_is_behind_moves_no_consumer(
    broker: Broker, topic: str, offset: int, has_master: bool
) -> None:
    """It would begin again where the replica ends: what it has consumed would come twice."""
    broker.topics.ensure("TopicB", 4)
    fill(broker, 3)
    broker.store.dispatcher.is_master = False
    broker.context.sends_to_master = lambda: has_master
    reply = answer(broker, offset, topic=topic)
    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (20, str(offset))


def test_who_is_far_behind_is_sent_to_a_slave(broker: Broker) -> None:
    allow(broker, slaveReadEnable=True)
    group(broker, which_broker_when_consume_slowly=2, group_sys_flag=3)
    fill(broker, 9)
    reply = answer(broker, 0, maxMsgNums="1")
    assert (reply.ext_fields["suggestWhichBrokerId"], reply.ext_fields["groupSysFlag"]) == ("0", "3")
    broker.context.cached_bytes = 0
    assert answer(broker, 0, maxMsgNums="1").ext_fields["suggestWhichBrokerId"] == "2"
    assert answer(broker, 9).ext_fields["suggestWhichBrokerId"] == "2"
    assert answer(broker, 100).ext_fields["suggestWhichBrokerId"] == "2"


def test_lite_pulls(broker: Broker) -> None:
    fill(broker, 1)
    fields: dict[str, object] = {
        "consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
        "sysFlag": "20", "subscription": "*", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0",
    }  # fmt: skip
    for lenient in (False, True):
        reply = broker.request(361, fields, lenient=lenient)
        assert reply is not None and read(reply.body) == [b"message 0"]
    allow(broker, litePullMessageEnable=False)
    reply = broker.request(361, fields)
    assert reply is not None and reply.code == ResponseCode.NO_PERMISSION


def test_short_polling(broker: Broker) -> None:
    allow(broker, longPollingEnable=False, shortPollingTimeMills=1)
    assert broker.pull(0, suspend_ms=15_000) is None
    broker.handlers.expire(now_ms() + 2)
    assert [reply.code for reply in broker.answers()] == [19]
