"""`keelmq top`: groups and brokers of a cluster, live in the terminal. Keys: q ends, s sorts by the next
column, r in the other direction, g shows groups, b brokers."""

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.live import Live

from cli.command_line import ControllersOption, OptionalNamesrvAddr, print, quiet_connection_log
from cli.credentials import CredentialsOption, checked_credentials
from cli.status.command import (
    NO_ANSWER,
    TIMEOUT_DEFAULT_MS,
    TimeoutOption,
    check_given,
    is_reached,
    listed,
)
from cli.status.top_view import Screen, frame
from cli.terminal import TerminalConsole
from cli.watch import run_repeated
from keelmq.health.memory import Memory
from keelmq.health.reach import Reach
from keelmq.health.status import ClusterStatus
from keelmq.health.summary import take_status

USAGE = 2
LOOK_S = 0.25
"""An answer is shown this much later at most."""
KEYS_AT_ONCE = 64


def top(
    namesrv_addr: OptionalNamesrvAddr = None,
    controller_addr: ControllersOption = None,
    every_s: Annotated[
        float, typer.Option("--interval", min=0.5, metavar="SECONDS", help="Time between two rounds")
    ] = 2.0,
    timeout_ms: TimeoutOption = TIMEOUT_DEFAULT_MS,
    credentials: CredentialsOption = None,
) -> None:
    """Groups and brokers live in the terminal: rates, lag, in sync, what has just changed. Ends with q.

    Keys: q quits; s sorts by the next column, r reverses the order; g shows groups, b brokers. Exit code
    3: no server responds at the start.
    """
    check_given(namesrv_addr, controller_addr)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        print(
            "keelmq top: needs a terminal; for a program or a file: keelmq status --watch 2 --json",
            file=sys.stderr,
        )
        raise typer.Exit(USAGE)
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()

    servers, controllers = listed(namesrv_addr), listed(controller_addr)

    async def main() -> int:
        state, memory = Screen(), Memory()
        async with Reach(timeout_ms, given) as reach:

            async def ask() -> ClusterStatus:
                reach.begin()
                return await take_status(reach, servers, controllers, memory=memory)

            state.take(first := await ask())
            if not is_reached(first):
                print(f"keelmq top: no server answers: {first.problems[0].text}", file=sys.stderr)
                return NO_ANSWER
            await show(state, ask, every_s)
        return 0

    raise run_repeated(main)


async def show(state: Screen, ask: Callable[[], Awaitable[ClusterStatus]], every_s: float) -> None:
    """Draws the screen until a key ends it. Keys are answered while the servers are asked."""
    console, loop = TerminalConsole(highlight=False), asyncio.get_running_loop()
    due, asking = loop.time() + every_s, None
    with keys(state), Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while not state.is_over:
                live.update(frame(state, console.width, console.height), refresh=True)
                await state.pressed_within(LOOK_S)
                if asking is None and loop.time() >= due:
                    asking = asyncio.ensure_future(ask())
                if asking is not None and asking.done():
                    state.take(asking.result())
                    due, asking = loop.time() + every_s, None
        finally:
            if asking is not None:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)


@contextmanager
def keys(state: Screen) -> Iterator[None]:
    """Passes each key to the state as it is pressed. The terminal is put back, however this ends."""
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def read() -> None:
        for key in os.read(descriptor, KEYS_AT_ONCE).decode("utf-8", "replace") or "q":  # empty: it is closed
            state.press(key)

    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
