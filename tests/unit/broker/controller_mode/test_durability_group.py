"""Every combination of the durability settings, asked of real groups: a controller and three brokers each, in
this process, over their own sockets. The expected answers are those of docs/durability.md.

test_durability.py has the same answers part by part, without sockets.
"""

import asyncio
import itertools
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.core.durability import guarantees
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from tests.support.reach_in import link_of, sync_by
from tests.unit.namesrv.plugins.controller.test_controller_plugin import members, server

pytestmark = pytest.mark.timeout(120)

SLAVE_TIMEOUT_MS, FLUSH_TIMEOUT_MS = 600, 700
DEADLINE_S = 30.0
REPLICAS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Settings:
    all_ack: bool
    sync_flush: bool
    copies: int
    minimum: int

    @property
    def name(self) -> str:
        return f"group-{'all' if self.all_ack else 'count'}-{self.copies}-{self.minimum}-{self.sync_flush}"

    def config(self, root: Path, controller: str) -> BrokerConfig:
        return BrokerConfig.model_validate(
            {
                "brokerName": self.name,
                "bindAddress": "127.0.0.1",
                "listenPort": 0,
                "httpPort": -1,
                "telemetryEnable": False,
                "storePathRootDir": root,
                "mappedFileSizeCommitLog": 1 << 16,
                "mappedFileSizeConsumeQueue": 2_000,
                "enableControllerMode": True,
                "brokerRole": "SLAVE",  # ignored, and so is the id (broker-ha.md pitfall 24)
                "brokerId": 7,
                "controllerAddr": controller,
                "allAckInSyncStateSet": self.all_ack,
                "inSyncReplicas": self.copies,
                "minInSyncReplicas": self.minimum,
                "flushDiskType": "SYNC_FLUSH" if self.sync_flush else "ASYNC_FLUSH",
                "slaveTimeout": SLAVE_TIMEOUT_MS,
                "syncFlushTimeout": FLUSH_TIMEOUT_MS,
                "haMaxTimeSlaveNotCatchup": 60_000,  # who hangs stays a member
                "shutdownHandOverTimeout": 0,
            }
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """Of the slaves some hang and some are gone; the master's disk answers, or not."""

    name: str
    hang: int = 0
    gone: int = 0
    disk_hangs: bool = False

    def answer(self, settings: Settings) -> tuple[int, str]:
        """docs/durability.md, line by line."""
        in_sync = 3 - self.gone
        if in_sync < settings.minimum:
            return 1, f"in-sync replicas not enough: {in_sync} of at least {settings.minimum}"
        late = f"not replicated within {SLAVE_TIMEOUT_MS} ms"
        if settings.all_ack:
            if self.hang:
                return 12, late
        elif in_sync < settings.copies:
            return 11, f"{late}: fewer replicas are in sync than inSyncReplicas"
        elif in_sync - self.hang < settings.copies:
            return 12, late
        if settings.sync_flush and self.disk_hangs:
            return 10, f"not on disk within {FLUSH_TIMEOUT_MS} ms"
        return 0, ""


SITUATIONS = (
    Situation("all is well"),
    Situation("the disk hangs", disk_hangs=True),
    Situation("one slave hangs", hang=1),
    Situation("both slaves hang", hang=2),
    Situation("one slave and the disk hang", hang=1, disk_hangs=True),
    Situation("both slaves and the disk hang", hang=2, disk_hangs=True),
    Situation("one slave is gone", gone=1),
    Situation("one slave is gone, the other one hangs", hang=1, gone=1),
    Situation("both slaves are gone", gone=2),
    Situation("both slaves are gone, and the disk hangs", gone=2, disk_hangs=True),
)


class Group:
    """A master with two slaves, in sync."""

    def __init__(self, settings: Settings, brokers: list[Broker], stops: list[AsyncExitStack]) -> None:
        self.settings = settings
        self._stops = dict(zip(brokers, stops, strict=True))
        self._brokers = brokers
        self._disk = threading.Event()
        self._disk.set()

    async def ready(self) -> None:
        """The one that is master counts three in sync."""
        await until(lambda: any(self._is_whole(each) for each in self._brokers), self.settings.name)
        self.master = next(each for each in self._brokers if self._is_whole(each))
        self.slaves = [each for each in self._brokers if each is not self.master]
        log, commit = self.master.store.commit_log, self.master.commit
        real_sync = log.sync

        def sync() -> int:
            assert self._disk.wait(DEADLINE_S)
            return real_sync()

        log.sync = sync  # type: ignore[method-assign]  # the store's flusher makes messages durable, too
        if commit is not None:
            sync_by(commit, sync)

    @staticmethod
    def _is_whole(broker: Broker) -> bool:
        return broker.gate.writable and broker.gate.in_sync == 3

    async def bring_about(self, situation: Situation) -> None:
        while len(self.slaves) > 2 - situation.gone:
            await self._stops.pop(self.slaves.pop()).aclose()
        await until(lambda: self.master.gate.in_sync == 3 - situation.gone, "the set shrinks")
        for number, slave in enumerate(self.slaves):
            self._hang(slave, number < situation.hang)
        self._disk.clear() if situation.disk_hangs else self._disk.set()

    @staticmethod
    def _hang(slave: Broker, hangs: bool) -> None:
        assert slave.controlled is not None
        link = link_of(slave.controlled.ha)
        link.pause_reading() if hangs else link.resume_reading()

    async def all_well(self) -> None:
        """Everybody that is there has everything; what waits for nothing is answered too early to tell."""
        self._disk.set()
        for slave in self.slaves:
            self._hang(slave, False)
        end = self.master.store.commit_log.max_offset
        await until(lambda: all(each.store.confirm_offset == end for each in self._stops), "catch up")

    async def stop(self) -> None:
        self._disk.set()
        for stack in self._stops.values():
            await stack.aclose()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def groups(tmp_path: Path, every: list[Settings]) -> AsyncIterator[list[Group]]:
    """All behind one controller; started and stopped together."""
    (controller_config,) = members(tmp_path, ["n0"]).values()
    address = ":".join(map(str, controller_config.request_addresses["n0"]))
    async with server(controller_config):

        async def start(settings: Settings) -> Group:
            brokers, stops = [], []
            for number in REPLICAS:
                stops.append(AsyncExitStack())
                root = tmp_path / settings.name / str(number)
                brokers.append(await stops[-1].enter_async_context(Broker(settings.config(root, address))))
            return Group(settings, brokers, stops)

        made = [await start(settings) for settings in every]
        try:
            await asyncio.gather(*(group.ready() for group in made))
            yield made
        finally:
            await asyncio.gather(*(group.stop() for group in made))


async def ask(client: RemotingClient, group: Group, situation: Situation) -> tuple[int, str]:
    await group.bring_about(situation)
    header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
    outcome = await client.call(group.master.address, SEND_MESSAGE_V2, header, b"x", timeout_ms=20_000)
    assert isinstance(outcome, Ok | Failed), outcome
    await group.all_well()
    return outcome.code, outcome.remark or ""


WAYS = [
    pytest.param(True, True, id="allAckInSyncStateSet-SYNC_FLUSH"),
    pytest.param(True, False, id="allAckInSyncStateSet-ASYNC_FLUSH"),
    pytest.param(False, True, id="inSyncReplicas-SYNC_FLUSH"),
    pytest.param(False, False, id="inSyncReplicas-ASYNC_FLUSH"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("all_ack", "sync_flush"), WAYS)
async def test_what_a_producer_is_answered(
    tmp_path: Path,
    all_ack: bool,
    sync_flush: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """9 pairs of inSyncReplicas and minInSyncReplicas, in 10 situations each. The disk of this machine, which
    27 brokers share, is not what is asked: it is as fast as memory, or hangs."""
    caplog.set_level(logging.INFO, "broker.app.broker")
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)
    every = [Settings(all_ack, sync_flush, *pair) for pair in itertools.product(REPLICAS, REPLICAS)]
    client, wrong = RemotingClient(), []
    async with groups(tmp_path, every) as made:
        await asyncio.gather(*(ask(client, group, SITUATIONS[0]) for group in made))  # creates the topic
        for situation in SITUATIONS:
            answers = await asyncio.gather(*(ask(client, group, situation) for group in made))
            wrong += [
                f"{settings}, {situation.name}: {answer}, not {situation.answer(settings)}"
                for settings, answer in zip(every, answers, strict=True)
                if answer != situation.answer(settings)
            ]
        await client.close()
        for settings in every:
            durability = settings.config(tmp_path, "127.0.0.1:1").durability
            assert durability.failures == (settings.minimum - 1 if all_ack else 0)
            assert set(guarantees(durability)) <= set(caplog.messages), "the start says it"
    assert not wrong, "\n".join(wrong)


def test_the_situations_have_every_documented_answer() -> None:
    every = [Settings(*each) for each in itertools.product((False, True), (False, True), REPLICAS, REPLICAS)]
    codes = [{situation.answer(settings)[0] for situation in SITUATIONS} for settings in every]
    assert set.union(*codes) == {0, 1, 10, 11, 12}
    assert len(every) * len(SITUATIONS) == 360
