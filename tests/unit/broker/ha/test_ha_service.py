"""Two and three HaServices in one loop, over loopback, with real stores."""

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock, patch

import pytest
import uvloop
from msgspec.structs import replace

from broker.ha.core.epochs import Epochs
from broker.ha.core.frames import ACK, Ack, MasterHandshake, SlaveHandshake, TransferHeader
from broker.ha.epoch_file import EpochFile
from broker.ha.log_epochs import LogEpochs
from broker.ha.ports import HaSettings
from broker.ha.report import runtime_info, status_of
from broker.ha.service import HaService
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store
from keelmq.remoting.operation import LocalProtocolError, Wire
from keelmq.remoting.operations.controller import SyncStateSet
from tests.support.ha_parts import ha_service, ha_settings
from tests.support.reach_in import link_of

FILE_BYTES = 64 << 10
HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"


@dataclass
class TopicT:
    name: str = "T"
    topic_raw: bytes = b"\x01T"  # with its length


class Controller:
    """The agreed set; `lose` makes that many answers get lost after the effect."""

    def __init__(self, members: set[int]) -> None:
        self.set = SyncStateSet(sync_state_set=sorted(members), sync_state_set_epoch=1)
        self.lose = 0
        self.down = False
        self.history: list[list[int]] = []

    def alter(self, new: frozenset[int], epoch: int) -> SyncStateSet | None:
        if self.down or epoch != self.set.sync_state_set_epoch:
            return None
        self.set = SyncStateSet(sync_state_set=sorted(new), sync_state_set_epoch=epoch + 1)
        self.history.append(sorted(new))
        if self.lose:
            self.lose -= 1
            return None
        return self.set


class Broker:
    """A store, a service, and what the service tells."""

    def __init__(self, root: Path, controller: Controller, broker_id: int, settings: HaSettings) -> None:
        self.controller = controller
        self.broker_id = broker_id
        self.store = offline_store(StoreConfig(root, FILE_BYTES, 6000))
        self.store.load()
        self.replicated: list[int] = []
        self.counts: list[int] = []
        self.looks = 0
        self.settings, self.epoch_path = settings, root / "epochFileCheckpoint"
        self.service = self.new_service(one_message_waits=self.one_message_waits)

    def new_service(self, **options: Any) -> HaService:
        return ha_service(
            self.store,
            epoch_path=self.epoch_path,
            settings=self.settings,
            on_replicated=self.replicated.append,
            on_in_sync_changed=self.counts.append,
            **options,
        )

    async def restart(self, **options: Any) -> None:
        """Stops the service and starts another one with these options, on the same files."""
        await self.service.stop()
        self.service = self.new_service(**options)
        await self.service.start()

    def one_message_waits(self) -> bool:
        self.looks += 1
        return self.store.confirm_offset < self.store.commit_log.max_offset

    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        return self.controller.alter(new_set, current_epoch)

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        return None if self.controller.down else self.controller.set

    def put(self, body: bytes = b"x" * 100, count: int = 1) -> int:
        end = 0
        for _ in range(count):
            _, end, _ = self.store.put(TopicT(), 0, body, b"", 0, 0, 1, HOST, 0, 0)
        self.service.appended()
        return end

    async def lead(self, epoch: int) -> None:
        self.controller.set = SyncStateSet(
            sync_state_set=[self.broker_id],
            sync_state_set_epoch=self.controller.set.sync_state_set_epoch + 1,
        )
        await self.begin_term(epoch)

    async def begin_term(self, epoch: int) -> None:
        await self.service.become_master(
            broker_id=self.broker_id, epoch=epoch, sync_state_set=self.controller.set, controller=self
        )

    async def follow(self, master: "Broker", epoch: int, *, file_bytes: int | None = None) -> None:
        host, port = master.service.address
        await self.service.become_slave(
            broker_id=self.broker_id,
            epoch=epoch,
            master_ha_address=f"{host}:{port}",
            master_file_bytes=file_bytes,
        )

    def log_bytes(self) -> bytes:
        log, content, offset = self.store.commit_log, b"", self.store.commit_log.min_offset
        while view := log.view(offset, FILE_BYTES):
            content += bytes(view)
            offset += len(view)
        return content

    def in_sync(self) -> list[int]:
        return self.controller.set.sync_state_set


