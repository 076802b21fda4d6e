"""Promise S3 with real processes: topics, groups and offsets acknowledged before kill -9 exist after it."""

from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Program
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations.broker import DELETE_TOPIC_IN_BROKER, TopicRequest
from keelmq.remoting.operations.broker_metadata import (
    GET_SUBSCRIPTIONGROUP_CONFIG,
    GET_TOPIC_CONFIG,
    QUERY_CONSUMER_OFFSET,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    ConsumerOffsetRequest,
    CreateTopicRequest,
    GroupRequest,
    SubscriptionGroupConfig,
    UpdateConsumerOffsetRequest,
)
from tests.support.harness import TOPIC, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

RETRIES = 16
CHANGES = 20
MESSAGES = 1_000
"""So many that every queue has more than the offsets that are committed."""
ATTRIBUTES = {"message.type": "FIFO"}


class Clerk:
    """Changes metadata at a master, and remembers what was acknowledged."""

    def __init__(self, running: Harness) -> None:
        self.running = running
        self.client = RemotingClient()
        self.topics: set[str] = set()
        self.deleted: set[str] = set()
        self.offsets: dict[str, int] = {}

    async def ask(
        self, at: Program, operation: Operation[Any, Any], header: Wire, body: object = None
    ) -> Any:
        return await self.client.call(at.address, operation, header, body, timeout_ms=5_000)

    async def must(
        self, at: Program, operation: Operation[Any, Any], header: Wire, body: object = None
    ) -> None:
        """Refused while the new master's set is small: asked again until it is acknowledged."""

        async def look() -> bool:
            return isinstance(await self.ask(at, operation, header, body), Ok)

        await self.running.cluster.until(f"{operation.name} is acknowledged", look, timeout_s=20)

    async def change(self, master: Program, name: str, offset: int) -> None:
        topic = CreateTopicRequest(
            topic=name,
            default_topic="TBW102",
            read_queue_nums=3,
            write_queue_nums=3,
            perm=6,
            attributes="+message.type=FIFO",
        )
        group = SubscriptionGroupConfig(group_name=f"group-{name}", retry_max_times=offset % RETRIES)
        commit = UpdateConsumerOffsetRequest(
            consumer_group=f"group-{name}", topic=TOPIC, queue_id=0, commit_offset=offset
        )
        await self.must(master, UPDATE_AND_CREATE_TOPIC, topic)
        await self.must(master, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), group)
        await self.must(master, UPDATE_CONSUMER_OFFSET, commit)
        self.topics.add(name)
        self.offsets[name] = offset

    async def delete(self, master: Program, name: str) -> None:
        await self.must(master, DELETE_TOPIC_IN_BROKER, TopicRequest(topic=name))
        self.topics.discard(name)
        self.deleted.add(name)

    async def check(self, at: Program) -> None:
        """Everything that was acknowledged is at this broker."""
        for name in sorted(self.topics):
            outcome = await self.ask(at, GET_TOPIC_CONFIG, TopicRequest(topic=name))
            assert isinstance(outcome, Ok) and outcome.body.attributes == ATTRIBUTES, (at.name, name, outcome)
            outcome = await self.ask(at, GET_SUBSCRIPTIONGROUP_CONFIG, GroupRequest(group=f"group-{name}"))
            assert isinstance(outcome, Ok), (at.name, name, outcome)
            assert outcome.body.retry_max_times == self.offsets[name] % RETRIES
            request = ConsumerOffsetRequest(consumer_group=f"group-{name}", topic=TOPIC, queue_id=0)
            outcome = await self.ask(at, QUERY_CONSUMER_OFFSET, request)
            assert isinstance(outcome, Ok), (at.name, name, outcome)
            assert outcome.header.offset == self.offsets[name], (at.name, name)
        for name in sorted(self.deleted):
            outcome = await self.ask(at, GET_TOPIC_CONFIG, TopicRequest(topic=name))
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.TOPIC_NOT_EXIST, (
                at.name,
                name,
            )


async def test_acknowledged_metadata_survives_killed_masters(tmp_path: Path) -> None:
    """user-pain 37-39 and 42: nothing is lost, nothing comes back, at once."""
    async with Harness(tmp_path) as running:
        clerk = Clerk(running)
        running.produce()
        try:
            await running.acked(MESSAGES)
            for round_ in range(3):
                master = await running.master()
                for n in range(CHANGES):
                    await clerk.change(master, f"T{round_}-{n}", round_ * CHANGES + n)
                await clerk.delete(master, f"T{round_}-0")
                running.cluster.kill(master)  # in the moment of the last acknowledgement
                transfer_target = await running.new_master(master)
                await clerk.check(transfer_target)
                running.cluster.start_program(master)
            await running.all_in_sync()
            for program in running.cluster.brokers:
                await clerk.check(program)
        finally:
            await clerk.client.close()
        for program in running.cluster.brokers:
            assert "Traceback" not in program.log_path.read_text()


async def test_offsets_of_one_way_commits_follow_within_the_batch(tmp_path: Path) -> None:
    """Oneway: nobody hears of it, and it is on the others within 100 ms and a round trip."""
    async with Harness(tmp_path) as running:
        clerk = Clerk(running)
        running.produce()
        try:
            await running.acked(MESSAGES)
            master = await running.master()
            await clerk.change(master, "T", 1)
            commit = UpdateConsumerOffsetRequest(
                consumer_group="group-T", topic=TOPIC, queue_id=0, commit_offset=17
            )
            await clerk.client.oneway(master.address, UPDATE_CONSUMER_OFFSET, commit)
            clerk.offsets["T"] = 17
            request = ConsumerOffsetRequest(consumer_group="group-T", topic=TOPIC, queue_id=0)

            async def everywhere() -> bool:
                outcomes = [
                    await clerk.ask(p, QUERY_CONSUMER_OFFSET, request) for p in running.cluster.brokers
                ]
                return all(isinstance(o, Ok) and o.header.offset == 17 for o in outcomes)

            await running.cluster.until("the offset is on every replica", everywhere, timeout_s=5)
            running.cluster.kill(master)
            await clerk.check(await running.new_master(master))
        finally:
            await clerk.client.close()
