"""A consumer that gets nothing because of its address, its rights or its topic says so."""

import logging

import pytest

from keelmq import Consumer, PushConsumer
from keelmq.client.admin import AdminClient
from keelmq.client.consumer import unassigned_topics
from keelmq.client.consumer.group import GroupMember
from keelmq.client.consumer.process_queue import ProcessQueue
from keelmq.client.consumer.settings import ConsumerSettings
from keelmq.client.consumer.unassigned_topics import WARN_AFTER_MS, WARN_EVERY_MS, UnassignedTopics
from keelmq.client.core.subscription import Subscription
from keelmq.remoting.operations.route import TopicConfig
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import Seen, until
from tests.support.reach_in import member_of, no_topic_since_ms

ERROR = ValueError("no name server answered")


class NoSink:
    def adopted(self, worker: ProcessQueue) -> None: ...

    def arrived(self, worker: ProcessQueue) -> None: ...

    async def released(self, worker: ProcessQueue, *, closing: bool) -> None: ...


def test_what_lasts_is_told_once_in_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    topics = UnassignedTopics("g")
    for at_ms in range(0, WARN_AFTER_MS, 1_000):
        topics.rebalanced({"T": ERROR}, at_ms)
    assert not caplog.records, "a fail-over, or a topic that is created soon"
    for at_ms in range(WARN_AFTER_MS, WARN_AFTER_MS + WARN_EVERY_MS + 1, 1_000):
        topics.rebalanced({"T": ERROR}, at_ms)
    assert [record.getMessage() for record in caplog.records] == [
        "group g: the queues of T cannot be assigned for 5 s now: no name server answered",
        "group g: the queues of T cannot be assigned for 65 s now: no name server answered",
    ]


def test_an_assignment_in_between_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    topics = UnassignedTopics("g")
    topics.rebalanced({"T": ERROR}, 0)
    topics.rebalanced({}, WARN_AFTER_MS - 1)
    topics.rebalanced({"T": ERROR}, WARN_AFTER_MS)
    assert not caplog.records


def test_many_topics_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    topics = UnassignedTopics("g")
    for at_ms in (0, WARN_AFTER_MS):
        topics.rebalanced({f"T{number}": ERROR for number in range(100)}, at_ms)
    (record,) = caplog.records
    assert "T0, T1, T2, T3, T4 and 95 more cannot be assigned for 5 s" in record.getMessage()


async def test_a_member_without_a_name_server_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unassigned_topics, "WARN_AFTER_MS", 0)
    member = GroupMember("127.0.0.1:1", "g", ConsumerSettings(), NoSink(), consume_type="CONSUME_PASSIVELY")
    member.subscribe(Subscription("T"))
    with caplog.at_level(logging.WARNING):
        await member.start()
        await member.stop()
    assert (
        "group g: the queues of T cannot be assigned for 0 s now: no name server answered (127.0.0.1:1"
        in caplog.text
    )


def test_a_member_without_a_subscription_is_told(caplog: pytest.LogCaptureFixture) -> None:
    topics = UnassignedTopics("g")
    for at_ms in range(0, WARN_AFTER_MS + WARN_EVERY_MS + 1, 1_000):
        topics.rebalanced({}, at_ms, subscribed=False)
    assert [record.getMessage() for record in caplog.records] == [
        "group g gets no messages: it subscribes to no topic, see subscribe()"
    ] * 2
    caplog.clear()
    topics.rebalanced({}, 99_000_000)
    topics.rebalanced({}, 99_000_001, subscribed=False)
    assert not caplog.records


async def test_a_topic_that_nobody_may_read_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unassigned_topics, "WARN_AFTER_MS", 0)
    with TestBroker() as broker:
        broker.create_topic("T", queues=1)
        config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=2)
        async with AdminClient() as admin:
            await admin.brokers.update_topic(broker.broker_addr, config)
        async with Consumer(broker.namesrv_addr, "g").subscribe("T") as consumer:
            member_of(consumer).rebalance_soon()
            await until(lambda: "no queue of it may be read" in caplog.text, "the warning")
        async with PushConsumer(broker.namesrv_addr, "h", Seen()) as pushed:  # only its retry topic
            await until(lambda: no_topic_since_ms(pushed) is not None)
