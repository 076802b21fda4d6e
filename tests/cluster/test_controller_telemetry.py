"""Three controllers with real processes write the same audit trail, whoever of them is killed meanwhile."""

from pathlib import Path

import pytest

from cli.lab.cluster import Program
from keelmq.remoting.records import ControllerEvent, decode_record
from tests.support.harness import Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def records_of(program: Program) -> list[ControllerEvent]:
    directory = Path(program.settings["controllerStorePath"]) / "telemetry"
    decoded = [
        decode_record(line)
        for path in sorted(directory.glob("controller_event/*/*/*.jsonl*"))
        for line in path.read_bytes().splitlines()
    ]
    return [record for record in decoded if isinstance(record, ControllerEvent)]


def events_of(program: Program) -> dict[int, ControllerEvent]:
    """By event_id; no event stands twice."""
    records = [record for record in records_of(program) if record.type != "snapshot"]
    events = {record.event_id: record for record in records}
    assert len(events) == len(records), f"{program.name} wrote an event twice"
    return events


async def test_every_controller_writes_every_event_once(tmp_path: Path) -> None:
    async with Harness(tmp_path, brokers=2, broker_settings={}) as running:
        cluster = running.cluster
        first = await running.master()
        cluster.kill(first)
        await running.new_master(first)
        leader = await running.controller_leader()
        cluster.kill(leader)  # what it had not written yet, it writes when it replays its log
        cluster.start_program(first)
        second = await running.master()
        cluster.kill(second)
        await running.new_master(second)
        cluster.start_program(leader)
        cluster.start_program(second)
        await running.all_in_sync()

        # as one look found them: the end of the cluster makes more, and not everyone lives to write those
        written: list[dict[int, ControllerEvent]] = []

        async def all_written() -> bool:
            written[:] = [events_of(program) for program in cluster.name_servers]
            return bool(written[0]) and written[0].keys() == written[1].keys() == written[2].keys()

        await cluster.until("the same events at every controller", all_written, timeout_s=20)
    one, *others = written
    assert sorted(one) == list(range(1, len(one) + 1))
    for event_id, event in one.items():
        for other in others:
            assert (event.ts, event.type, event.before, event.after, event.reason) == (
                other[event_id].ts, other[event_id].type, other[event_id].before, other[event_id].after,
                other[event_id].reason,
            )  # fmt: skip
    elected = [event for event in one.values() if event.type == "electMaster" and event.refused is None]
    lost = [event for event in elected if event.before is not None and event.before.master_broker_id]
    assert len(lost) >= 2
    for event in lost:
        assert event.last_heartbeat_ts is not None and event.detected_ts is not None, event
        assert event.last_heartbeat_ts <= event.detected_ts <= event.ts, event
    reasons = {event.reason for event in one.values() if event.type == "alterSyncStateSet"}
    assert "caught_up" in reasons and reasons <= {"caught_up", "gone", "lag"}
    for program in cluster.name_servers:
        assert records_of(program)[0].type == "snapshot" or not records_of(program)
