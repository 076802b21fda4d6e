"""A small cluster of real processes for real clients, and what tests do to it beside them."""

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations.broker_metadata import (
    QUERY_CONSUMER_OFFSET,
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    ConsumerOffsetRequest,
    CreateTopicRequest,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.clients import (
    GET_CONSUMER_LIST_BY_GROUP,
    INVOKE_BROKER_TO_RESET_OFFSET,
    ConsumerGroupRequest,
    ResetOffsetRequest,
)
from tests.interop.drivers import CPP, Client
from tests.support.harness import SAFE, Harness

LEVELS = " ".join(["1s", "2s", *["1s"] * 16])
"""Retries begin with level 3; tests have no ten seconds."""


class Stage:
    """Brokers that run, clients whose homes are in one directory."""

    def __init__(self, running: Harness, directory: Path, client: RemotingClient) -> None:
        self.running, self._directory, self._client = running, directory, client
        self.namesrv = running.cluster.namesrv_addr

    def producer(self, kind: str, group: str = "Producers") -> Client:
        return Client(kind, self._directory, kind="producer", namesrv=self.namesrv, group=group)

    def consumer(self, kind: str, topic: str, group: str, *, home: str = "", **more: object) -> Client:
        """home: of the second one in a group, which needs its own."""
        directory = self._directory / home
        directory.mkdir(exist_ok=True)
        options = {"namesrv": self.namesrv, "topic": topic, "group": group, **more}
        return Client(kind, directory, kind="consumer", **options)

    def puller(self, topic: str, group: str) -> Client:
        return Client(CPP, self._directory, kind="puller", namesrv=self.namesrv, topic=topic, group=group)

    def wall_ms(self) -> int:
        return int(time.time() * 1000)

    # -- what an operator does ---------------------------------------------------------------------------

    async def master(self) -> str:
        return (await self.running.master()).address

    async def create(self, topic: str, queues: int = 4, *, message_type: str = "") -> None:
        """Before consumers start: one that finds no route looks again after half a minute."""
        header = CreateTopicRequest(
            topic=topic, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6,
            attributes=f"+message.type={message_type}" if message_type else None,
        )  # fmt: skip
        await self._carried_out(UPDATE_AND_CREATE_TOPIC, header, None)
        await self.routed(topic)

    async def group(self, name: str, *, retry_max_times: int) -> None:
        await self.group_settings(SubscriptionGroupConfig(group_name=name, retry_max_times=retry_max_times))

    async def group_settings(self, settings: SubscriptionGroupConfig) -> None:
        await self._carried_out(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), settings)

    async def _carried_out(self, operation: Operation[Any, Any], header: Wire, body: Any) -> None:
        """Waits for a master that the controllers have elected and whose role is still changing."""

        async def accepted() -> bool:
            outcome = await self._client.call(await self.master(), operation, header, body)
            assert isinstance(outcome, Ok) or "role is changing" in outcome.remark, outcome
            return isinstance(outcome, Ok)

        await self._until(f"{operation.name} at the master", accepted)

    async def reset(self, topic: str, group: str) -> None:
        """To the oldest messages."""
        header = ResetOffsetRequest(topic=topic, group=group, timestamp=0, is_force=True)
        outcome = await self._client.call(await self.master(), INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert isinstance(outcome, Ok), outcome

    async def hand_over(self) -> None:
        """Another replica in sync becomes master, by an operator's word."""
        cluster = self.running.cluster
        await self.running.all_in_sync()
        async with AdminClient(self._client) as admin:
            table = await admin.controllers.sync_state_sets(cluster.controller_addr, [cluster.broker_name])
            info = table.replicas_info_table[cluster.broker_name]
            transfer_target = next(
                each.broker_id for each in info.in_sync_replicas if each.broker_id != info.master_broker_id
            )
            await admin.controllers.elect_master(
                cluster.controller_addr,
                cluster_name=cluster.cluster_name,
                broker_name=cluster.broker_name,
                broker_id=transfer_target,
            )

    # -- conditions --------------------------------------------------------------------------------------

    async def routed(self, topic: str) -> None:
        """Every name server knows it."""

        async def known() -> bool:
            async with AdminClient() as admin:
                for address in self.namesrv.split(";"):
                    with contextlib.suppress(AdminError):
                        if not (await admin.name_servers.topic_route(address, topic)).queue_datas:
                            return False
                        continue
                    return False
            return True

        await self._until(f"a route of {topic}", known)

    async def members(self, group: str, count: int) -> None:
        address = await self.master()

        async def there() -> bool:
            header = ConsumerGroupRequest(consumer_group=group)
            outcome = await self._client.call(address, GET_CONSUMER_LIST_BY_GROUP, header)
            return isinstance(outcome, Ok) and len(outcome.body.consumer_id_list) == count

        await self._until(f"{count} members of {group}", there)

    async def committed(self, topic: str, group: str, total: int, queues: int = 4) -> None:
        """The offsets of all queues add up to it."""
        address = await self.master()

        async def done() -> bool:
            found = 0
            for queue_id in range(queues):
                header = ConsumerOffsetRequest(consumer_group=group, topic=topic, queue_id=queue_id)
                outcome = await self._client.call(address, QUERY_CONSUMER_OFFSET, header)
                if isinstance(outcome, Failed):
                    continue
                assert isinstance(outcome, Ok), outcome
                found += outcome.header.offset or 0
            return found == total

        await self._until(f"offsets {total} of {group}", done)

    async def _until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        await self.running.cluster.until(what, condition, timeout_s=30.0)


@contextlib.asynccontextmanager
async def staged(
    directory: Path,
    *,
    brokers: int = 1,
    name_servers: int = 1,
    more: dict[str, str] | None = None,
    namesrv: dict[str, str] | None = None,
    containers: bool = False,
) -> AsyncIterator[Stage]:
    """One broker, or a group of them that acknowledges what all of them have. more: broker settings.
    namesrv: settings of the name servers. containers: see Harness."""
    settings = {
        "messageDelayLevel": LEVELS,
        "mappedFileSizeCommitLog": "16777216",
        "enablePropertyFilter": "true",
    }
    if brokers > 1:
        settings |= SAFE
    settings |= more or {}
    async with Harness(
        directory / "cluster",
        name_servers=name_servers,
        brokers=brokers,
        broker_settings=settings,
        namesrv_settings=namesrv,
        containers=containers,
    ) as running:
        client = RemotingClient()
        try:
            yield Stage(running, directory, client)
        finally:
            await client.close()
