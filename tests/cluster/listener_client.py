"""Sends numbered messages to one topic, and prints a line of JSON for each that was acknowledged: its number,
and every broker address that the name server shows in 105 and 106. argv: the name server."""

import asyncio
import json
import sys

from keelmq.client import Message, Producer, SendError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operation import Empty, Ok
from keelmq.remoting.operations.route import (
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    BrokerData,
    RouteRequest,
)

PAUSE_S, TIMEOUT_MS = 0.05, 2_000
TOPIC = "Listeners"


async def shown(client: RemotingClient, name_server: str) -> list[BrokerData]:
    route = await client.call(name_server, GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=TOPIC))
    clusters = await client.call(name_server, GET_BROKER_CLUSTER_INFO, Empty())
    found = list(route.body.broker_datas) if isinstance(route, Ok) else []
    return found + (list(clusters.body.broker_addr_table.values()) if isinstance(clusters, Ok) else [])


async def main(name_server: str) -> None:
    client, number = RemotingClient(), 0
    async with Producer(name_server) as producer:
        while True:
            try:
                await producer.send(Message(TOPIC, b"%d" % number), timeout_ms=TIMEOUT_MS)
            except SendError:
                pass  # an acknowledgement is what is waited for
            else:
                groups = await shown(client, name_server)
                line = {
                    "number": number,
                    "masters": sorted({each.broker_addrs.get(MASTER_ID, "") for each in groups}),
                    "addresses": sorted({at for each in groups for at in each.broker_addrs.values()}),
                }
                print(json.dumps(line), flush=True)
            number += 1
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
