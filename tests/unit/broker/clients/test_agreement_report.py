"""What a broker says (28) of groups whose members subscribe differently, or have left a topic."""

from pathlib import Path

from broker.app.broker import Broker
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations import clients
from keelmq.remoting.operations.broker_metadata import UPDATE_CONSUMER_OFFSET, UpdateConsumerOffsetRequest
from tests.unit.broker.app.test_broker_app import config, send


class Member:
    """A consumer of group `billing` over a connection of its own."""

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.client, self._broker, self._id = RemotingClient(), broker, client_id

    async def subscribe(self, **expressions: str) -> None:
        """Sends a heartbeat with these topics."""
        subscriptions = [
            clients.SubscriptionData(topic=topic, sub_string=each, sub_version=1)
            for topic, each in expressions.items()
        ]
        consumer = clients.ConsumerData(group_name="billing", subscription_data_set=subscriptions)
        body = clients.HeartbeatData(client_id=self._id, consumer_data_set=[consumer])
        assert isinstance(await self.client.call(self._broker.address, clients.HEART_BEAT, Empty(), body), Ok)


async def test_a_broker_names_the_groups(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, AdminClient() as admin:
        one, two = Member(broker, "one"), Member(broker, "two")
        assert isinstance(await send(one.client, broker, b"x"), Ok)
        topic = "T"  # of send()

        async def said() -> tuple[str, str]:
            info = await admin.brokers.runtime_info(broker.address)
            return info["subscriptionsDiffer"], info["topicsNotConsumed"]

        await one.subscribe(**{topic: "*", "other": "*"})
        await two.subscribe(**{topic: "*", "other": "*"})
        assert await said() == ("", "")
        await two.subscribe(other="*")
        assert await said() == ("billing", "")
        await one.subscribe(other="*")
        assert await said() == ("", ""), "the group has consumed nothing of it"
        header = UpdateConsumerOffsetRequest(
            consumer_group="billing", topic=topic, queue_id=0, commit_offset=0
        )
        assert isinstance(await one.client.call(broker.address, UPDATE_CONSUMER_OFFSET, header), Ok)
        assert await said() == ("", f"billing@{topic}")
        done = header.model_copy(update={"commit_offset": broker.store.max_queue_offset(topic, 0)})
        assert isinstance(await one.client.call(broker.address, UPDATE_CONSUMER_OFFSET, done), Ok)
        assert await said() == ("", ""), "there is nothing left to consume"
        for each in (one, two):
            await each.client.close()