def encode_json(body: Wire) -> dict[str, Any]:
    return body.model_dump(by_alias=True)


async def until(condition: Callable[[], bool], what: str = "") -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline, f"not within 5 s: {what}"
        await asyncio.sleep(0.005)


async def looks(master: Broker, count: int = 2) -> None:
    """From now on the task of the SyncStateSet has looked so often, and what it proposed was answered."""
    assert master.service.mastership is not None
    manager = master.service.mastership.sync_state_set_manager
    with patch.object(manager, "next_proposal", wraps=manager.next_proposal) as look:
        await until(lambda: look.call_count > count, "looks at the SyncStateSet")


def dialling(slave: Broker) -> bool:
    host, port = slave.service.client.address if slave.service.client is not None else ("", 0)
    return any(task.get_name() == f"HA link to {host}:{port}" for task in asyncio.all_tasks())


FAST = ha_settings(
    batch_bytes=8192, send_heartbeat_interval_ms=200, max_time_slave_not_catchup_ms=600, all_ack=True
)


@asynccontextmanager
async def group(tmp_path: Path, count: int, settings: HaSettings = FAST) -> AsyncIterator[list[Broker]]:
    controller = Controller({1})
    brokers = [Broker(tmp_path / str(i), controller, i, settings) for i in range(1, count + 1)]
    for broker in brokers:
        await broker.service.start()
    try:
        yield brokers
    finally:
        for broker in brokers:
            await broker.service.stop()
            broker.store.close()


def same(one: Broker, two: Broker) -> bool:
    return (
        one.log_bytes() == two.log_bytes()
        and one.service.epochs == two.service.epochs
        and two.store.confirm_offset == one.store.confirm_offset == one.store.commit_log.max_offset
    )


async def test_a_slave_copies_joins_and_confirms(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        end = master.put(count=700)  # more than one file, with padding at its end
        assert end > FILE_BYTES
        assert master.store.confirm_offset == master.replicated[-1] == end, "alone: everything is confirmed"
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "slave joins")
        end = master.put()
        assert master.store.confirm_offset < end, "a member has not acked yet"
        await until(lambda: master.replicated[-1] == end, "ack")
        await until(lambda: same(master, slave), "same logs")
        await until(lambda: slave.store.max_queue_offset("T", 0) == 701, "dispatch on the slave")
        assert master.counts == [1, 2]
        assert status_of(slave.service)["connected"] is True


@pytest.mark.parametrize("stay_awake", [True, False])
async def test_a_master_stays_awake_for_one_message_if_it_may(tmp_path: Path, stay_awake: bool) -> None:
    async with group(tmp_path, 2, replace(FAST, stay_awake=stay_awake)) as (master, slave):
        await master.lead(1)
        assert master.put() and not master.looks, "nobody to wait for"
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "slave joins")
        end = master.put()
        await until(lambda: master.replicated[-1] == end, "ack")
        assert (master.looks > 2) is stay_awake


async def test_an_idle_slave_learns_epoch_and_confirm_at_once(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(4)
        await slave.follow(master, 4)
        await until(lambda: slave.service.last_epoch == 4, "epoch without data")
        await until(lambda: master.in_sync() == [1, 2], "joins an empty log")
        await master.lead(5)  # pitfall 33: master -> master, links stay
        await until(lambda: slave.service.last_epoch == 5, "newer epoch on an open link")
        master.put()
        await until(lambda: same(master, slave), "same logs")


async def test_a_dead_slave_leaves_at_once_and_confirm_goes_on(tmp_path: Path) -> None:
    async with group(tmp_path, 3) as (master, slave, third):
        await master.lead(1)
        await slave.follow(master, 1)
        await third.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2, 3], "both join")
        await slave.service.stop()
        end = master.put()
        await until(lambda: master.in_sync() == [1, 3], "shrink")
        await until(lambda: master.replicated[-1] == end, "confirm goes on")


async def test_two_slaves_that_die_together_leave_together(tmp_path: Path) -> None:
    """#9897: RocketMQ took one of them back into the set, and messages waited for it."""
    async with group(tmp_path, 4) as (master, *slaves):
        await master.lead(1)
        for slave in slaves:
            await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2, 3, 4], "all join")
        await asyncio.gather(slaves[0].service.stop(), slaves[1].service.stop())
        end = master.put()
        await until(lambda: master.in_sync() == [1, 4], "shrink")
        await until(lambda: master.replicated[-1] == end, "confirm goes on")


