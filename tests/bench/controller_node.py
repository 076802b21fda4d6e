"""One controller as `mqcontroller` runs it, that also obeys the benchmark: a JSON line in, a JSON line out.

    {"do": "populate", "groups": g, "brokers": n}     the groups of tests.bench.groups, through the log
    {"do": "propose", "groups": g, "ms": m}           one alterSyncStateSet in flight for each of g groups
    {"do": "snapshot"}                                the log is compacted now; how long that took
    {"do": "heartbeats"}                              who is active, and how old the oldest last heartbeat is

Arguments are mqcontroller's. Nothing of the program is changed but what is measured around it.
"""

import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import msgspec

from keelmq.runtime.clock import now_ms
from keelmq.runtime.program import raise_open_files_limit, runner, say_ready
from namesrv.app import Namesrv
from namesrv.core.liveness import BrokerKey
from namesrv.plugins.controller.core.events import AlterSyncStateSet, AnyEvent, ApplyBrokerId, ElectMaster
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.plugin import ControllerPlugin
from namesrv.plugins.controller.replicator import RaftReplicator
from namesrv.program import build, make_parser
from tests.bench.groups import Group, groups_of

POPULATING = 1_000
"""Groups that are made at once."""
SNAPSHOT_SECONDS_MAX = 30


class Node:
    def __init__(self, plugin: ControllerPlugin) -> None:
        self.plugin = plugin

    async def do(self, command: dict[str, Any]) -> dict[str, Any]:
        match command["do"]:
            case "populate":
                return await self.populate(groups_of(command["groups"], command["brokers"]))
            case "propose":
                return await self.propose(command["groups"], command["ms"])
            case "snapshot":
                return await self.snapshot()
            case "heartbeats":
                return self.heartbeats()
        return {"error": f"unknown: {command}"}

    async def populate(self, groups: list[Group]) -> dict[str, Any]:
        """Each with all its brokers in the SyncStateSet, the first one master."""
        begin = time.perf_counter()
        for at in range(0, len(groups), POPULATING):
            await asyncio.gather(*(self._make(group) for group in groups[at : at + POPULATING]))
        seconds, state = time.perf_counter() - begin, self.plugin.machine.state
        return {
            "groups": len(state.brokers),
            "brokers": sum(len(each.replicas) for each in state.brokers.values()),
            "events": state.event_count,
            "seconds": seconds,
        }

    async def _make(self, group: Group) -> None:
        name, ids = group.broker_name, tuple(group.addresses)
        for broker_id, address in group.addresses.items():
            await self._accepted(
                ApplyBrokerId(
                    cluster_name=group.cluster_name,
                    broker_name=name,
                    broker_id=broker_id,
                    broker_address=address,
                    register_check_code=f"{address};1",
                )
            )
        await self._accepted(
            ElectMaster(
                broker_name=name,
                new_master_broker_id=ids[0],
                expected_master_epoch=0,
                expected_sync_state_set_epoch=0,
            )
        )
        await self._accepted(_alter(self.plugin.machine.state.brokers[name], ids))

    async def _accepted(self, event: AnyEvent) -> None:
        applied = await self.plugin.proposer.propose(event)
        assert applied.refused is None, applied.refused

    async def propose(self, groups: int, ms: int) -> dict[str, Any]:
        """Replicas leave and come back, everywhere at once; counted is what was applied here, not refused."""
        state = self.plugin.machine.state
        names = sorted(state.brokers)[:groups]
        everybody = {name: tuple(sorted(state.brokers[name].replicas)) for name in names}
        events_before, cpu_before, begin = state.event_count, time.process_time(), time.perf_counter()
        until = begin + ms / 1_000
        accepted = sum(await asyncio.gather(*(self._alternate(*each, until) for each in everybody.items())))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu_before
        assert self.plugin.machine.state.event_count - events_before >= accepted
        return {"accepted": accepted, "seconds": seconds, "cpu_seconds": cpu}

    async def _alternate(self, name: str, everybody: tuple[int, ...], until: float) -> int:
        """Each proposal is about the group as the answer to the one before showed it."""
        accepted, propose, group = 0, self.plugin.proposer.propose, self.plugin.machine.state.brokers[name]
        while time.perf_counter() < until:
            shrunk = len(group.sync_state_set) < len(everybody)
            applied = await propose(_alter(group, everybody if shrunk else everybody[:-1]))
            assert applied.refused is None and applied.after is not None, applied.refused
            group = applied.after
            accepted += 1
        return accepted

    async def snapshot(self) -> dict[str, Any]:
        """lag_ms: how long the event loop, which hears the heartbeats, was held up at most meanwhile."""
        replicator = self.plugin.replicator
        assert isinstance(replicator, RaftReplicator)
        core: Any = replicator._core
        path, entries_before = replicator.directory.snapshot, len(core.log)
        written = path.stat().st_mtime_ns if path.exists() else 0
        write_snapshot, took = replicator.write_snapshot, list[float]()

        def timed(target: str, *args: Any, **kwargs: Any) -> None:
            begin = time.perf_counter()
            write_snapshot(target, *args, **kwargs)
            took.append(time.perf_counter() - begin)

        replicator.write_snapshot = timed  # type: ignore[method-assign, assignment]
        begin = last = time.perf_counter()
        lag = 0.0
        core._forceLogCompaction()
        core.wake()
        while len(core.log) >= entries_before or not path.exists() or path.stat().st_mtime_ns == written:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            lag, last = max(lag, now - last - 0.001), now
            if now - begin > SNAPSHOT_SECONDS_MAX:
                return {"error": f"no snapshot within {SNAPSHOT_SECONDS_MAX} s"}
        seconds = time.perf_counter() - begin
        replicator.write_snapshot = write_snapshot  # type: ignore[method-assign]
        return {
            "seconds": seconds,
            "written_in_s": max(took),
            "lag_ms": lag * 1_000,
            "bytes": path.stat().st_size,
            "entries": entries_before,
        }

    def heartbeats(self) -> dict[str, Any]:
        table, now = self.plugin.context.liveness, now_ms()
        keys = [
            broker_set.key(broker_id)
            for broker_set in self.plugin.machine.state.brokers.values()
            for broker_id in broker_set.replicas
        ]
        active = [key for key in keys if table.is_active(key, now)]
        return {"active": len(active), "oldest_ms": max((now - self._last(key) for key in active), default=0)}

    def _last(self, key: BrokerKey) -> int:
        seen = self.plugin.context.liveness.last_seen(key)
        return 0 if seen is None else seen.last_heartbeat_ms


