"""What operators ask a running broker: counters, progress of groups, system topics, entries of queues."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations import broker_admin as admin
from keelmq.remoting.operations.broker import GET_BROKER_HA_STATUS, PULL_MESSAGE, PullMessageRequest
from keelmq.remoting.operations.broker_metadata import (
    DELETE_SUBSCRIPTIONGROUP,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    DeleteGroupRequest,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.operations.clients import (
    HEART_BEAT,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumerData,
    GroupTopicRequest,
    HeartbeatData,
    ResetOffsetRequest,
    SubscriptionData,
)
from keelmq.remoting.queue_map import QueueKey, load_queue_map
from tests.unit.broker.app.test_broker_app import config, send


class Desk:
    """Five messages in T, group g has consumed two."""

    def __init__(self, client: RemotingClient, broker: Broker) -> None:
        self.client, self.broker = client, broker

    async def fill(self) -> None:
        for _ in range(5):
            await send(self.client, self.broker, b"x" * 10)
        await self.commit("g", 2)

    async def commit(self, group: str, offset: int) -> None:
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic="T", queue_id=0, commit_offset=offset
        )
        await self.ask(UPDATE_CONSUMER_OFFSET, header)

    async def offset(self, group: str) -> int | None:
        header = ConsumerOffsetRequest(consumer_group=group, topic="T", queue_id=0)
        answer = await self.client.call(self.broker.address, QUERY_CONSUMER_OFFSET, header)
        return answer.header.offset if isinstance(answer, Ok) else None

    async def ask(self, operation: Operation[Any, Any], header: Wire | None = None) -> Ok[Any]:
        answer = await self.client.call(self.broker.address, operation, header or Empty())
        assert isinstance(answer, Ok), answer
        return answer

    async def ask_with(self, operation: Operation[Any, Any], body: object) -> object:
        return await self.client.call(self.broker.address, operation, Empty(), body)

    async def refused(self, operation: Operation[Any, Any], header: Wire) -> tuple[int, str]:
        answer = await self.client.call(self.broker.address, operation, header)
        assert isinstance(answer, Failed), answer
        return answer.code, answer.remark


@pytest.fixture
async def desk(tmp_path: Path, client: RemotingClient) -> AsyncIterator[Desk]:
    async with Broker(config(tmp_path)) as broker:
        desk = Desk(client, broker)
        await desk.fill()
        yield desk


async def test_counters_by_kind_and_key(desk: Desk) -> None:
    pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=9)
    await desk.ask(PULL_MESSAGE, pull)
    sums = {}
    for name, key in (
        ("TOPIC_PUT_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@g"),
        ("BROKER_PUT_NUMS", "DefaultCluster"),
    ):
        header = admin.ViewStatsRequest(stats_name=name, stats_key=key)
        sums[name] = (await desk.ask(admin.VIEW_BROKER_STATS_DATA, header)).body.stats_minute.sum
    assert sums == {"TOPIC_PUT_NUMS": 5, "GROUP_GET_NUMS": 5, "BROKER_PUT_NUMS": 5}
    code, remark = await desk.refused(
        admin.VIEW_BROKER_STATS_DATA, admin.ViewStatsRequest(stats_name="TOPIC_PUT_NUM", stats_key="T")
    )
    assert code == ResponseCode.SYSTEM_ERROR and "TOPIC_PUT_NUMS" in remark


async def test_every_group_of_the_broker(desk: Desk) -> None:
    answer = await desk.ask(admin.GET_BROKER_CONSUME_STATS, admin.BrokerConsumeStatsRequest())
    assert answer.body.endswith(b'"totalDiff":3,"totalInflightDiff":0}')
    inner = answer.body.partition(b'{"g":[')[2].partition(b"]}")[0]
    table, members = load_queue_map(inner, "offsetTable")
    row = table[QueueKey("T", "b", 0)]
    assert (row["brokerOffset"], row["consumerOffset"], members["consumeTps"]) == (5, 2, 0.0)
    ordered = await desk.ask(admin.GET_BROKER_CONSUME_STATS, admin.BrokerConsumeStatsRequest(is_order=True))
    assert b'"consumeStatsList":[],"totalDiff":0' in ordered.body


async def test_time_spans(desk: Desk) -> None:
    answer = await desk.ask(admin.QUERY_CONSUME_TIME_SPAN, GroupTopicRequest(group="g", topic="T"))
    first, *others = answer.body.consume_time_span_set
    assert 0 < first.min_time_stamp <= first.consume_time_stamp <= first.max_time_stamp
    assert 0 <= first.delay_time < 60_000
    assert {span.delay_time for span in others} == {0} and {span.max_time_stamp for span in others} == {0}
    code, _ = await desk.refused(admin.QUERY_CONSUME_TIME_SPAN, GroupTopicRequest(group="g", topic="X"))
    assert code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_lowest_offset_of_all_groups(desk: Desk) -> None:
    await desk.commit("other", 4)
    answers = [
        (await desk.ask(admin.QUERY_CORRECTION_OFFSET, admin.CorrectionOffsetRequest(topic="T", **more))).body
        for more in ({}, {"filter_groups": "g"}, {"compare_group": "other"})
    ]
    assert [each.correction_offsets for each in answers] == [{0: 2}, {0: 4}, {0: 2**63 - 1}]


async def test_a_group_begins_where_another_one_is(desk: Desk) -> None:
    clone = admin.CloneOffsetRequest(src_group="g", dest_group="new", topic="T", offline=True)
    await desk.ask(admin.CLONE_GROUP_OFFSET, clone)
    assert await desk.offset("new") == 2
    await desk.ask(admin.CLONE_GROUP_OFFSET, clone.model_copy(update={"dest_group": "all", "topic": None}))
    assert await desk.offset("all") == 2
    code, _ = await desk.refused(
        admin.CLONE_GROUP_OFFSET, clone.model_copy(update={"dest_group": "no such name!"})
    )
    assert code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    desk.broker.metadata.groups.auto_create = False  # as in RocketMQ: it begins there when it is created
    await desk.ask(admin.CLONE_GROUP_OFFSET, clone.model_copy(update={"dest_group": "later"}))
    assert desk.broker.metadata.offsets.query("later", "T", 0) == 2
    assert "later" not in desk.broker.metadata.groups.table.rows


@pytest.mark.parametrize(
    ("kind", "text", "matched", "filter_data"),
    [
        ("TAG", "*", [True] * 5, "null"),
        ("TAG", "other || none", [False] * 5, "null"),
        ("SQL92", "a IS NULL", [True] * 5, '"expression": "a IS NULL"'),
        ("SQL92", "a > 5", [False] * 5, '"expressionType": "SQL92"'),
    ],
)
async def test_a_look_into_a_queue_with_the_filter_of_a_group(
    desk: Desk, kind: str, text: str, matched: list[bool], filter_data: str
) -> None:
    look = admin.ConsumeQueueRequest(topic="T", count=9, consumer_group="g")
    body = (await desk.ask(admin.QUERY_CONSUME_QUEUE, look)).body
    assert (body.subscription_data, body.filter_data) == (None, "g@T is not online!")
    assert [each.eval for each in body.queue_data] == [True] * 5
    subscription = SubscriptionData(topic="T", sub_string=text, sub_version=7, expression_type=kind)
    consumer = ConsumerData(group_name="g", subscription_data_set=[subscription])
    await desk.ask_with(HEART_BEAT, HeartbeatData(client_id="c@1", consumer_data_set=[consumer]))
    body = (await desk.ask(admin.QUERY_CONSUME_QUEUE, look)).body
    assert body.subscription_data.sub_string == text and body.subscription_data.sub_version == 7
    assert filter_data in body.filter_data
    assert [each.eval for each in body.queue_data] == matched
    without = (await desk.ask(admin.QUERY_CONSUME_QUEUE, admin.ConsumeQueueRequest(topic="T", count=9))).body
    assert (without.subscription_data, without.filter_data, len(without.queue_data)) == (None, None, 5)


async def test_a_reset_needs_a_time_or_an_offset(desk: Desk) -> None:
    reset = ResetOffsetRequest(topic="T", group="g", queue_id=0, is_force=True)
    code, remark = await desk.refused(INVOKE_BROKER_TO_RESET_OFFSET, reset)
    assert (code, remark) == (ResponseCode.SYSTEM_ERROR, "header field timestamp is missing")
    assert await desk.offset("g") == 2
    await desk.ask(INVOKE_BROKER_TO_RESET_OFFSET, reset.model_copy(update={"offset": 4}))
    assert await desk.offset("g") == 4


async def test_system_topics_and_a_look_into_a_queue(desk: Desk) -> None:
    topics = (await desk.ask(admin.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)).body.topic_list
    assert {"SELF_TEST_TOPIC", "TBW102", "b", "DefaultCluster"} <= set(topics) and "T" not in topics
    assert topics == sorted(name for name in desk.broker.topics.topics if desk.broker.topics.is_system(name))
    look = admin.ConsumeQueueRequest(topic="T", queue_id=0, index=3, count=100)
    body = (await desk.ask(admin.QUERY_CONSUME_QUEUE, look)).body
    assert (body.min_queue_index, body.max_queue_index, len(body.queue_data)) == (0, 5, 2)
    assert (
        body.queue_data[0].physic_offset + body.queue_data[0].physic_size == body.queue_data[1].physic_offset
    )
    code, _ = await desk.refused(admin.QUERY_CONSUME_QUEUE, look.model_copy(update={"queue_id": 99}))
    assert code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "operation", [admin.CLEAN_EXPIRED_CONSUMEQUEUE, admin.CLEAN_UNUSED_TOPIC, admin.DELETE_EXPIRED_COMMITLOG]
)
async def test_housekeeping_on_demand(
    desk: Desk, operation: Operation[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> None: ...

    monkeypatch.setattr(desk.broker.retention, "clean", nothing)  # it forgets that it was asked
    await desk.ask(operation)
    assert desk.broker.retention.requested


async def test_lists_of_topics_and_groups_all_or_none(desk: Desk) -> None:
    topics = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 3} for name in ("A", "B")]
    await desk.ask_with(admin.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics})
    assert [desk.broker.topics.topics[name].write_queue_nums for name in ("A", "B")] == [3, 3]
    bad = [{"topicName": "C"}, {"topicName": "no such name!"}]
    answer = await desk.ask_with(admin.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": bad})
    assert isinstance(answer, Failed) and answer.code == ResponseCode.INVALID_PARAMETER
    assert "C" not in desk.broker.topics.topics
    groups = [{"groupName": name, "retryMaxTimes": 3} for name in ("g1", "g2")]
    await desk.ask_with(admin.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": groups})
    rows = desk.broker.metadata.groups.table.rows
    assert [rows[name].config.retry_max_times for name in ("g1", "g2")] == [3, 3]


async def test_what_is_deleted_is_not_counted_on(desk: Desk) -> None:
    pull = PullMessageRequest(consumer_group="g", topic="T", queue_id=0, queue_offset=0, max_msg_nums=9)
    await desk.ask(PULL_MESSAGE, pull)
    reads = desk.broker.stats.reads
    assert ("T", "g") in reads.groups
    await desk.ask(DELETE_SUBSCRIPTIONGROUP, DeleteGroupRequest(group_name="g"))
    assert not reads.groups


async def test_a_broker_without_controllers_has_no_replicas(desk: Desk) -> None:
    body = (await desk.ask(GET_BROKER_HA_STATUS)).body
    assert body.master and body.ha_connection_info == []
    assert body.master_commit_log_max_offset == desk.broker.store.commit_log.max_offset
