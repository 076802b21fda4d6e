"""Sends one message after the other to one broker, and prints when each was acknowledged (seconds since 1970,
when the answer was read). Runs beside the broker, on the same side of every cut. argv: host:port."""

import asyncio
import sys
import time

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2

PAUSE_S, TIMEOUT_MS = 0.01, 500


async def main(address: str) -> None:
    client, number = RemotingClient(), 0
    while True:
        header = SendMessageRequestV2(
            a="lease", b="T", c="TBW102", d=4, e=0, f=0, g=int(time.time() * 1000), h=0, i="", j=0
        )  # fmt: skip
        outcome = await client.call(address, SEND_MESSAGE_V2, header, b"x", timeout_ms=TIMEOUT_MS)
        if isinstance(outcome, Ok):
            print(f"{time.time():.3f} {number}", flush=True)
        number += 1
        await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
