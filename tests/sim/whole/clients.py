"""Those who use a group, each a process of its own with the real RemotingClient; they believe answers."""

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from keelmq.client.message import MessageExt, decode_messages, decode_pull
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok, Operation, Outcome, Unknown, Wire
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    UPDATE_CONSUMER_OFFSET,
    CreateTopicRequest,
    SubscriptionGroupConfig,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.operations.controller import ELECT_MASTER, ElectMasterRequest
from tests.sim.whole.judge import Acked
from tests.sim.whole.machines import Process
from tests.sim.whole.programs import CLUSTER, CONTROLLER_PORT, CONTROLLERS, GROUP

if TYPE_CHECKING:
    from tests.sim.whole.group import WholeGroup

TOPICS = ("T0", "T1")
QUEUES = 2
SEND_TIMEOUT_MS = 1_500
OFFSET_HEX = 16
BODY_BYTES: tuple[int, ...] = (0, 20, 200)


class Client:
    """Asks whom it takes for the master; after anything but a yes, another one."""

    def __init__(self, world: "WholeGroup", name: str, host: str) -> None:
        self.world, self.dice = world, Random(world.dice.random())
        self.process = Process(world.loop, name, host)
        self.stopping = False
        self.told: str | None = None
        self.address_index = self.dice.randrange(8)
        self.client: RemotingClient
        self.process.run(self._main)

    async def _main(self) -> None:
        self.client = RemotingClient(
            connect_timeout_ms=500,
            drop_silent_ms=SEND_TIMEOUT_MS,
            signer=self.world.signer_of(self.process.name),
        )
        await self.live()

    async def live(self) -> None:
        raise NotImplementedError

    @property
    def target(self) -> str:
        if self.told is not None:
            return self.told
        addresses = self.world.addresses()
        return addresses[self.address_index % len(addresses)]

    async def ask(
        self, operation: Operation[Any, Any], header: Wire, body: object = None, *, timeout_ms: int = 1_500
    ) -> Outcome[Any]:
        outcome = await self.client.call(self.target, operation, header, body, timeout_ms=timeout_ms)
        if not isinstance(outcome, Ok):
            self.address_index += 1
            self.told = None
        return outcome


class Producer(Client):
    """Some messages under way at once; every answer goes to the judge. `outcomes`: (sent at, answered at,
    outcome), in s and in the order of the answers."""

    def __init__(
        self, world: "WholeGroup", name: str, host: str, *, pause_s: float, in_flight: int = 4
    ) -> None:
        self.pause_s, self.in_flight = pause_s, in_flight
        self.sent = 0
        self.body_bytes = BODY_BYTES
        self.outcomes: list[tuple[float, float, Outcome[Any]]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        super().__init__(world, name, host)

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self.pause_s * self.dice.uniform(0.5, 1.5))
            if not self.stopping and len(self._tasks) < self.in_flight:
                task = asyncio.create_task(self.send())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def send(self, topic: str | None = None, address: str | None = None) -> Outcome[Any]:
        """address: this broker, not whom we take for the master."""
        self.sent += 1
        dice, topic = self.dice, topic or self.dice.choice(TOPICS)
        body = f"{self.process.name}-{self.sent:06d}-".encode() + b"x" * dice.choice(self.body_bytes)
        header = SendMessageRequestV2(
            a="P", b=topic, d=QUEUES, e=dice.randrange(QUEUES), g=1, i=f"UNIQ_KEY\x01{self.sent:016X}\x02"
        )
        self.world.judge.sent.add(body)
        begun, asked = self.world.loop.time(), address or self.target
        if address is not None:
            outcome = await self.client.call(
                address, SEND_MESSAGE_V2, header, body, timeout_ms=SEND_TIMEOUT_MS
            )
        else:
            outcome = await self.ask(SEND_MESSAGE_V2, header, body, timeout_ms=SEND_TIMEOUT_MS)
        self.outcomes.append((begun, self.world.loop.time(), outcome))
        if isinstance(outcome, Ok):
            answer = outcome.header
            offset = int(answer.msg_id[-OFFSET_HEX:], 16)
            if address is None and answer.master_address is not None:
                self.told = answer.master_address  # it was handed on: the route was old
            acked = Acked(body, offset, topic, answer.queue_id, answer.queue_offset)
            self.world.acknowledged(acked, asked)
        return outcome


