"""`keelmq status`: running programs, problems, and the next command. Exit codes: 0 ok; 1 a warning or a
failure; 2 usage; 3 no server answers."""

import sys
from typing import Annotated

import typer

from cli.command_line import (
    ControllersOption,
    OptionalNamesrvAddr,
    checked_addresses,
    print,
    quiet_connection_log,
)
from cli.credentials import CredentialsOption, checked_credentials
from cli.status.view import screen
from cli.terminal import TerminalConsole
from cli.watch import WatchOption, fresh_screen, repeated, run_repeated
from keelmq.health.memory import Memory
from keelmq.health.reach import Reach
from keelmq.health.status import ClusterStatus, Verdict
from keelmq.health.summary import of_one_group, take_status
from keelmq.remoting.address_text import parse_addresses

TIMEOUT_DEFAULT_MS = 1_200
OK, NOT_OK, NO_ANSWER = 0, 1, 3

ContainersOption = Annotated[
    str | None,
    typer.Option(
        "--container", callback=checked_addresses, help="Containers to ask as well, host:port;host:port"
    ),
]
TimeoutOption = Annotated[int, typer.Option("--timeout", min=50, help="Time limit of each request, ms")]


def listed(addresses: str | None) -> tuple[str, ...]:
    """Returns the addresses of an option."""
    return tuple(parse_addresses(addresses)) if addresses else ()


def check_given(*addresses: str | None) -> None:
    """Raises BadParameter unless an address is given."""
    if not any(addresses):
        raise typer.BadParameter("say which servers to ask: -n NAMESRV (or NAMESRV_ADDR), or -a CONTROLLERS")


def status(
    namesrv_addr: OptionalNamesrvAddr = None,
    controller_addr: ControllersOption = None,
    container: ContainersOption = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only this broker group (a brokerName)")
    ] = None,
    watch_s: WatchOption = None,
    timeout_ms: TimeoutOption = TIMEOUT_DEFAULT_MS,
    credentials: CredentialsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, with --watch one in each line")
    ] = False,
) -> None:
    """The state of a cluster on one screen: what is wrong, the next command, groups, controllers.

    It sends its requests to the servers themselves, and works when some are down. Exit code 0: no problem;
    1: a warning or a failure; 3: no server responds.
    """
    check_given(namesrv_addr, controller_addr)
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()
    memory, console = Memory(), TerminalConsole(highlight=False, soft_wrap=True)

    async def main() -> int:
        async with Reach(timeout_ms, given) as reach:

            async def once() -> int:
                reach.begin()
                found = await take_status(
                    reach,
                    listed(namesrv_addr),
                    listed(controller_addr),
                    memory=memory,
                    containers=listed(container),
                )
                if group is not None:
                    found = of_one_group(found, group)
                    if not found.groups:
                        print(f"keelmq status: no group is named {group}", file=sys.stderr, flush=True)
                        return NOT_OK
                fresh_screen(None if as_json else watch_s)
                if as_json:
                    print(found.model_dump_json(by_alias=True), flush=True)
                else:
                    for line in screen(found, console.width):
                        console.print(line)
                return code_of(found)

            return await repeated(watch_s, once)

    raise run_repeated(main)


def code_of(found: ClusterStatus) -> int:
    """Returns the exit code."""
    if not is_reached(found):
        return NO_ANSWER
    return OK if found.verdict is Verdict.OK else NOT_OK


def is_reached(found: ClusterStatus) -> bool:
    """Returns whether any server answers."""
    return any(each.is_up for each in found.name_servers) or any(
        each.role != "silent" for each in found.controllers
    )
