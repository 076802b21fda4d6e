"""Producers inside and outside of the translation, and what they measured during each scenario. Each is a
process, and sends to its own topic, one message after the other."""

import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import now_ms
from tests.cluster.reach.net import INSIDE, OUTSIDE
from tests.cluster.reach.pods import Pods
from tests.interop.drivers import CPP, GRPC_PYTHON, KEELMQ, NODE_JS, Client, missing
from tests.interop.traffic import Traffic

PAUSE_S: Final = 0.03
QUEUES: Final = 4
SETTLED_S: Final = 60.0
READ_S: Final = 120.0

WANTED: Final = (
    (KEELMQ, INSIDE),
    (NODE_JS, INSIDE),
    (KEELMQ, OUTSIDE),
    (NODE_JS, OUTSIDE),
    (CPP, OUTSIDE),
    (GRPC_PYTHON, OUTSIDE),
)


@dataclass(frozen=True, slots=True)
class Row:
    """What one client measured during a scenario. sent: started sends that have ended. `lost` is known at the
    end of a run. why: the first failures."""

    scenario: str
    client: str
    sent: int
    acked: int
    failed: int
    longest_gap_ms: int
    acked_bodies: Sequence[str]
    why: Sequence[str] = ()
    lost: int = 0

    @property
    def is_good(self) -> bool:
        return self.acked > 0 and self.failed == 0 and self.lost == 0


class Sender:
    """One producer. name: its client and its side."""

    def __init__(self, kind: str, side: str, client: Client, traffic: Traffic) -> None:
        self.name, self.side, self.topic = f"{kind} {side}", side, topic_of(kind, side)
        self.client, self.traffic = client, traffic
        self.begin()

    def begin(self) -> None:
        """Measures from now on."""
        self._acked, self._failed = len(self.traffic.sent), len(self.traffic.failed)
        self._began_ms = now_ms()

    def row(self, scenario: str) -> Row:
        """Returns what has happened since begin(). The gap is between two acknowledgements, also if the first
        one came before, or if the second one did not come yet."""
        acked = self.traffic.sent[self._acked :]
        failed = self.traffic.failed[self._failed :]
        times = [*self.traffic.answered_ms[max(0, self._acked - 1) :], now_ms()]
        gaps = [after - before for before, after in itertools.pairwise(times)]
        return Row(
            scenario=scenario,
            client=self.name,
            sent=len(acked) + len(failed),
            acked=len(acked),
            failed=len(failed),
            longest_gap_ms=max(gaps, default=now_ms() - self._began_ms),
            acked_bodies=tuple(acked),
            why=tuple(why for _, why in failed[:3]),
        )


class Senders:
    """`async with Senders(pods, directory) as senders:` all that are on this machine send. `missing`: why
    others are not. `only`: the clients that are wanted."""

    def __init__(self, pods: Pods, directory: Path, only: Sequence[str] = ()) -> None:
        self._pods, self._directory = pods, directory
        chosen = [(kind, side) for kind, side in WANTED if not only or kind in only]
        self._kinds = [each for each in chosen if missing(each[0]) is None]
        self.missing = sorted({reason for kind, _ in chosen if (reason := missing(kind)) is not None})
        self.senders: list[Sender] = []
        self._routes: dict[str, Client] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Senders":
        try:
            await self._begin()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for sender in self.senders:
            await sender.traffic.stop()
        await self._stack.aclose()

    async def _begin(self) -> None:
        topics = [topic_of(kind, side) for kind, side in self._kinds]
        for topic in topics:
            await self._create(topic)
        for side in (INSIDE, OUTSIDE):
            self._routes[side] = await self._enter(KEELMQ, side, kind="routes", group="routes", topics=topics)
        for kind, side in self._kinds:
            topic = topic_of(kind, side)
            client = await self._enter(kind, side, kind="producer", group=topic, topics=[topic])
            self.senders.append(Sender(kind, side, client, Traffic(client, topic, PAUSE_S)))
        await self.more(50)

    async def _enter(self, client: str, side: str, **options: Any) -> Client:
        pods = self._pods
        name_servers = pods.inner_name_servers if side == INSIDE else pods.outer_name_servers
        home = self._directory / side
        home.mkdir(exist_ok=True)
        made = Client(
            client,
            home,
            prefix=pods.network.net.command(side),
            namesrv=name_servers,
            endpoints=pods.outer_proxies,
            **options,
        )
        return await self._stack.enter_async_context(made)

    async def _create(self, topic: str) -> None:
        """Before its producer starts: one that finds no route looks again after half a minute."""
        config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)

        async def created() -> bool:
            master = await self._pods.master()
            async with AdminClient() as admin:
                try:
                    await admin.brokers.update_topic(master.address, config)
                    for address in self._pods.inner_name_servers.split(";"):
                        await admin.name_servers.topic_route(address, topic)
                except AdminError:
                    return False
            return True

        await self._pods.cluster.until(f"the topic {topic}", created, timeout_s=SETTLED_S)

    def begin(self) -> None:
        """Measures from now on."""
        for sender in self.senders:
            sender.begin()

    def rows(self, scenario: str) -> list[Row]:
        return [sender.row(scenario) for sender in self.senders]

    async def more(self, count: int) -> None:
        """Every producer has got so many more acknowledgements."""
        for sender in self.senders:
            await sender.traffic.more(count, SETTLED_S)

    async def stop(self) -> None:
        for sender in self.senders:
            await sender.traffic.stop()

    def shown(self, side: str) -> set[str]:
        """Returns every broker address that name servers have shown at a side."""
        return {event["shown"] for event in self._routes[side].events if "shown" in event}

    async def stored(self, side: str) -> dict[str, list[str]]:
        """Returns {topic: bodies}: all messages, read at one side."""
        reader = await self._enter(KEELMQ, side, kind="reader", group=f"reader-{side}")
        found = {}
        for sender in self.senders:
            reader.tell(topic=sender.topic)
            end = {"end": sender.topic}
            await reader.until(partial(reader.events.__contains__, end), READ_S)
            found[sender.topic] = [each["got"] for each in reader.got if each["topic"] == sender.topic]
        return found


def topic_of(kind: str, side: str) -> str:
    """Returns the topic of a producer."""
    return f"Reach-{kind}-{side}"
