"""KeelMQ's client as a process: what to be comes as one JSON argument, messages to send come as JSON lines,
and what happened goes out as JSON lines. See drivers.py.

Kinds: a producer; a reader, which prints every message of the topic that comes as a line; and routes, which
prints each broker address that the name servers show for these topics, once, until the end of the input.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

from keelmq.client import Message, Producer, PullConsumer, PullStatus, SendError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.route import (
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    RouteRequest,
)

POLL_S = 0.2
READ_NUMS = 256


def say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def lines() -> AsyncIterator[bytes]:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async for line in reader:
        yield line


async def produce(options: dict[str, Any]) -> None:
    async with Producer(options["namesrv"], options["group"]) as producer:
        say(ready=True)
        async for line in lines():
            order = json.loads(line)
            try:
                result = await producer.send(Message(order["topic"], order["body"].encode()))
            except SendError as error:
                say(failed=order["body"], why=f"{error.kind.name}: {error}")
            else:
                say(sent=order["body"], offset=result.queue_offset, attempts=result.attempts)


async def read(options: dict[str, Any]) -> None:
    async with PullConsumer(options["namesrv"], options["group"]) as consumer:
        say(ready=True)
        async for line in lines():
            topic = json.loads(line)["topic"]
            for queue in await consumer.fetch_queues(topic):
                position, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
                while position < end:
                    result = await consumer.pull(queue, position, READ_NUMS)
                    for message in result.messages:
                        say(got=message.body.decode(), topic=topic, offset=message.queue_offset)
                    assert result.next_begin_offset > position, (queue, position, end, result.status)
                    assert result.status is not PullStatus.NO_NEW_MSG, (queue, position, end)
                    position = result.next_begin_offset
            say(end=topic)


async def watch_routes(options: dict[str, Any]) -> None:
    topics, seen = options["topics"], set[str]()
    client = RemotingClient(connect_timeout_ms=1_000)
    say(ready=True)
    asking = asyncio.create_task(keep_asking(client, options["namesrv"].split(";"), topics, seen))
    async for _ in lines():
        pass
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await client.close()


async def keep_asking(
    client: RemotingClient, name_servers: Sequence[str], topics: Sequence[str], seen: set[str]
) -> None:
    while True:
        for group in [each for address in name_servers for each in await shown(client, address, topics)]:
            for address in set(group.broker_addrs.values()) - seen:
                seen.add(address)
                say(shown=address, broker=group.broker_name)
        await asyncio.sleep(POLL_S)


async def shown(client: RemotingClient, name_server: str, topics: Sequence[str]) -> list[BrokerData]:
    """Returns what 105 and 106 show; nothing while the name server does not answer."""
    found: list[BrokerData] = []
    for topic in topics:
        route = await client.call(name_server, GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic))
        found += route.body.broker_datas if isinstance(route, Ok) else []
    clusters = await client.call(name_server, GET_BROKER_CLUSTER_INFO, Empty())
    return found + (list(clusters.body.broker_addr_table.values()) if isinstance(clusters, Ok) else [])


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    asyncio.run({"producer": produce, "reader": read, "routes": watch_routes}[chosen["kind"]](chosen))