async def test_a_silent_slave_leaves_after_the_lag_limit(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        master.put()
        # While it writes the epoch in a thread, the slave pauses its transport itself.
        await until(lambda: slave.service.last_epoch == 1, "the epoch is on the slave's disk")
        transport = link_of(slave.service)
        transport.pause_reading()
        started = time.monotonic()
        end = master.put()
        await until(lambda: master.in_sync() == [1], "shrink")
        assert time.monotonic() - started > 0.5
        await until(lambda: master.replicated[-1] == end, "confirm goes on")


async def test_a_lost_answer_never_confirms_past_the_new_member(tmp_path: Path) -> None:
    """S1: the controller has the slave in the set, the master does not know; the slave stops acking."""
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        master.controller.lose = 1
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "controller has it")
        master.controller.down = True
        confirm = master.store.confirm_offset
        await slave.service.stop()
        end = master.put()
        manager = master.service.mastership.sync_state_set_manager if master.service.mastership else None
        assert manager is not None
        assert 2 in manager.others, "its ack still counts"
        assert master.store.confirm_offset == confirm < end
        master.controller.down = False
        await until(lambda: master.in_sync() == [1], "shrink when the controller is back")
        await until(lambda: master.replicated[-1] == end, "and then confirm")


async def test_fail_over_cuts_the_old_tail_and_both_agree(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=5)
        await two.follow(one, 1)
        await until(lambda: one.in_sync() == [1, 2], "join")
        await until(lambda: same(one, two), "copied")
        await two.service.stop()
        one.put(b"lost" * 30, 3)
        await two.restart()
        await two.lead(2)
        two.put(b"new", 4)
        await one.follow(two, 2)
        await until(lambda: same(two, one), "the old master has the new history")
        assert b"lost" not in one.log_bytes()
        assert [entry.epoch for entry in one.service.epochs] == [1, 2]
        await until(lambda: one.store.max_queue_offset("T", 0) == 9, "queues follow")
        await until(lambda: two.in_sync() == [1, 2], "and it is in sync again")