def _alter(group: BrokerSet, members: tuple[int, ...]) -> AlterSyncStateSet:
    assert group.master_broker_id is not None
    return AlterSyncStateSet(
        broker_name=group.broker_name,
        master_broker_id=group.master_broker_id,
        new_sync_state_set=members,
        expected_master_epoch=group.master_epoch,
        expected_sync_state_set_epoch=group.sync_state_set_epoch,
        reason="caught_up",
    )


async def obey(server: Namesrv) -> None:
    """Until stdin ends."""
    (plugin,) = server.plugins
    assert isinstance(plugin, ControllerPlugin)
    node, reader = Node(plugin), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with server:
        say_ready(f"controller {plugin.replicator.self_id} {os.getpid()}")
        while line := await reader.readline():
            try:
                answer = await node.do(json.loads(line))
            except Exception as error:  # noqa: BLE001 - the benchmark hears it
                answer = {"error": f"{type(error).__name__}: {error}"}
            sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
            sys.stdout.flush()


def main() -> None:
    arguments = make_parser("controller").parse_args(sys.argv[1:])
    logging.basicConfig(level=arguments.log_level, stream=sys.stderr, format="%(asctime)s %(message)s")
    server = build(arguments, os.environ, controller_only=True)
    assert isinstance(server, Namesrv)
    raise_open_files_limit()
    with runner() as loop:
        loop.run(obey(server))


if __name__ == "__main__":
    main()
