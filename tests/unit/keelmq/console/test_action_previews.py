"""What a preview warns of is what the action would do, at the edges: offset 0, and many topics."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from keelmq import Message
from keelmq.blocking import BlockingProducer
from keelmq.client.admin import AdminClient
from keelmq.console.actions import permissions
from keelmq.console.actions.action import Acting
from keelmq.console.actions.consumers import LATEST, RESET_OFFSET, ResetOffset
from keelmq.console.actions.permissions import WIPE_WRITE_PERM, BrokerName
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import QueueData
from pytest_keelmq.cluster import TestBroker


async def test_skipping_from_offset_0_tells_how_much_is_skipped(tmp_path: Path) -> None:
    with TestBroker(tmp_path) as broker:
        broker.create_topic("orders", queues=1)
        with BlockingProducer(broker.namesrv_addr) as producer:
            for _ in range(5):
                producer.send(Message("orders", b"x"))
        async with AdminClient() as admin:
            await admin.groups.update_group(broker.broker_addr, SubscriptionGroupConfig(group_name="billing"))
            await admin.groups.reset_offset(broker.broker_addr, "billing", "orders", timestamp=0, force=True)
            acting = Acting(admin, (broker.namesrv_addr,))
            asked = ResetOffset(group="billing", topic="orders", at_ms=LATEST)
            preview = await RESET_OFFSET.preview(acting, asked)
            assert preview.warnings == ["about 5 messages are skipped: billing will not get them"]
            await RESET_OFFSET.run(acting, asked)
            back = await RESET_OFFSET.preview(acting, ResetOffset(group="billing", topic="orders", at_ms=0))
            assert back.warnings == ["about 5 messages are consumed once more"]


class ManyTopics:
    """An AdminClient of a name server with `count` topics; the last one is writable at two brokers."""

    def __init__(self, count: int) -> None:
        self._topics, self.name_servers = [f"topic-{number}" for number in range(count)], self

    async def topic_list(self, _: str) -> list[str]:
        return self._topics

    async def topic_route(self, _: str, topic: str) -> object:
        names = ["broker-a", "broker-b"] if topic == self._topics[-1] else ["broker-a"]
        queues = [
            QueueData(broker_name=each, read_queue_nums=1, write_queue_nums=1, perm=6) for each in names
        ]
        return SimpleNamespace(queue_datas=queues)


async def test_a_wipe_warns_of_every_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    acting = Acting(cast(AdminClient, ManyTopics(501)), ("10.0.0.1:9876",))
    preview = await WIPE_WRITE_PERM.preview(acting, BrokerName(broker_name="broker-a"))
    assert preview.warnings[0].startswith("500 topics have no other writable broker: topic-0, ")
    assert len(preview.warnings) == 1 and preview.type_to_confirm == "broker-a"
    monkeypatch.setattr(permissions, "TOPICS_ASKED_MAX", 400)
    cut = await WIPE_WRITE_PERM.preview(acting, BrokerName(broker_name="broker-b"))
    assert cut.warnings == ["101 more topics were not looked at"] and cut.type_to_confirm == "broker-b"
