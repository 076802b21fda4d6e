"""What a broker writes down: samples, role changes; and that it serves whatever happens to the files."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from broker.admin import telemetry
from broker.admin.telemetry import ALONE, BrokerTelemetry
from broker.admission.send_gate import SendGate
from broker.app.broker import Broker
from broker.core.role import Role
from broker.put.message_writer import Tick
from broker.stats.rpc_latency import RpcLatency
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.records import HaSample, Record, RoleChange, decode_record
from keelmq.runtime.clock import now_us
from keelmq.runtime.log_buckets import bucket_top
from keelmq.runtime.tasks import TaskSet
from tests.support.reach_in import link_of
from tests.unit.broker.app.test_broker_app import broker_without_role, config, send
from tests.unit.broker.ha.test_ha_service import FILE_BYTES, HOST, TopicT, group, until
from tests.unit.broker.ha.test_ha_service import Broker as Member


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "TICK_MS", 2)
    monkeypatch.setattr(telemetry, "SAMPLE_PERIOD_MS", 20)


def written(root: Path, kind: str) -> list[Record]:
    lines = []
    for path in sorted(root.glob(f"telemetry/{kind}/*/*/*.jsonl*")):
        lines += path.read_bytes().splitlines()
    return [decode_record(line) for line in lines]


async def hangs(master: Member, slave: Member) -> asyncio.Transport:
    """Stops the slave's reading. Not before it has bytes of this link: until its epochs are on disk it stops
    and resumes by itself."""
    end = master.put()
    await until(lambda: master.replicated[-1] == end, "the slave has acknowledged")
    transport = link_of(slave.service)
    transport.pause_reading()
    return transport


async def test_a_lone_broker_is_its_own_master(tmp_path: Path) -> None:
    begun = time.time_ns() // 1_000_000
    client = RemotingClient()
    async with Broker(config(tmp_path, telemetry_reserved_time=1)) as broker:
        assert isinstance(await send(client, broker, b"x" * 100), Ok)
        end = broker.store.commit_log.max_offset
        await until(lambda: len(written(tmp_path / "store", "ha_sample")) > 2, "samples while it runs")
        port = broker.address.rpartition(":")[2]
    await client.close()
    (change,) = written(tmp_path / "store", "role_change")
    assert isinstance(change, RoleChange)
    assert (change.role, change.previous_role, change.broker_id, change.master_epoch) == (
        "master", "none", 0, 0,
    )  # fmt: skip
    last = written(tmp_path / "store", "ha_sample")[-1]
    assert isinstance(last, HaSample)
    assert (last.cluster_name, last.broker_name, last.role) == ("DefaultCluster", "b", "master")
    assert (last.max_offset, last.confirm_offset, last.lag_ms, last.lag_bytes_max) == (end, end, 0, 0)
    assert (last.sync_state_set, last.replicas, last.min_in_sync_replicas) == ((0,), (), 1)
    samples = [each for each in written(tmp_path / "store", "ha_sample") if isinstance(each, HaSample)]
    assert sum(count for each in samples for _, count in each.confirm_us) == 1
    assert all(each.lag_us for each in samples), "looked at between any two samples"
    assert begun <= change.ts <= last.ts <= time.time_ns() // 1_000_000
    names = [path.name for path in (tmp_path / "store" / "telemetry").rglob("*.jsonl*")]
    assert len(names) >= 2
    assert all(name.startswith(f"b-127.0.0.1_{port}-") and name.endswith(".jsonl") for name in names)


async def test_switched_off_it_writes_nothing(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, telemetry_enable=False)):
        pass
    assert not (tmp_path / "store" / "telemetry").exists()


async def test_a_broker_without_telemetry_files_serves_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "telemetry").write_text("in the way")
    client = RemotingClient()
    async with Broker(config(tmp_path)) as broker:
        writer = broker.telemetry.writer if broker.telemetry is not None else None
        assert writer is not None
        with caplog.at_level(logging.WARNING):
            await until(lambda: writer.dropped_records > 2, "lost samples")
        assert isinstance(await send(client, broker, b"one"), Ok)
        assert writer.fault is not None and writer.written_records == 0
    await client.close()
    assert caplog.text.count("cannot write telemetry") == 1
    assert "background task" not in caplog.text


async def test_nothing_is_sampled_before_the_id_is_known(tmp_path: Path) -> None:
    async with broker_without_role(tmp_path) as broker:
        assert broker.telemetry is not None
        assert broker.telemetry.sample() is None
    assert written(tmp_path / "store", "ha_sample") == []


async def test_master_and_slave_as_they_see_themselves(tmp_path: Path) -> None:
    async with group(tmp_path, 3) as (master, slave, silent):
        roles = {1: Role(1), 2: Role(2)}
        views = {
            broker.broker_id: BrokerTelemetry(
                config(tmp_path, min_in_sync_replicas=2, in_sync_replicas=2, total_replicas=2),
                broker.store,
                node="n",
                ha=broker.service,
                role=lambda broker_id=broker.broker_id: roles[broker_id],  # type: ignore[misc]
            )
            for broker in (master, slave)
        }
        assert (before := views[1].sample()) is not None
        assert (before.role, before.master_epoch, before.sync_state_set) == ("none", 0, ())
        await master.lead(7)
        await slave.follow(master, 7)
        await silent.follow(master, 7)
        await until(lambda: master.in_sync() == [1, 2, 3], "both join")
        roles |= {1: Role(1, 7, 1), 2: Role(2, 7, 1)}
        end = master.put(count=10)
        await until(lambda: slave.store.confirm_offset == end, "confirmed everywhere")

        view = views[1].sample()
        assert view is not None and view.broker_id == 1
        assert (view.role, view.master_epoch, view.min_in_sync_replicas) == ("master", 7, 2)
        assert (view.max_offset, view.confirm_offset, view.lag_ms) == (end, end, 0)
        assert view.sync_state_set == (1, 2, 3)
        assert view.sync_state_set_epoch == master.controller.set.sync_state_set_epoch
        assert [(r.broker_id, r.ack_offset, r.lag_ms, r.in_sync) for r in view.replicas] == [
            (2, end, 0, True),
            (3, end, 0, True),
        ]
        seen = views[2].sample()
        assert seen is not None and (seen.broker_id, seen.role, seen.master_epoch) == (2, "slave", 7)
        assert (seen.max_offset, seen.sync_state_set, seen.replicas) == (end, (), ())


async def test_the_lag_of_a_master_whose_slave_hangs(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        view = BrokerTelemetry(
            config(tmp_path), master.store, node="n", ha=master.service, role=lambda: Role(1, 1, 1)
        )
        await master.lead(1)
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        await hangs(master, slave)
        view.sample()
        confirmed, end = master.store.confirm_offset, master.put()
        first = view.sample()
        await until(lambda: (found := view.sample()) is not None and found.lag_ms >= 20, "it grows")
        await until(lambda: master.in_sync() == [1], "it is thrown out")
        last = view.sample()
        assert first is not None and last is not None
        assert (first.lag_ms, first.lag_bytes_max) == (0, end - confirmed)
        assert (last.lag_ms, last.confirm_offset) == (0, end)
        (replica,) = last.replicas
        assert not replica.in_sync and replica.ack_offset == confirmed and replica.lag_ms >= 500


async def test_how_long_appends_wait_for_their_replicas(tmp_path: Path) -> None:
    """A real slave acknowledges; the writer of the data path reports what it appended."""
    async with group(tmp_path, 2) as (master, slave):
        view = BrokerTelemetry(
            config(tmp_path), master.store, node="n", ha=master.service, role=lambda: Role(1, 1, 1)
        )
        await master.lead(1)
        tick = Tick(
            master.store,
            SendGate(wait=True, permits_write=True, accept_from_ms=0),
            asyncio.get_running_loop().call_soon,
            master.service.appended,
            lambda ms: None,
            RpcLatency(),
        )

        def put() -> int:
            assert not tick.starts_cut_off()
            _, end, _ = master.store.put(TopicT(), 0, b"x", b"", 0, 0, 1, HOST, 0, 0)
            tick.schedule()
            return end

        alone = put()
        await until(lambda: master.store.confirm_offset == alone, "confirmed at once")
        first = view.sample()
        assert first is not None and sum(count for _, count in first.confirm_us) == 1
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "join")
        transport = await hangs(master, slave)
        end = put()
        await until(lambda: master.store.dispatcher.confirm_times.age_us(now_us()) > 30_000, "it waits")
        waiting = view.sample()
        assert waiting is not None and waiting.confirm_us == ()
        assert max(bucket_top(bucket) for bucket, _ in waiting.lag_us) > 30_000
        transport.resume_reading()
        await until(lambda: master.store.confirm_offset == end, "acknowledged")
        last = view.sample()
        assert last is not None and last.lag_us == ((0, 1),)
        ((bucket, count),) = last.confirm_us
        assert count == 1 and bucket_top(bucket) > 30_000
        await slave.service.leave_role("test")
        await master.service.become_slave(broker_id=1, epoch=2, master_ha_address="127.0.0.1:1")
        as_slave = view.sample()
        assert as_slave is not None and (as_slave.lag_us, as_slave.confirm_us) == ((), ())


async def test_an_append_that_was_confirmed_in_its_own_iteration_does_not_wait(tmp_path: Path) -> None:
    """An ack, or a flush that ended, may confirm bytes before the iteration that appended them is over."""
    async with group(tmp_path, 1) as (broker,):
        await broker.lead(1)
        times = broker.store.dispatcher.confirm_times
        times.is_on = True
        gate = SendGate(wait=True, permits_write=True, accept_from_ms=0)
        calls: list[Callable[[], None]] = []
        tick = Tick(broker.store, gate, calls.append, lambda: None, lambda ms: None, RpcLatency())
        assert not tick.starts_cut_off()
        _, end, _ = broker.store.put(TopicT(), 0, b"x", b"", 0, 0, 1, HOST, 0, 0)
        tick.schedule()
        broker.store.set_confirm_offset(end)
        calls[0]()
        assert times.age_us(now_us()) == 0
        assert sum(count for _, count in times.take()) == 1


async def test_a_replica_that_disconnected_keeps_its_last_ack(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (master, slave):
        view = BrokerTelemetry(
            config(tmp_path), master.store, node="n", ha=master.service, role=lambda: Role(1, 1, 1)
        )
        await master.lead(1)
        await slave.follow(master, 1)
        end = master.put(count=3)
        await until(lambda: master.replicated[-1] == end and master.in_sync() == [1, 2], "joined")
        view.sample()
        await slave.service.leave_role("the test ends it")
        await until(lambda: not master.service.links, "disconnected")
        idle = view.sample()
        assert idle is not None and [(r.ack_offset, r.lag_ms) for r in idle.replicas] == [(end, 0)]
        master.put()
        await until(
            lambda: (seen := view.sample()) is not None and seen.replicas[0].lag_ms >= 20, "its lag grows"
        )
        gone = view.sample()
        assert gone is not None
        assert [(r.broker_id, r.ack_offset) for r in gone.replicas] == [(2, end)]
        await until(lambda: master.in_sync() == [1], "it is thrown out")
        out = view.sample()
        assert out is not None and [(r.broker_id, r.in_sync) for r in out.replicas] == [(2, False)]
        await master.service.become_slave(broker_id=1, epoch=2, master_ha_address="127.0.0.1:1")
        assert (as_slave := view.sample()) is not None and as_slave.replicas == ()
        await master.lead(3)
        assert (again := view.sample()) is not None and again.replicas == (), "of this term only"


async def test_role_changes_tell_what_they_cut(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as (broker,):
        view = BrokerTelemetry(
            config(tmp_path), broker.store, node="n", ha=broker.service, role=lambda: Role(1, 1, 1)
        )
        await broker.lead(1)
        whole = broker.put(count=3)
        assert broker.service.truncated_bytes == 0
        await broker.service.become_slave(broker_id=1, epoch=2, master_ha_address="127.0.0.1:1")
        half = broker.store.commit_log.receive_view()
        half[:8] = b"\x00\x00\x00\x64half"
        broker.store.commit_log.received(8)
        view.role_changed(Role(1, 1, 1), Role(1, 2, 2), 5)
        await broker.lead(3)
        view.role_changed(Role(1, 2, 2), Role(1, 3, 1), 40)
        view.role_changed(Role(1, 3, 1), Role(1, 4, 2), 1)
        await view.close()
    down, up, again = written(tmp_path / "store", "role_change")
    assert isinstance(down, RoleChange) and isinstance(up, RoleChange) and isinstance(again, RoleChange)
    assert (down.role, down.previous_role, down.previous_epoch) == ("slave", "master", 1)
    assert (down.truncated_bytes, down.max_offset) == (0, whole + 8)
    assert (up.role, up.previous_role, up.master_epoch, up.broker_id) == ("master", "slave", 3, 1)
    assert (up.truncated_bytes, up.max_offset, up.ts - up.started_ts) == (8, whole, 40)
    assert (again.role, again.truncated_bytes) == ("slave", 0), "only a new master cuts by itself"
    assert whole < FILE_BYTES


async def test_samples_keep_step_and_follow_a_held_up_loop(tmp_path: Path) -> None:
    async with group(tmp_path, 1) as (broker,):
        view = BrokerTelemetry(config(tmp_path), broker.store, node="n", ha=None, role=lambda: ALONE)
        with patch.object(view.writer, "put") as put:
            tasks = TaskSet()
            view.start(tasks)
            await until(lambda: put.call_count >= 5, "five samples")
            await tasks.stop()
        times = [call.args[0].ts for call in put.call_args_list]
        assert times[-1] - times[0] >= 4 * 15
        await view.close()