class Consumer(Client):
    """Reads every queue, at masters and slaves, and commits what it has read. A commit that is not final may
    be carried out late: the group is not used any more. `damaged_records`: how many it has received."""

    def __init__(self, world: "WholeGroup", name: str, host: str) -> None:
        self.generation = self.damaged_records = 0
        self.read: dict[tuple[str, int], int] = {}
        super().__init__(world, name, host)

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.05, 0.25))
            if self.stopping:
                continue
            topic, queue_id = self.dice.choice(TOPICS), self.dice.randrange(QUEUES)
            if self.dice.random() < 0.3:
                self.address_index += 1
            await self.pull(topic, queue_id)
            if self.dice.random() < 0.5:
                await self.commit(topic, queue_id)

    async def pull(self, topic: str, queue_id: int) -> None:
        key = topic, queue_id
        begin = self.read.get(key, 0) if self.dice.random() < 0.8 else 0
        header = PullMessageRequest(
            consumer_group="readers", topic=topic, queue_id=queue_id, queue_offset=begin, max_msg_nums=32
        )
        outcome = await self.client.call(self.target, PULL_MESSAGE, header, timeout_ms=500)
        if isinstance(outcome, Ok) and outcome.body:
            for message in self.decoded(bytes(outcome.body), begin, outcome.header.next_begin_offset):
                self.world.judge.consumed(topic, queue_id, message.queue_offset, message.body)
                self.read[key] = max(self.read.get(key, 0), message.queue_offset + 1)

    def decoded(self, body: bytes, begin: int, end: int) -> list[MessageExt]:
        """Returns the messages of a pull body that a client takes for whole. Where no disk is damaged, that
        is all of them."""
        if not self.world.bad_disk.struck:
            return decode_messages(body)
        pull = decode_pull(body, begin=begin, end=end)
        self.damaged_records += len(pull.damaged)
        return pull.messages

    async def commit(self, topic: str, queue_id: int) -> None:
        offset, group = self.read.get((topic, queue_id), 0), f"readers-{self.generation}"
        header = UpdateConsumerOffsetRequest(
            consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        power_cuts = self.world.power_cuts
        outcome = await self.ask(UPDATE_CONSUMER_OFFSET, header)
        key = group, topic, queue_id
        if isinstance(outcome, Ok):
            if self.world.power_cuts == power_cuts:  # else the answer may have been under way at the cut
                self.world.judge.offsets[key] = offset
        elif not self.world.is_final(outcome):
            self.generation += 1
            self.world.judge.offsets = {
                each: value for each, value in self.world.judge.offsets.items() if each[0] != group
            }


class Administrator(Client):
    """Makes topics and groups, each once."""

    made = 0

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.2, 1.2))
            if not self.stopping:
                await self.make()

    async def make(self) -> None:
        self.made += 1
        judge = self.world.judge
        if self.dice.random() < 0.5:
            name, queues = f"made-{self.made}", self.dice.randint(1, 4)
            header = CreateTopicRequest(
                topic=name, default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues, perm=6
            )
            if isinstance(await self.ask(UPDATE_AND_CREATE_TOPIC, header), Ok):
                judge.topics[name] = queues
        else:
            config = SubscriptionGroupConfig(group_name=f"group-{self.made}")
            if isinstance(await self.ask(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Wire(), config), Ok):
                judge.groups.add(config.group_name)


class Operator(Client):
    """electMaster, at whichever controller leads. `last`: its answer."""

    last: Outcome[Any] = Unknown("nothing was asked")

    async def live(self) -> None:
        await asyncio.Event().wait()

    async def elect(self, broker_id: int) -> bool:
        header = ElectMasterRequest(
            cluster_name=CLUSTER, broker_name=GROUP, broker_id=broker_id, designate_elect=True
        )
        for name in CONTROLLERS:
            address = f"{name}:{CONTROLLER_PORT}"
            outcome = await self.client.call(address, ELECT_MASTER, header, timeout_ms=3_000)
            self.last = outcome
            if isinstance(outcome, Ok):
                return True
            if getattr(outcome, "code", None) not in (
                ResponseCode.CONTROLLER_NOT_LEADER,
                ResponseCode.RPC_SEND_TO_CHANNEL_FAILED,
            ):
                return False
        return False
