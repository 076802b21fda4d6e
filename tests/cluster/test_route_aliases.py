"""What a stock client does at an alias, with real processes: every kind of send reaches the master, once, and
no tool of ours sees the alias as a broker."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from keelmq.client.core.batches import Item
from keelmq.client.message import decode_messages
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.command import RemotingCommand, decode, encode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import (
    PULL_MESSAGE,
    SEND_MESSAGE_V2,
    PullMessageRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest, TopicRouteData
from keelmq.remoting.operations.transactions import END_TRANSACTION, EndTransactionRequest
from tests.support.harness import SAFE, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

COMMIT = 8


def as_java(command: RemotingCommand, address: str) -> None:
    command.language = "JAVA"


async def raw(address: str, command: RemotingCommand) -> RemotingCommand:
    """One request of a client as old as one likes, and its answer."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(encode(command))
        length = int.from_bytes(await reader.readexactly(4), "big")
        return decode(await reader.readexactly(length))
    finally:
        writer.close()
        await writer.wait_closed()


def header(topic: str, **more: object) -> SendMessageRequestV2:
    fields = {"a": "P", "b": topic, "c": "TBW102", "d": 4, "e": 0, "g": 1, "n": "broker-a%alias1"}
    return SendMessageRequestV2.model_validate({**fields, **more})


async def route_of(client: RemotingClient, running: Harness, topic: str) -> TopicRouteData:
    async def look() -> TopicRouteData | None:
        address = running.cluster.namesrv_addr.split(";")[0]
        outcome = await client.call(address, GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))
        return outcome.body if isinstance(outcome, Ok) and len(outcome.body.broker_datas) > 1 else None

    return await running.cluster.until(f"a route of {topic} with an alias", look, timeout_s=20)


async def bodies(client: RemotingClient, address: str, topic: str) -> list[bytes]:
    pull = PullMessageRequest(
        consumer_group="G",
        topic=topic,
        queue_id=0,
        queue_offset=0,
        max_msg_nums=32,
        sys_flag=4,
        subscription="*",
    )
    outcome = await client.call(address, PULL_MESSAGE, pull)
    return [each.body for each in decode_messages(bytes(outcome.body))] if isinstance(outcome, Ok) else []


async def arrived(running: Harness, client: RemotingClient, topic: str, expected: list[bytes]) -> None:
    master = (await running.master()).address

    async def look() -> bool:
        return await bodies(client, master, topic) == expected

    await running.cluster.until(f"{expected} in {topic}", look, timeout_s=20)


async def test_every_kind_of_send_reaches_the_master_through_an_alias(tmp_path: Path) -> None:
    aliases = {"routeAliasesEnable": "true"}
    async with Harness(
        tmp_path, name_servers=1, brokers=2, broker_settings=SAFE, namesrv_settings=aliases
    ) as running:
        client = RemotingClient(signer=as_java)
        try:
            await check_sends(running, client)
            check_tools(running)
        finally:
            await client.close()


async def check_sends(running: Harness, client: RemotingClient) -> None:
    master = (await running.master()).address
    template = await route_of(client, running, "TBW102")
    alias = template.broker_datas[1].broker_addrs[MASTER_ID]
    assert alias != master and template.broker_datas[0].broker_addrs[MASTER_ID] == master

    first = await client.call(alias, SEND_MESSAGE_V2, header("New"), b"creates the topic")
    assert isinstance(first, Ok), first
    assert (first.header.queue_id, first.header.queue_offset) == (0, 0)
    offset = int(first.header.msg_id[-16:], 16)
    assert first.header.msg_id == offset_id(master, offset), "the id leads to the master"
    names = {"producerGroup": "P", "topic": "New", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    old = {**names, "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "properties": ""}
    answer = await raw(alias, RemotingCommand(10, 1, 0, None, old, b"of an old client", language="CPP"))
    assert answer.code == 0 and answer.ext_fields["queueOffset"] == "1"
    batch = b"".join(Item(each, "").encode() for each in (b"one", b"two"))
    answer = await raw(alias, RemotingCommand(320, 2, 0, None, fields(header("New", m=True)), batch))
    assert answer.code == 0 and len(answer.ext_fields["msgId"].split(",")) == 2
    assert await client.oneway(alias, SEND_MESSAGE_V2, header("New"), b"oneway")
    await arrived(
        running, client, "New", [b"creates the topic", b"of an old client", b"one", b"two", b"oneway"]
    )

    properties = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01K\x02"
    half = await client.call(alias, SEND_MESSAGE_V2, header("New", i=properties, f=4), b"half")
    assert isinstance(half, Ok) and half.header.transaction_id == "K"
    end = EndTransactionRequest(
        topic="New",
        producer_group="P",
        tran_state_table_offset=half.header.queue_offset,
        commit_log_offset=int(half.header.msg_id[-16:], 16),
        commit_or_rollback=COMMIT,
        msg_id="K",
    )
    ended = await client.call(alias, END_TRANSACTION, end)
    assert isinstance(ended, Ok), ended
    request = "CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01me\x02MSG_TYPE\x01reply\x02TTL\x013000\x02"
    asked = await client.call(alias, SEND_MESSAGE_V2, header("New", i=request), b"request")
    assert isinstance(asked, Ok)
    expected = [b"creates the topic", b"of an old client", b"one", b"two", b"oneway", b"half", b"request"]
    await arrived(running, client, "New", expected)


def fields(header: SendMessageRequestV2) -> dict[str, str]:
    made = header.model_dump(by_alias=True, exclude_none=True)
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in made.items()}


def offset_id(address: str, offset: int) -> str:
    host, _, port = address.rpartition(":")
    return bytes(map(int, host.split("."))).hex().upper() + f"{int(port):08X}{offset:016X}"


def check_tools(running: Harness) -> None:
    """KeelMQ's tools; RocketMQ's get aliases from 105 only."""
    address = running.cluster.namesrv_addr
    for command in (
        ["topicRoute", "-t", "New"],
        ["topicStatus", "-t", "New"],
        ["clusterList"],
        ["topicClusterList", "-t", "New"],
        ["statsAll"],
        ["consumerProgress"],
    ):
        line = [sys.executable, "-m", "cli.mqadmin.main", *command, "-n", address]
        done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stderr)
        assert "%alias" not in done.stdout, done.stdout
