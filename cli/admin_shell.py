"""What every subcommand of mqadmin shares: the app, its options, two forms of output, errors, exit codes."""

import asyncio
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from client import PullError, SendError
from client.admin import AdminClient, AdminError
from client.route import parse_addresses
from remoting.codes import ResponseCode
from remoting.operation import Wire

INTERVAL_DEFAULT_S = 3

NEXT_STEPS: dict[int | None, str] = {
    None: "check the address, and that the program runs there",
    ResponseCode.TOPIC_NOT_EXIST: "check its name; a topic is created by its first message",
    ResponseCode.CONTROLLER_NOT_LEADER: "an election takes about a second: ask again; "
    "if it stays so, a majority of the controllers is down",
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST: "check the broker's name with clusterList",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "check the names with getSyncStateSet",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "it is the master already: there is nothing to do",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "see getSyncStateSet: the new master must be "
    "alive and in the SyncStateSet",
}
"""By the answer's code; None: nobody answered."""


class _AnyCase(TyperGroup):
    """Subcommand names in any case, as upstream; `mqadmin help COMMAND` for `mqadmin COMMAND --help`."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        names = {name.lower(): name for name in self.list_commands(ctx)}
        return super().get_command(ctx, names.get(cmd_name.lower(), cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] == "help" and "help" not in self.list_commands(ctx):
            args = [args[1], "--help"] if len(args) > 1 else ["--help"]
            if args == ["--help"]:
                print(ctx.get_help())
                ctx.exit(0)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_AnyCase,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Administer a KeelMQ or RocketMQ cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _checked(value: str | None) -> str | None:
    """An address list, or a usage error that names the bad part."""
    if value is not None:
        try:
            parse_addresses(value)
        except ValueError as error:
            raise typer.BadParameter(f"{error} (example: 127.0.0.1:9876;127.0.0.1:9877)") from None
    return value


_NAMESRV: Any = typer.Option(
    "-n", "--namesrvAddr", envvar="NAMESRV_ADDR", callback=_checked, help="Name servers, host:port;host:port"
)
_CONTROLLER: Any = typer.Option(
    "-a", "--controllerAddress", callback=_checked, help="Any controllers, host:port;host:port"
)
NamesrvAddr = Annotated[str, _NAMESRV]
OptionalNamesrvAddr = Annotated[str | None, _NAMESRV]
ControllerAddress = Annotated[str, _CONTROLLER]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of RocketMQ's layout")]
Interval = Annotated[
    int | None, typer.Option("-i", "--interval", min=1, help="Repeat every that many seconds")
]
ClusterName = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every broker of this cluster")]
BrokerName = Annotated[str | None, typer.Option("-b", "--brokerName", help="This broker name only")]


@dataclass(frozen=True)
class Output:
    """Both forms of an answer. `problems`: who did not answer; told on standard error, exit code 1."""

    value: object
    text: str
    problems: tuple[str, ...] = ()


def run(
    action: Callable[[AdminClient], Awaitable[Output]], *, as_json: bool, interval_s: int | None = None
) -> None:
    """Once, or every interval_s: then a failure is told and the next round follows. Ends the program."""
    logging.getLogger("remoting").addHandler(logging.NullHandler())  # we tell the outcome, not each try

    async def once(admin: AdminClient) -> int:
        try:
            output = await action(admin)
        except (AdminError, SendError, PullError) as error:
            _complain(explain(error))
            return 1
        print(json.dumps(output.value, ensure_ascii=False) if as_json else output.text, flush=True)
        for problem in output.problems:
            _complain(problem)
        return 1 if output.problems else 0

    async def main() -> int:
        async with AdminClient() as admin:
            while interval_s is not None:
                await once(admin)
                await asyncio.sleep(interval_s)
            return await once(admin)

    try:
        code = asyncio.run(main())
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _complain(text: str) -> None:
    """One line on standard error: servers' remarks may have several."""
    print(f"mqadmin: {' '.join(text.split())}", file=sys.stderr, flush=True)


def explain(error: AdminError | SendError | PullError) -> str:
    """One line: what was asked, where, what came back, what to do."""
    if not isinstance(error, AdminError):
        what = "sendMessage" if isinstance(error, SendError) else "consumeMessage"
        return f"{what}: {error}"
    if error.unknown:
        return f"{error}; it may have happened: look before you repeat it"
    answer = (
        f"{error.question} at {error.address}: {error.code_name + ', ' if error.code else ''}{error.remark}"
    )
    step = NEXT_STEPS.get(error.code, "")
    return f"{answer}; {step}" if step else answer


def dump(value: Wire) -> Any:
    return value.model_dump(mode="json", by_alias=True)
