"""A producer that behaves like RocketMQ's own: it polls the route every 30 s, and nothing makes it read the
route earlier; each retry goes to another broker name where the route has one (docs/adr/0041).
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keelmq.remoting.codes import MASTER_ID, PERM_WRITE
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Ok, Outcome, Unknown
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest, TopicRouteData
from tests.sim.whole.clients import OFFSET_HEX, TOPICS, Producer
from tests.sim.whole.group import WholeGroup
from tests.sim.whole.judge import Acked
from tests.sim.whole.programs import CONTROLLERS, NAMESRV_PORT

if TYPE_CHECKING:
    from keelmq.security.signer import Signer

POLL_S = 30.0
TRIES = 4
"""Node's; Java has 3, C++ 5. The first may have been at the dying master, the second at an alias that was
about to forward to it."""
SEND_MS = 3_000
"""For all tries of one message."""

Queue = tuple[str, int]
"""brokerName, queueId."""


def as_java(command: RemotingCommand, address: str) -> None:
    """A client of RocketMQ's, for name servers."""
    command.language = "JAVA"


class StockWorld(WholeGroup):
    """Name servers show aliases, and producers are RocketMQ's."""

    def controller_settings(self, name: str) -> dict[str, object]:
        return {"routeAliasesEnable": True}

    def signer_of(self, client: str) -> "Signer | None":
        return as_java

    def start_clients(self, *, producers: int = 2, pause_s: float = 0.05, others: bool = True) -> None:
        super().start_clients(producers=0, pause_s=pause_s, others=others)
        self.clients[:0] = [
            StockProducer(self, f"s{n}", f"10.0.2.{n}", pause_s=pause_s) for n in range(1, producers + 1)
        ]


class StockProducer(Producer):
    """`failed`: messages whose tries all failed. `tries`: of all messages."""

    def __init__(self, *args: Any, **more: Any) -> None:
        self.failed: list[str] = []
        self.tries = self.polls = 0
        self.waits_ms: list[int] = []
        self._queues: dict[str, list[Queue]] = {}
        self._masters: Mapping[str, str] = {}
        self._next = 0
        super().__init__(*args, **more)

    async def live(self) -> None:
        polls = asyncio.create_task(self._poll_forever())
        try:
            await super().live()
        finally:
            polls.cancel()

    async def _poll_forever(self) -> None:
        while True:
            for topic in TOPICS:
                await self._poll(topic)
            await asyncio.sleep(POLL_S if all(self._queues.get(each) for each in TOPICS) else 0.2)

    async def _poll(self, topic: str) -> None:
        """A failed poll leaves the route as it was."""
        header = RouteRequest(topic=topic if topic in self._queues else "TBW102")
        for name in self.dice.sample(CONTROLLERS, len(CONTROLLERS)):
            outcome = await self.client.call(
                f"{name}:{NAMESRV_PORT}", GET_ROUTEINFO_BY_TOPIC, header, timeout_ms=1_000
            )
            if isinstance(outcome, Ok) and isinstance(outcome.body, TopicRouteData):
                self.polls += 1
                return self._take(topic, outcome.body)
        return None

    def _take(self, topic: str, route: TopicRouteData) -> None:
        masters = {
            each.broker_name: each.broker_addrs[MASTER_ID]
            for each in route.broker_datas
            if MASTER_ID in each.broker_addrs
        }
        self._masters = {**self._masters, **masters}
        self._queues[topic] = [
            (each.broker_name, queue_id)
            for each in sorted(route.queue_datas, key=lambda each: each.broker_name)
            if each.perm & PERM_WRITE and each.broker_name in masters
            for queue_id in range(min(each.write_queue_nums, 2))
        ]

    def _choose(self, topic: str, last: str | None) -> Queue:
        queues = self._queues[topic]
        for _ in queues:
            self._next += 1
            chosen = queues[self._next % len(queues)]
            if chosen[0] != last:
                break
        return chosen

    async def send(self, topic: str | None = None, address: str | None = None) -> Outcome[Any]:
        topic = topic or self.dice.choice(TOPICS)
        if not self._queues.get(topic):
            return Unknown("no route yet")
        self.sent += 1
        body = f"{self.process.name}-{self.sent:06d}-".encode()
        outcome: Outcome[Any] = Unknown("not sent")
        last: str | None = None
        begun = self.world.loop.time()
        for _ in range(TRIES):
            left_ms = SEND_MS - round((self.world.loop.time() - begun) * 1_000)
            if left_ms <= 0:
                break
            last, queue_id = self._choose(topic, last)
            self.tries += 1
            header = SendMessageRequestV2(
                a="P", b=topic, c="TBW102", d=2, e=queue_id, g=1, i=f"UNIQ_KEY\x01{self.sent:016X}\x02"
            )
            asked = self._masters[last]
            outcome = await self.client.call(asked, SEND_MESSAGE_V2, header, body, timeout_ms=left_ms)
            if isinstance(outcome, Ok):
                answer = outcome.header
                offset = int(answer.msg_id[-OFFSET_HEX:], 16)
                self.world.acknowledged(
                    Acked(body, offset, topic, answer.queue_id, answer.queue_offset), asked
                )
                self.waits_ms.append(round((self.world.loop.time() - begun) * 1_000))
                return outcome
        self.failed.append(f"{self.sent} at {self.world.loop.time():.2f}: {outcome}")
        return outcome
