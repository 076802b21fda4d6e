"""Clients that measure in a process of their own: what keeps another client's event loop does not count.

`python -m tests.bench.measuring_process KIND ARGUMENTS` prints a line when it has begun, measures until its
standard input ends, and prints a JSON object as its last line. Kinds:

- neighbour NAMESRV_ADDR MASTER_ADDR TOPIC: sends a message and pulls it from the master, again and again:
  {"sends": [ms], "pulls": [ms]};
- ages BROKER_ADDR TOPIC QUEUES: waits at the end of each queue for the next message, again and again:
  {"ages": [ms]}, the age of the first message of each response.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import uvloop

from keelmq.client import Message, Producer
from keelmq.client.message import decode_messages
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker import PULL_MESSAGE, PullMessageRequest
from keelmq.runtime.clock import wall_ms
from tests.bench.native import BenchError
from tests.bench.servers import ROOT

FLAG_SUSPEND, FLAG_SUBSCRIPTION = 2, 4
SUSPEND_MS: Final = 1_000
NEIGHBOUR_EVERY_S: Final = 0.005
PULL_TIMEOUT_MS: Final = 30_000
END_TIMEOUT_S: Final = 40.0
"""For the request in progress, which may take PULL_TIMEOUT_MS."""
_PULL_CODES: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

Figures = dict[str, list[float]]


@asynccontextmanager
async def measuring(kind: str, *arguments: str) -> AsyncIterator[Figures]:
    """Measures while the body runs; yields what is filled at its end. BenchError: the process failed."""
    figures: Figures = {}
    with _started(kind, *arguments) as process:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)  # empty: it has ended, and the end says why
        yield figures
        output, errors = await asyncio.to_thread(process.communicate, None, END_TIMEOUT_S)
    if process.returncode:
        raise BenchError(f"{kind}: {errors.strip().rpartition(chr(10))[2]}")
    figures.update(json.loads(output.strip().splitlines()[-1]))


@contextmanager
def _started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The process; killed if it has not ended by itself."""
    command, pipe = [sys.executable, "-m", __name__, *arguments], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


# -- in that process -----------------------------------------------------------------------------------------


async def feel_as_neighbour(figures: Figures, namesrv_addr: str, address: str, topic: str) -> None:
    """Sends one message and pulls it, again and again."""
    sends, pulls = figures.setdefault("sends", []), figures.setdefault("pulls", [])
    client = RemotingClient()
    async with Producer(namesrv_addr, "keelmq-bench-neighbour") as producer:
        try:
            while True:
                began = time.monotonic()
                sent = await producer.send(Message(topic, b"x" * 128))
                sends.append(1_000 * (time.monotonic() - began))
                header = PullMessageRequest(
                    consumer_group="keelmq-bench-neighbour",
                    topic=topic,
                    queue_id=sent.queue_id,
                    queue_offset=sent.queue_offset,
                    max_msg_nums=1,
                )
                began = time.monotonic()
                outcome = await client.call(address, PULL_MESSAGE, header, timeout_ms=PULL_TIMEOUT_MS)
                if not isinstance(outcome, Ok):
                    raise BenchError(f"pull of {topic}: {outcome}")
                pulls.append(1_000 * (time.monotonic() - began))
                await asyncio.sleep(NEIGHBOUR_EVERY_S)
        finally:
            await client.close()


async def read_at_slave(figures: Figures, address: str, topic: str, queues: str) -> None:
    """Measures the age of the first message of each response, at the consumer."""
    ages, client = figures.setdefault("ages", []), RemotingClient()
    try:
        await asyncio.gather(
            *(_read_new(client, address, topic, queue_id, ages) for queue_id in range(int(queues)))
        )
    finally:
        await client.close()


async def _read_new(
    client: RemotingClient, address: str, topic: str, queue_id: int, ages: list[float]
) -> None:
    """Waits at the end of a queue for the next message, again and again. What arrives while a response is on
    its way is left out, so the consumer is never behind by itself."""
    offset = 0
    while True:
        header = PullMessageRequest(
            consumer_group="keelmq-bench-slave",
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=1,
            sys_flag=FLAG_SUSPEND | FLAG_SUBSCRIPTION,
            suspend_timeout_millis=SUSPEND_MS,
        )
        outcome = await client.call(
            address, PULL_MESSAGE, header, timeout_ms=PULL_TIMEOUT_MS, good=_PULL_CODES
        )
        if not isinstance(outcome, Ok):
            raise BenchError(f"pull of {topic}/{queue_id}: {outcome}")
        now_ms, is_first = wall_ms(), offset == 0  # the first pull finds an old message
        offset = max(outcome.header.next_begin_offset, outcome.header.max_offset)
        if outcome.body and not is_first:
            ages.append(now_ms - decode_messages(bytes(outcome.body))[0].store_timestamp)


KINDS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "neighbour": feel_as_neighbour,
    "ages": read_at_slave,
}


async def measure_until_eof(kind: str, *arguments: str) -> Figures:
    """Returns what was measured until standard input ended. An error of the client ends it, too."""
    figures: Figures = {}
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    print("begun", flush=True)
    client: asyncio.Future[Any] = asyncio.ensure_future(KINDS[kind](figures, *arguments))
    over = asyncio.create_task(ended.wait())
    await asyncio.wait([client, over], return_when=asyncio.FIRST_COMPLETED)
    over.cancel()
    if not client.cancel():
        client.result()  # raises: a client never ends by itself
    await asyncio.gather(client, over, return_exceptions=True)
    return figures


def main(arguments: Sequence[str]) -> None:
    """Measures, and prints the figures."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure_until_eof(*arguments))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
