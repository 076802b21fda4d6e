"""--watch SECONDS: a command that repeats its question. On a terminal each answer replaces the last one."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

CLEAR = "\x1b[H\x1b[2J\x1b[3J"
INTERRUPTED = 130

WATCHED = frozenset(
    {
        "brokerConsumeStats", "brokerStatus", "clusterList", "clusterRT", "consumerConnection",
        "consumerProgress", "consumerStatus", "getAcl", "getBrokerConfig", "getBrokerEpoch",
        "getConsumerConfig", "getControllerConfig", "getControllerMetaData", "getElections",
        "getNamesrvConfig", "getSyncStateSet", "getUser", "haStatus", "listAcl", "listUser", "producer",
        "producerConnection", "queryCq", "statsAll", "topicClusterList", "topicList", "topicRoute",
        "topicStatus",
    }
)  # fmt: skip
"""mqadmin's commands that list or show a state, which have --watch."""

WatchOption = Annotated[
    int | None,
    typer.Option(
        "--watch",
        min=1,
        metavar="SECONDS",
        help="Repeat at this interval until Ctrl-C; on a terminal each output replaces the previous one",
    ),
]


def fresh_screen(every_s: int | None) -> None:
    """Called before an answer is printed: clears the terminal and prints the time. Does nothing if the
    command is not repeated, or if the output is no terminal."""
    if every_s is not None and sys.stdout.isatty():
        sys.stdout.write(f"{CLEAR}every {every_s} s, {time.strftime('%H:%M:%S')}; Ctrl-C ends\n")
        sys.stdout.flush()


async def repeated(every_s: int | None, once: Callable[[], Awaitable[int]]) -> int:
    """Calls `once` and returns its exit code; with every_s it repeats this, whatever it returns."""
    while every_s is not None:
        await once()
        await asyncio.sleep(every_s)
    return await once()


def run_repeated(main: Callable[[], Awaitable[int]]) -> typer.Exit:
    """Runs the coroutine; returns the exit for the caller to raise. Ctrl-C: exit code 130, no traceback."""

    async def whole() -> int:
        return await main()

    try:
        return typer.Exit(asyncio.run(whole()))
    except KeyboardInterrupt:
        return typer.Exit(INTERRUPTED)
