"""Ends of the HA stream that behave like RocketMQ's: packets cut anywhere, lines that break inside a
record, a slave that reports late and sends several reports at once."""

import asyncio
import random
import struct
from pathlib import Path

from broker.app.broker import Broker
from keelmq.remoting.operation import Ok
from tests.unit.broker.app.test_plain_replication import (
    FILE_BYTES,
    TIMEOUT_S,
    end_of,
    has_all,
    make_group,
    until,
)

REPORT, HEADER = struct.Struct(">q"), struct.Struct(">qi")


class RawMaster:
    """The HA port of a master: sends another one's log in packets of random sizes, and breaks each line after
    some bytes."""

    def __init__(self, of: Broker, seed: int) -> None:
        self._log, self._dice, self.lines = of.store.commit_log, random.Random(seed), 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.lines += 1
        left = 3_000 * self.lines  # longer each time, so that the slave ends with all
        try:
            (at,) = REPORT.unpack(await reader.readexactly(REPORT.size))
            while left > 0:
                body = bytes(self._log.view(at, self._dice.randrange(1, 5_000)))
                writer.write(HEADER.pack(at, len(body)) + body)
                at, left = at + len(body), left - len(body)
                await writer.drain()
                if not body:
                    await reader.readexactly(REPORT.size)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the slave has closed the line
        finally:
            writer.close()


async def test_a_master_whose_packets_and_lines_end_anywhere(tmp_path: Path) -> None:
    async with make_group(tmp_path) as group:
        real = await group.start("m", 0)
        await group.send_many(real, 15)
        raw = RawMaster(real, seed=7)
        server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        slave = await group.start("s", 1, haMasterAddress=f"{host}:{port}")
        await until(lambda: has_all(slave, real), "the slave has the log")
        assert raw.lines > 3 and group.log("s") == group.log("m")
        await group.stop(slave)
        server.close()


async def test_a_slave_that_reports_late_and_several_reports_at_once(tmp_path: Path) -> None:
    async with make_group(tmp_path) as group:
        sync = {"brokerRole": "SYNC_MASTER", "totalReplicas": 2, "inSyncReplicas": 2, "slaveTimeout": 10_000}
        master = await group.start("m", 0, **sync)
        host, port = master.status.ha_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        sending = asyncio.create_task(group.send(master, b"x" * 1_000))
        await until(lambda: end_of(master) > 0, "it is stored")
        writer.write(REPORT.pack(0)[:3])
        await writer.drain()
        writer.write(REPORT.pack(0)[3:] + REPORT.pack(0))
        copy = bytearray()
        async with asyncio.timeout(TIMEOUT_S):
            while len(copy) < end_of(master):
                offset, size = HEADER.unpack(await reader.readexactly(HEADER.size))
                assert offset == len(copy) and size <= FILE_BYTES
                copy += await reader.readexactly(size)
            assert not sending.done()
            writer.write(REPORT.pack(len(copy)))
            outcome = await sending
        assert isinstance(outcome, Ok)
        assert group.log("m").startswith(bytes(copy))
        (told,) = (await group.ha_status(master)).ha_connection_info
        assert told.broker_id is None and told.in_sync and told.slave_ack_offset == len(copy)
        writer.close()
