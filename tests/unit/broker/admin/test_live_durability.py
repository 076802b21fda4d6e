"""Changes of durability settings (25) in a running group of three: producers get other answers at once.

The situations and their answers are those of test_durability_group.py, which has a group for each setting.
"""

import asyncio
import os
from pathlib import Path

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from tests.unit.broker.controller_mode.test_durability_group import (
    SITUATIONS,
    Group,
    Settings,
    Situation,
    ask,
    groups,
    until,
)

START = Settings(all_ack=False, sync_flush=False, copies=1, minimum=1)
STEPS = (
    Settings(all_ack=True, sync_flush=False, copies=1, minimum=1),
    Settings(all_ack=True, sync_flush=True, copies=1, minimum=2),
    Settings(all_ack=False, sync_flush=True, copies=2, minimum=1),
    Settings(all_ack=False, sync_flush=False, copies=2, minimum=3),
    Settings(all_ack=False, sync_flush=False, copies=1, minimum=1),
    Settings(all_ack=False, sync_flush=True, copies=1, minimum=1),
    Settings(all_ack=False, sync_flush=False, copies=3, minimum=1),
)
HANGING = tuple(each for each in SITUATIONS if not each.gone)
FEW = tuple(each for each in HANGING if each.name in ("the disk hangs", "one slave hangs"))


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


async def change(client: RemotingClient, broker: Broker, **settings: object) -> str:
    """Returns the remark."""
    lines = [
        f"{key}={str(value).lower() if value in (True, False) else value}" for key, value in settings.items()
    ]
    outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), "\n".join(lines).encode())
    assert isinstance(outcome, Ok), outcome
    return outcome.remark or ""


async def use(client: RemotingClient, group: Group, settings: Settings) -> None:
    for broker in (*group.slaves, group.master):
        await change(
            client,
            broker,
            allAckInSyncStateSet=settings.all_ack,
            inSyncReplicas=settings.copies,
            minInSyncReplicas=settings.minimum,
            flushDiskType="SYNC_FLUSH" if settings.sync_flush else "ASYNC_FLUSH",
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "situations"),
    [pytest.param(STEPS[:4], FEW, id="few"), pytest.param(STEPS, HANGING, id="all")],
)
async def test_producers_get_the_answers_of_the_new_settings(
    tmp_path: Path, client: RemotingClient, steps: tuple[Settings, ...], situations: tuple[Situation, ...]
) -> None:
    async with groups(tmp_path, [START]) as (group,):
        await ask(client, group, SITUATIONS[0])  # creates the topic
        wrong = []
        for settings in (START, *steps):
            await use(client, group, settings)
            for situation in situations:
                answer = await ask(client, group, situation)
                if answer != situation.answer(settings):
                    wrong.append(f"{settings}, {situation.name}: {answer}, not {situation.answer(settings)}")
    assert not wrong, "\n".join(wrong)


async def test_what_waits_is_answered_by_the_new_settings(tmp_path: Path, client: RemotingClient) -> None:
    """A message waits for hanging slaves and a hanging disk when the operator gives up the one, then the
    other."""
    settings = Settings(all_ack=True, sync_flush=True, copies=1, minimum=1)
    async with groups(tmp_path, [settings]) as (group,):
        await ask(client, group, SITUATIONS[0])
        await change(client, group.master, slaveTimeout=60_000, syncFlushTimeout=60_000)
        hung = asyncio.create_task(ask(client, group, Situation("all hang", hang=2, disk_hangs=True)))
        await until(lambda: len(group.master.pending) == 1, "the message waits")
        await change(client, group.master, allAckInSyncStateSet=False)
        assert len(group.master.pending) == 1, "for the disk"
        await change(client, group.master, flushDiskType="ASYNC_FLUSH")
        assert await hung == (0, "")


@pytest.mark.slow
async def test_lag_and_timeout(tmp_path: Path, client: RemotingClient) -> None:
    """A slave that hangs stays a member for a minute, then for a second; slaveTimeout is in the answer."""
    settings = Settings(all_ack=True, sync_flush=False, copies=1, minimum=1)
    hangs = Situation("one slave hangs", hang=1)
    async with groups(tmp_path, [settings]) as (group,):
        await ask(client, group, SITUATIONS[0])
        await change(client, group.master, slaveTimeout=300)
        assert await ask(client, group, hangs) == (12, "not replicated within 300 ms")
        await change(client, group.master, slaveTimeout=60_000, haMaxTimeSlaveNotCatchup=800)
        assert await ask(client, group, hangs) == (0, ""), "the slave leaves; the other one has the message"


async def test_a_silent_link_ends_by_the_new_interval(tmp_path: Path, client: RemotingClient) -> None:
    """A link that is silent for haHousekeepingInterval ends; with the old 20 s it would not yet."""
    settings = Settings(all_ack=True, sync_flush=False, copies=1, minimum=1)
    async with groups(tmp_path, [settings]) as (group,):
        for broker in (group.master, *group.slaves):
            await change(
                client, broker, haSendHeartbeatInterval=100, haHousekeepingInterval=400,
                brokerHeartbeatInterval=50, controllerHeartBeatTimeoutMills=900,
            )  # fmt: skip
        assert group.slaves[0].controlled is not None
        link = group.slaves[0].controlled.ha.client
        await group.bring_about(Situation("both hang", hang=2))
        await until(
            lambda: link is not None and "the master was silent" in link.last_reason, "a silent link ends"
        )


async def test_a_change_that_weakens_the_promise_is_told(tmp_path: Path, client: RemotingClient) -> None:
    settings = Settings(all_ack=True, sync_flush=True, copies=1, minimum=2)
    async with groups(tmp_path, [settings]) as (group,):
        weaker = await change(client, group.master, allAckInSyncStateSet=False)
        assert "now RPO: replication is asynchronous" in weaker
        assert "now RPO at a power cut: up to" in await change(
            client, group.master, flushDiskType="ASYNC_FLUSH"
        )
        assert "in-sync replicas not enough: 3 of at least 4" in await change(
            client, group.master, minInSyncReplicas=4
        )
        assert isinstance(
            await client.call(group.master.address, UPDATE_BROKER_CONFIG, Empty(), b"listenPort=1"), Failed
        )
        await change(client, group.master, minInSyncReplicas=1)