async def test_parting_at_the_first_byte(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        await two.follow(one, 1)
        await until(lambda: two.service.last_epoch == 1, "epoch 1 without data")
        await two.lead(2)
        one.put(b"lost", 2)
        two.put(b"new", 1)
        await one.follow(two, 2)
        await until(lambda: same(two, one), "the old master starts over")
        assert b"lost" not in one.log_bytes()


async def test_no_common_epoch_stops_with_an_explanation(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put()
        await two.lead(2)
        two.put()
        before = two.log_bytes()
        await one.lead(3)
        await two.follow(one, 3)
        await until(lambda: status_of(two.service)["fault"] is not None, "fault")
        assert "no common epoch" in str(status_of(two.service)["fault"])
        assert two.log_bytes() == before, "nothing was cut"


@pytest.mark.slow
async def test_a_slave_that_is_dead_to_the_controllers_neither_keeps_others_in_nor_keeps_them_busy(
    tmp_path: Path,
) -> None:
    """Its link is alive, so it is proposed, and refused (2006); every refusal ends with a fencing reading,
    which costs the controllers an event."""
    async with group(tmp_path, 3) as (master, dead, other):
        asked: list[list[int]] = []
        alter, controller = master.controller.alter, master.controller

        async def refuse(new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
            asked.append(sorted(new_set))
            return None if 2 in new_set else alter(new_set, current_epoch)

        async def fence(doubted_epoch: int) -> SyncStateSet | None:
            controller.set = SyncStateSet(
                sync_state_set=controller.set.sync_state_set,
                sync_state_set_epoch=controller.set.sync_state_set_epoch + 1,
            )
            return controller.set

        master.alter_sync_state_set = refuse  # type: ignore[method-assign]
        master.read_sync_state_set = fence  # type: ignore[method-assign]
        await master.lead(1)
        await other.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 3], "join")
        await dead.follow(master, 1)
        await until(lambda: [1, 2, 3] in asked, "it is proposed")
        await other.service.stop()
        await until(lambda: master.in_sync() == [1], "the other one leaves")
        begun, before = time.monotonic(), len(asked)
        await until(lambda: len(asked) >= before + 3, "three more refusals")
        assert time.monotonic() - begun > 0.3, "as fast as it goes would be some milliseconds"


async def test_wiped_controllers_are_not_followed_below_the_epochs_of_the_log(tmp_path: Path) -> None:
    """Pitfall 28: RocketMQ's broker ignores them for ever, and does not say so."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(5)
        end = one.put()
        for taking in (one.lead(1), one.follow(two, 4)):
            with pytest.raises(LocalProtocolError, match=r"below epoch 5 of the log.*importControllerState"):
                await taking
        assert [(entry.epoch, entry.start_offset) for entry in one.service.epochs] == [(5, 0)]
        assert one.service.mastership is not None and one.put() > end, "nothing has changed"


@pytest.mark.parametrize("other_size", [FILE_BYTES // 2, FILE_BYTES * 2])
async def test_a_master_with_files_of_another_size_is_not_copied(tmp_path: Path, other_size: int) -> None:
    """Pitfall 58: a smaller size shows nowhere in the stream, a larger one only where a packet crosses the
    end of a file. What the master says of itself is known before the first byte."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put()
        await two.follow(one, 1, file_bytes=other_size)
        fault = str(two.service.fault)
        assert "mappedFileSizeCommitLog" in fault and "keelmq repair" in fault
        assert str(FILE_BYTES) in fault and str(other_size) in fault
        assert status_of(two.service)["role"] == "slave" and not one.service.links
        assert two.store.commit_log.max_offset == 0
        await two.follow(one, 1, file_bytes=FILE_BYTES)
        await until(lambda: one.in_sync() == [1, 2], "the master came back with our size")
        assert two.log_bytes() == one.log_bytes() and two.service.fault is None
        await two.follow(one, 1, file_bytes=other_size)
        assert two.service.fault is not None, "told late, it stops all the same"
        await until(lambda: one.in_sync() == [1], "it is no member any more")


async def test_a_cut_through_a_record_stops_with_an_explanation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Pitfall 44: epochs that agree over bytes that do not; one dial, one line, and nothing is cut."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(b"x" * 30, 4)
        await two.lead(1)  # two masters of one epoch: the controller never does that
        two.put(b"y" * 77, 9)
        before = two.log_bytes()
        await one.lead(2)
        await two.follow(one, 2)
        await until(lambda: two.service.fault is not None, "fault")
        assert "the logs differ although their epochs agree" in str(two.service.fault)
        assert two.log_bytes() == before
        assert [entry.epoch for entry in two.service.epochs] == [1]
        await until(lambda: not dialling(two), "the task that dials has ended: no dial comes after it")
        assert len([line for line in caplog.messages if "stopped:" in line]) == 1
        assert runtime_info(two.service).fault == two.service.fault


@pytest.mark.parametrize("content", [b"", b"1\n99\n1-0\n", b"2\n0\n1-0\n"], ids=["empty", "checksum", "cut"])
async def test_a_damaged_epoch_file_stops_with_an_explanation(tmp_path: Path, content: bytes) -> None:
    """Pitfall 47: no start without a word, and no list of before the last change either."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=3)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copy")
        await two.service.stop()
        before = two.log_bytes()
        two.epoch_path.write_bytes(content)
        await two.restart()
        assert "epochFileCheckpoint" in str(two.service.fault)
        assert "keelmq repair" in str(two.service.fault)
        await two.follow(one, 1)
        assert two.service.client is None, "nobody is dialled"
        with pytest.raises(LocalProtocolError, match="epochFileCheckpoint"):
            await two.lead(2)
        assert two.log_bytes() == before
        assert two.epoch_path.read_bytes() == content


async def test_a_slave_below_the_masters_minimum_starts_over_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tail was deleted at the master while it was away."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=5)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copy")
        await two.service.stop()
        one.put(count=1_000)
        log = one.store.commit_log
        while len(log.file_starts()) > 1:  # what retention will do
            log.take_oldest().delete()
        await two.restart()
        await two.follow(one, 1)
        await until(lambda: two.store.commit_log.max_offset == log.max_offset, "copy")
        assert two.store.commit_log.min_offset == log.min_offset > 0
        assert two.log_bytes() == one.log_bytes()
        assert any("ends before the master's begins" in line for line in caplog.messages)
        await until(lambda: one.in_sync() == [1, 2], "and it is in sync again")


@pytest.mark.parametrize("begin", [FILE_BYTES, FILE_BYTES + 256])
async def test_an_empty_log_in_mid_offset_is_copied_to_from_where_the_masters_begins(
    tmp_path: Path, begin: int
) -> None:
    """It began anew at a master without its beginning, and lost that one before a byte came."""
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(count=5)
        two.store.cutter.reset_to(begin)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copy")
        assert two.store.commit_log.min_offset == 0
        await until(lambda: one.in_sync() == [1, 2], "and it is in sync")


async def test_an_async_learner_copies_and_is_never_a_member(tmp_path: Path) -> None:
    """Pitfall 53: nor does it count as a copy."""
    settings = ha_settings(in_sync_replicas=2, send_heartbeat_interval_ms=200, async_learner=True)
    async with group(tmp_path, 2, settings) as (master, learner):
        await master.lead(1)
        end = master.put(count=10)
        await learner.follow(master, 1)
        await until(lambda: learner.store.commit_log.max_offset == end, "copy")
        link = master.service.links[2]
        await until(lambda: link.ack_offset == end, "ack")
        await looks(master)
        assert link.learner
        assert master.in_sync() == [1]
        assert master.replicated == [0], "one copy"


async def test_what_907_answers(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        end = master.put(count=3)
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        told = encode_json(runtime_info(master.service))
        assert told["master"] is True
        assert (told["masterCommitLogMaxOffset"], told["inSyncSlaveNums"]) == (end, 1)
        (connection,) = told["haConnectionInfo"]
        assert connection["slaveAckOffset"] == end
        assert (connection["diff"], connection["inSync"]) == (0, True)
        assert (connection["transferFromWhere"], connection["beganAtOffset"]) == (end, 0)
        assert told["haClientRuntimeInfo"]["activated"] is False
        told = encode_json(runtime_info(slave.service))
        assert told["master"] is False
        client = told["haClientRuntimeInfo"]
        assert client["masterAddr"] == ":".join(map(str, master.service.address))
        assert (client["maxOffset"], client["masterFlushOffset"], client["activated"]) == (end, end, True)
        now = time.time() * 1000
        assert now - 5_000 < client["lastReadTimestamp"] <= now + 1
        assert now - 5_000 < client["lastWriteTimestamp"] <= now + 1


async def test_a_throttled_catch_up_tells_its_pace_and_its_end(tmp_path: Path) -> None:
    settings = ha_settings(batch_bytes=8192, send_heartbeat_interval_ms=200, bytes_per_second=400_000)
    async with group(tmp_path, 2, settings) as (master, slave):
        await master.lead(1)
        end = master.put(b"x" * 900, count=600)
        started = time.monotonic()
        await slave.follow(master, 1)
        await until(
            lambda: 2 in master.service.links and master.service.links[2].ack_offset > end // 2, "half"
        )
        (told,) = cast(list[dict[str, int]], status_of(master.service)["replicas"])
        assert 0 < told["bytesBehind"] < end
        assert 200_000 < told["bytesPerSecond"] < 600_000
        assert told["etaMs"] == pytest.approx(told["bytesBehind"] * 1000 / told["bytesPerSecond"], rel=0.1)
        status = status_of(slave.service)
        assert cast(int, status["bytesBehind"]) > 0
        assert cast(int, status["etaMs"]) > 0
        await until(lambda: slave.store.commit_log.max_offset == end, "all")
        assert time.monotonic() - started > (end - 80_000) / 400_000 * 0.8


async def test_a_replica_begins_where_the_master_log_begins(tmp_path: Path) -> None:
    async with group(tmp_path, 2, ha_settings(batch_bytes=8192, sync_from_last_file=True)) as (master, slave):
        await master.lead(1)
        master.put(count=1000)
        last_file = master.store.commit_log.max_offset // FILE_BYTES * FILE_BYTES
        await slave.follow(master, 1)
        await until(lambda: slave.store.commit_log.max_offset == master.store.commit_log.max_offset, "copy")
        assert slave.store.commit_log.min_offset == last_file > 0
        assert master.log_bytes().endswith(slave.log_bytes())
        assert slave.service.epochs == master.service.epochs


async def test_a_log_from_before_the_first_epoch_is_copied(tmp_path: Path) -> None:
    """A broker without controllers wrote it, and a replica copies it from its first byte."""
    async with group(tmp_path, 2) as (master, slave):
        master.store.become_master()
        master.put(count=1000)
        await master.lead(1)
        assert [(each.epoch, each.start_offset) for each in master.service.epochs] == [(1, 0)]
        master.put()
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "copy")
        await master.lead(2)
        assert [each.epoch for each in master.service.epochs] == [1, 2]


async def test_count_mode_waits_for_the_nth_member(tmp_path: Path) -> None:
    settings = ha_settings(in_sync_replicas=2, send_heartbeat_interval_ms=200)
    async with group(tmp_path, 2, settings) as (master, slave):
        await master.lead(1)
        end = master.put()
        assert master.store.confirm_offset == end, "all-ack off: confirmOffset is the log's end"
        assert master.replicated == [0]
        await slave.follow(master, 1)
        await until(lambda: master.replicated[-1] == end, "second copy")


async def test_a_slave_joins_under_steady_load(tmp_path: Path) -> None:
    """confirmOffset is always ahead of the slave here, until it is held for the moment that it needs."""
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        master.put(count=50)
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                master.put(count=3)
                await asyncio.sleep(0)

        task = asyncio.create_task(load())
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        stop.set()
        await task


async def test_role_changes_can_be_repeated(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(3)
        one.put()
        await one.lead(3)
        await two.follow(one, 3)
        await two.follow(one, 3)
        await until(lambda: same(one, two), "copy")
        with pytest.raises(LocalProtocolError):
            await one.lead(2)
        with pytest.raises(LocalProtocolError):
            await two.follow(one, 2)
        await one.restart()
        assert one.service.last_epoch == 3, "epochs survive"


async def test_a_term_does_not_begin_without_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slaves would take what it writes for bytes of the epoch before, and keep their own tail."""
    broker = Broker(tmp_path, Controller({1}), 1, FAST)
    await broker.service.start()
    await broker.lead(1)
    save, overtaken = LogEpochs.save, list[Epochs]()

    async def overtaken_once(self: LogEpochs, epochs: Epochs) -> None:
        if overtaken:
            return await save(self, epochs)
        overtaken.append(epochs)
        mine, other = self.begin_save(epochs), self.begin_save(self.now)
        for each in (mine, other):
            each.write()
            each.use()

    monkeypatch.setattr(LogEpochs, "save", overtaken_once)
    await broker.lead(2)
    assert overtaken and broker.service.last_epoch == 2
    assert EpochFile(broker.service.log_epochs.path).load() == broker.service.log_epochs.now
    await broker.service.stop()
    broker.store.close(clean=False)


async def test_acks_count_no_more_after_an_epoch_that_was_missed(tmp_path: Path) -> None:
    """Another may have been master in it: the slave has cut its log, and its end may be on its way only."""
    async with group(tmp_path, 1) as (master,):
        await master.lead(1)
        end = master.put()
        reader, writer = await asyncio.open_connection(*master.service.address)
        writer.write(SlaveHandshake(9).encode() + Ack(0).encode())
        await reader.readexactly(20 + 12 + 36 + end)
        writer.write(Ack(end).encode())
        await until(lambda: master.in_sync() == [1, 9], "join")
        await master.service.become_master(
            broker_id=1, epoch=2, sync_state_set=master.controller.set, controller=master
        )
        assert 9 in master.service.links, "the next epoch is ours as well: nobody was in between"
        await master.service.become_master(
            broker_id=1, epoch=4, sync_state_set=master.controller.set, controller=master
        )
        assert not master.service.links
        writer.close()


async def test_a_broker_that_is_not_master_accepts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with group(tmp_path, 1) as (one,):
        reader, writer = await asyncio.open_connection(*one.service.address)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        assert [line for line in caplog.messages if "refused: this broker is not master" in line]


async def test_a_lost_link_is_dialled_again_only_while_our_group_has_the_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An address is used again: the log of another group begins with epoch 1 at 0, too."""
    asked: list[str | None] = []
    answer: str | None = "it is of another group now"

    async def check_master() -> str | None:
        asked.append(answer)
        return answer

    async with group(tmp_path, 3) as (one, two, other):
        two.service.check_master = check_master
        await one.lead(1)
        one.put(count=5)
        await two.follow(one, 1)
        await until(lambda: same(one, two), "copy")
        assert not asked, "who told us to dial has just asked"
        before = two.log_bytes()
        await other.lead(1)
        other.put(b"another group", count=500)
        _, port = one.service.address
        await one.service.stop()
        await other.service.stop()
        await other.restart(port=port)
        await other.lead(1)
        await until(lambda: len(asked) > 3, "asked before every dial")
        assert not other.service.links
        assert two.log_bytes() == before
        assert sum("it is of another group now" in line for line in caplog.messages) == 1
        answer = None
        await until(lambda: 2 in other.service.links, "dialled again")


async def test_the_newest_connection_of_a_slave_wins(tmp_path: Path) -> None:
    """Pitfalls 36 and 37: the end of the older one proposes nothing and its acks count no more."""
    async with group(tmp_path, 1) as (master,):
        await master.lead(1)
        end = master.put()
        links = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*master.service.address)
            writer.write(SlaveHandshake(9).encode() + Ack(0).encode())
            await reader.readexactly(20 + 12 + 36 + end)
            writer.write(Ack(end).encode())
            await until(lambda: master.in_sync() == [1, 9], "join")
            links.append((reader, writer))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await links[0][0].readexactly(100_000)
        await looks(master)
        assert master.controller.history == [[1, 9]], "no shrink for the older connection"
        confirmed, end = end, master.put()
        links[0][1].write(Ack(end).encode())
        await links[1][0].readexactly(36 + end - confirmed)
        links[1][1].write(Ack(confirmed).encode())
        await looks(master)
        assert master.replicated[-1] == confirmed, "an ack over the older connection counts nothing"
        links[1][1].write(Ack(end).encode())
        await until(lambda: master.replicated[-1] == end, "the newer one's does")
        for _, writer in links:
            writer.close()


async def test_a_slave_without_disk_space_says_so_once_and_goes_on_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        full = OSError(errno.ENOSPC, "No space left on device")
        with monkeypatch.context() as patched:
            receive = Mock(side_effect=full)
            patched.setattr(two.store.commit_log, "receive_view", receive)
            await two.follow(one, 1)
            one.put()
            client = two.service.client
            assert client is not None
            await until(lambda: "No space left" in client.last_reason, "the reason")
            await until(lambda: receive.call_count >= 3, "a few more attempts")
        said = [line for line in caplog.messages if "No space left" in line]
        assert len(said) == 1, said
        await until(lambda: same(one, two), "copy")


async def test_half_a_message_is_cut_before_the_next_dial(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        await master.lead(1)
        end = master.put(count=2)
        requests: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            """Half of the second message, then the line breaks."""
            await reader.readexactly(16)
            writer.write(MasterHandshake(end, ((1, 0),)).encode())
            requests.append(ACK.unpack(await reader.readexactly(12))[1])
            body = master.log_bytes()[requests[-1] : end - 30]
            writer.write(TransferHeader(end - requests[-1], requests[-1], 1, 0, 0).encode() + body)
            await writer.drain()
            if len(requests) == 1:
                await until(lambda: slave.store.commit_log.max_offset == end - 30, "half of it is there")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        await slave.service.become_slave(broker_id=2, epoch=1, master_ha_address=f"{host}:{port}")
        await until(lambda: len(requests) > 1, "second dial")
        assert requests[:2] == [0, end // 2], "the second message is asked for again, whole"
        await slave.service.become_slave(
            broker_id=2, epoch=1, master_ha_address=":".join(map(str, master.service.address))
        )
        await until(lambda: same(master, slave), "and copied from the real master")
        server.close()


@pytest.mark.parametrize(
    "story",
    [
        test_a_slave_copies_joins_and_confirms,
        test_a_silent_slave_leaves_after_the_lag_limit,
        test_fail_over_cuts_the_old_tail_and_both_agree,
        test_a_slave_joins_under_steady_load,
        test_the_newest_connection_of_a_slave_wins,
    ],
)
def test_on_the_loop_of_production(
    story: Callable[[Path], Coroutine[None, None, None]], tmp_path: Path
) -> None:
    """uvloop: another transport class, other buffers, and the log's bytes sent without a copy."""
    uvloop.run(story(tmp_path))


def test_a_full_disk_on_the_loop_of_production(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvloop dies of a transport that is closed while it asks for a buffer."""
    uvloop.run(test_a_slave_without_disk_space_says_so_once_and_goes_on_later(tmp_path, caplog, monkeypatch))
