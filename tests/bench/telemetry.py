"""Suite telemetry: what writing telemetry costs a broker; promised is at most 1 % of a core and of the sends.

sample_us and cpu_percent are of a master with two replicas: the reading on the event loop (yardstick: the 100
us that it may take), and everything together, timers, threads, lines and files, as CPU time per second of
real time (yardstick: 1 %). sends_on_vs_off is a broker with telemetry against one without, in turns.
"""

import asyncio
import gc
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from broker.admin.telemetry import BrokerTelemetry
from broker.config.broker_config import BrokerConfig
from broker.core.role import Role
from broker.ha.core.master_link import MasterLink
from broker.ha.service import HaService
from broker.store.message_store import MessageStore, StoreConfig
from broker.store.offline import offline_store
from keelmq.remoting.operations.controller import SyncStateSet
from keelmq.remoting.records import decode_record
from keelmq.runtime.clock import now_ms
from keelmq.runtime.program import runner
from keelmq.runtime.tasks import TaskSet
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, load, lone_broker, per_cpu_second
from tests.bench.units import cpu_us
from tests.support.ha_parts import ha_service, ha_settings, link_settings

SAMPLE_US_MAX = 100.0
CPU_PERCENT_MAX = 1.0
WATCHED_SECONDS = 10
MEMBERS = [1, 2, 3]
ROUNDS = 9
SHAPE = Shape(1, 64)


class _NoController:
    async def alter_sync_state_set(self, new_set: frozenset[int], current_epoch: int) -> SyncStateSet | None:
        return None

    async def read_sync_state_set(self, doubted_epoch: int) -> SyncStateSet | None:
        return None


async def _master(root: Path, store: MessageStore) -> HaService:
    """With two links in sync. Not started: nothing but telemetry runs."""
    ha = ha_service(
        store,
        epoch_path=root / "epochFileCheckpoint",
        settings=ha_settings(),
    )
    agreed = SyncStateSet(sync_state_set=MEMBERS, sync_state_set_epoch=1)
    await ha.become_master(broker_id=MEMBERS[0], epoch=1, sync_state_set=agreed, controller=_NoController())
    await ha._role_tasks.stop()
    for broker_id in MEMBERS[1:]:
        link = MasterLink(ha.server.state, link_settings(), now_ms=now_ms())
        link.slave_id, link.ack_offset = broker_id, 0
        ha.links[broker_id] = link  # type: ignore[index]
    return ha


async def _alone(root: Path) -> Results:
    store = offline_store(StoreConfig(root=root, commit_log_file_bytes=1 << 20))
    store.load()
    config = BrokerConfig.model_validate({"broker_name": "bench", "store_path_root_dir": root})
    telemetry = BrokerTelemetry(
        config, store, node="bench", ha=await _master(root, store), role=lambda: Role(1, 1, 1)
    )
    sample_us = cpu_us(telemetry.sample)
    tasks = TaskSet()
    telemetry.start(tasks)
    await asyncio.sleep(0.5)  # the files' first look at their directory is not part of a second
    gc.collect()
    begin = time.process_time_ns()
    await asyncio.sleep(WATCHED_SECONDS)
    percent = (time.process_time_ns() - begin) / 1e9 / WATCHED_SECONDS * 100
    await tasks.stop()
    await telemetry.close()
    store.close()
    _check(config.telemetry_path)
    return {
        "sample_us": Measurement(sample_us, "us", SAMPLE_US_MAX, sample_us / SAMPLE_US_MAX),
        "cpu_percent": Measurement(percent, "% of a core", CPU_PERCENT_MAX, percent / CPU_PERCENT_MAX),
    }


def _check(directory: Path) -> None:
    lines = [line for path in directory.rglob("*.jsonl") for line in path.read_bytes().splitlines()]
    if len(lines) < WATCHED_SECONDS - 1:
        raise BenchError(f"{len(lines)} samples in {WATCHED_SECONDS} s: {directory} was not written")
    sample = decode_record(lines[-1])
    if len(getattr(sample, "replicas", ())) != len(MEMBERS) - 1:
        raise BenchError(f"not a sample of a master with two replicas: {lines[-1]!r}")


def _sends(directory: Path) -> Measurement:
    with ExitStack() as stack:
        with_it, without = (
            stack.enter_context(lone_broker(directory / name, {"telemetryEnable": enabled}))
            for name, enabled in (("on", "true"), ("off", "false"))
        )
        on, off = alternate(lambda: _rate(with_it), lambda: _rate(without), rounds=ROUNDS)
        if not list((directory / "on").rglob("*.jsonl.open")) or list((directory / "off").rglob("*.jsonl*")):
            raise BenchError(f"{directory}: telemetry was not on here and off there")
    return Measurement(on, "msg/CPU-s", off, on / off)


def _rate(server: Server) -> float:
    return per_cpu_second(load(server, SHAPE))


def run() -> Results:
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as name:
        directory = Path(name)
        with runner() as loop:
            results = loop.run(_alone(directory / "alone"))
        return {**results, "sends_on_vs_off": _sends(directory)}
