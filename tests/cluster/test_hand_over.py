"""Planned hand-overs with real processes under traffic (S10): no send fails, and none is in doubt."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from cli.lab.cluster import Program
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.command import RemotingCommand, decode, encode
from keelmq.runtime.clock import now_ms
from tests.bench.switch import Group, Load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

RATE = 500
"""Messages a second: these tests share the machine."""


async def steady(group: Group, load: Load, more: int) -> None:
    target = len(load.sends) + more

    async def enough() -> bool:
        return len(load.sends) >= target

    await group.cluster.until(f"{more} more messages", enough, timeout_s=30)


@pytest.mark.promise("S10")
async def test_no_send_fails_while_masters_hand_over(tmp_path: Path) -> None:
    """By electMaster and by SIGTERM, which ends with exit code 0 and a clean store."""
    async with Group(tmp_path) as group, Load(group.cluster.namesrv_addr, rate=RATE) as load:
        await steady(group, load, 200)
        before = await group.all_in_sync()
        await group.elect_another()
        await steady(group, load, 200)
        after = await group.all_in_sync()
        assert after.master != before.master and after.master_epoch == before.master_epoch + 1
        stopped = await group.stop_master()
        assert not (tmp_path / stopped.name / "abort").exists()
        assert "hand-over" in stopped.log_path.read_text()
        stopped.process = None  # it ended because we asked: nothing for cluster.check()
        await steady(group, load, 200)
        group.cluster.start_program(stopped)
        await group.all_in_sync()
        await steady(group, load, 200)
        logs = "\n".join(f"{each.name}\n{each.log_path.read_text()}" for each in group.cluster.brokers)
        assert (await group.all_in_sync()).master_epoch == before.master_epoch + 2, logs
    assert load.errors == []
    assert (load.retried, load.uncertain) == (0, 0), f"held and forwarded, not refused\n{logs}"
    assert "Traceback" not in logs, logs


async def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    """With nobody to hand over to and controllers that do not answer, the first one may take seconds."""
    async with Group(tmp_path) as group:
        master = await group.master()
        for server in group.cluster.name_servers:
            group.cluster.pause(server)
        assert master.process is not None
        began_ms = now_ms()
        master.process.send_signal(signal.SIGTERM)

        async def begun() -> bool:
            return "hand-over" in master.log_path.read_text().partition("stopping")[2]

        await group.cluster.until("the hand-over has begun", begun, timeout_s=10)
        master.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(master.process.wait, 20) == 0
        assert now_ms() - began_ms < 5_000
        for server in group.cluster.name_servers:
            group.cluster.resume(server)


class OldRoute:
    """A client of RocketMQ's, as far as a broker sees it: Java by its frames, known by a heartbeat, and it
    sends to one address whatever it is answered."""

    def __init__(self, master: Program) -> None:
        self._host, _, self._port = master.address.rpartition(":")
        self.codes: list[int] = []
        self._opaque = 0

    async def __aenter__(self) -> "OldRoute":
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        heartbeat = {"clientID": "java@1", "producerDataSet": [{"groupName": "PG"}], "consumerDataSet": []}
        assert (await self._ask(RequestCode.HEART_BEAT, {}, json.dumps(heartbeat).encode())).code == 0
        self._task = asyncio.create_task(self._send_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()

    async def _ask(self, code: int, ext: dict[str, str], body: bytes) -> RemotingCommand:
        self._opaque += 1
        self._writer.write(encode(RemotingCommand(code, self._opaque, 0, None, ext, body, "JAVA", 479)))
        size = int.from_bytes(await self._reader.readexactly(4))
        return decode(await self._reader.readexactly(size))

    async def _send_forever(self) -> None:
        fields = {
            "a": "PG",
            "b": "KeelBench",
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "h": "0",
            "j": "0",
        }
        while True:
            fields["g"] = str(now_ms())
            answer = await self._ask(RequestCode.SEND_MESSAGE_V2, fields, b"hello")
            self.codes.append(answer.code)

    async def sent(self, more: int, group: Group) -> None:
        target = len(self.codes) + more

        async def enough() -> bool:
            if self._task.done():
                self._task.result()
            return len(self.codes) >= target

        await group.cluster.until(f"{more} more answers", enough, timeout_s=20)


async def test_a_stop_waits_until_clients_with_the_old_route_have_left(tmp_path: Path) -> None:
    """They would read the route 30 s later, and fail until then."""
    async with Group(tmp_path, {"shutdownForwardTimeout": "40000"}) as group:
        master = await group.master()
        assert master.process is not None
        async with OldRoute(master) as client:
            await client.sent(50, group)
            master.process.send_signal(signal.SIGTERM)
            began_ms = now_ms()

            async def stays() -> bool:
                return "forwarding for 1 clients with an old route" in master.log_path.read_text()

            await group.cluster.until("the broker stays", stays, timeout_s=10)
            while now_ms() - began_ms < 6_000:  # longer than it stayed when it did not look at its clients
                await client.sent(50, group)
        assert set(client.codes) == {ResponseCode.SUCCESS}
        assert await asyncio.to_thread(master.process.wait, 10) == 0, "not 40 s: nobody is there"
        assert not (tmp_path / master.name / "abort").exists()
        assert "Traceback" not in master.log_path.read_text()
        master.process = None
