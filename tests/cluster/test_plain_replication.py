"""Master and slave without controllers as processes: kill -9 of either, and reads from the slave."""

import asyncio
from pathlib import Path

import pytest

from cli.lab.cluster import Cluster, Program
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.broker import (
    GET_BROKER_HA_STATUS,
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from tests.support.client_parts import until
from tests.support.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

START_TIMEOUT_S = 30
FILE_BYTES = 65_536


class Pair:
    """A name server, a SYNC_MASTER and its slave."""

    def __init__(self, directory: Path) -> None:
        self.cluster = Cluster(directory, name_servers=1, brokers=0)
        self.client = RemotingClient()
        self.master = self._broker("master", {"brokerRole": "SYNC_MASTER", "brokerId": "0"})
        self.slave = self._broker("slave", {"brokerRole": "SLAVE", "brokerId": "1"})
        self.acknowledged: list[bytes] = []

    def _broker(self, name: str, role: dict[str, str]) -> Program:
        port, ha_port = free_ports(2)
        settings = {
            "brokerName": "pair",
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "fastListenPort": "-1",
            "haListenPort": str(ha_port),
            "httpPort": "-1",
            "namesrvAddr": self.cluster.namesrv_addr,
            "mappedFileSizeCommitLog": str(FILE_BYTES),
            "totalReplicas": "2",
            "inSyncReplicas": "2",
            "slaveTimeout": "1000",
            "storePathRootDir": str(self.cluster.directory / name),
            **role,
        }
        directory = self.cluster.directory
        program = Program(name, "broker", directory, settings, f"127.0.0.1:{port}")
        program.write()
        self.cluster.brokers.append(program)
        return program

    async def linked(self) -> None:
        async def look() -> bool:
            outcome = await self.client.call(self.slave.address, GET_BROKER_HA_STATUS, Empty())
            return isinstance(outcome, Ok) and outcome.body.ha_client_runtime_info.activated

        await self.cluster.until("the slave is linked", look, timeout_s=START_TIMEOUT_S)

    async def send(self, count: int) -> None:
        """Sends messages; those that are acknowledged are on both brokers."""
        for _ in range(count):
            body = b"message-%d" % len(self.acknowledged) + bytes(2_000)
            header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
            outcome = await self.client.call(self.master.address, SEND_MESSAGE_V2, header, body)
            if isinstance(outcome, Ok):
                self.acknowledged.append(body)

    async def read(self, program: Program) -> list[bytes]:
        """The bodies of the acknowledged messages that a consumer gets from this broker."""
        found = bytearray()
        offset = 0
        while True:
            request = PullMessageRequest(
                consumer_group="g", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32
            )
            outcome = await self.client.call(program.address, PULL_MESSAGE, request)
            if not isinstance(outcome, Ok):
                break
            found += outcome.body
            offset = outcome.header.next_begin_offset
        return [body for body in self.acknowledged if body in found]

    async def equal(self) -> None:
        async def look() -> bool:
            return self.log("slave") == self.log("master")

        await self.cluster.until("both logs are the same bytes", look, timeout_s=START_TIMEOUT_S)

    def log(self, name: str) -> bytes:
        files = sorted((self.cluster.directory / name / "commitlog").iterdir())
        return b"".join(file.read_bytes() for file in files)


async def test_killed_master_and_killed_slave_end_with_the_same_log(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    with pair.cluster as cluster:
        try:
            cluster.start()
            await pair.linked()
            await pair.send(20)
            sending = asyncio.create_task(pair.send(40))
            await until(lambda: len(pair.acknowledged) > 30, "some are acknowledged")
            await cluster.kill_and_wait(pair.slave)
            await sending
            cluster.start_program(pair.slave)
            await pair.linked()
            await pair.send(20)
            assert len(pair.acknowledged) > 50

            sending = asyncio.create_task(pair.send(20))
            await until(lambda: len(pair.acknowledged) > 60, "some are acknowledged")
            await cluster.kill_and_wait(pair.master)
            await sending
            assert await pair.read(pair.slave) == pair.acknowledged, "read from the slave, the master is down"

            cluster.start_program(pair.master)
            await pair.linked()
            await pair.send(5)
            await pair.equal()
            assert await pair.read(pair.master) == pair.acknowledged
        finally:
            await pair.client.close()
