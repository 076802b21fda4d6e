"""What every subcommand of mqadmin shares: the app, its options, two forms of output, errors, exit codes.

A subcommand is a function that checks its flags and gives back what to ask (`Action`); `command` registers it
and adds --json, --timeout and, where it makes sense to look again, -i.

Exit codes: 0 done; 1 refused, or nothing found; 2 usage; 3 no answer; 4 done in part (some servers did not
answer or refused). One line on standard error says what, where and what next.
"""

import asyncio
import inspect
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.command_line import checked_addresses, quiet_connection_log
from keelmq.client import PullError, SendError
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.client.consumer.pull_consumer import PullErrorKind
from keelmq.client.producer.producer import SendErrorKind
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Wire

INTERVAL_DEFAULT_S = 3
"""Of -i without a number."""
DONE, REFUSED, NO_ANSWER, IN_PART = 0, 1, 3, 4
"""Exit codes; 2, usage, is typer's."""

NEXT_STEPS: dict[int | None, str] = {
    None: "check the address, and that the program runs there",
    ResponseCode.TOPIC_NOT_EXIST: "check its name; a topic is created by its first message",
    ResponseCode.CONTROLLER_NOT_LEADER: "an election takes about a second: ask again; "
    "if it stays so, a majority of the controllers is down",
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST: "check the broker's name with clusterList",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "check the names with getSyncStateSet",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "it is the master already: there is nothing to do",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "that server is of another kind or version: is the port right?",
    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: "see getSyncStateSet; a living broker is "
    "cleaned with -l only",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "see getSyncStateSet: the new master must be "
    "alive and in the SyncStateSet",
}
"""By the answer's code; None: nobody answered."""
BLACK_LIST = "keys of the black list change only in the configuration file, by a restart"
UNKNOWN_CHANGE = "it may have happened: look before you repeat it"
READS = ("get", "query", "search", "view", "explain", "export", "check", "pull")
"""How the names of operations that change nothing begin."""
RETRY_PREFIX = "%RETRY%"
"""Of a consumer group's own topic, by which a group is looked up."""


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
        name, found, rest = super().resolve_command(ctx, args)
        if found is not None and any(parameter.name == "interval_s" for parameter in found.params):
            rest = with_interval(rest)
        return name, found, rest


def with_interval(args: list[str]) -> list[str]:
    """-i without a number means INTERVAL_DEFAULT_S, as upstream."""
    full: list[str] = []
    for arg, following in zip(args, [*args[1:], "-"], strict=False):  # no flag at all: nothing to look at
        full.append(arg)
        if arg in ("-i", "--interval") and following.startswith("-"):
            full.append(str(INTERVAL_DEFAULT_S))
    return full


app = typer.Typer(
    cls=_AnyCase,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Administer a KeelMQ or RocketMQ cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


_NAMESRV: Any = typer.Option(
    "-n",
    "--namesrvAddr",
    envvar="NAMESRV_ADDR",
    callback=checked_addresses,
    help="Name servers, host:port;host:port",
)
_CONTROLLER: Any = typer.Option(
    "-a", "--controllerAddress", callback=checked_addresses, help="Any controllers, host:port;host:port"
)
NamesrvAddr = Annotated[str, _NAMESRV]
OptionalNamesrvAddr = Annotated[str | None, _NAMESRV]
ControllerAddress = Annotated[str, _CONTROLLER]
ClusterName = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every broker of this cluster")]
BrokerName = Annotated[str | None, typer.Option("-b", "--brokerName", help="This broker name only")]


@dataclass(frozen=True)
class Output:
    """Both forms of an answer. `problems`: who did not answer, or refused; one line each on standard error.
    `notes`: what else is worth knowing there. `exit_code` None: 0, or 4 with problems."""

    value: object
    text: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exit_code: int | None = None


Action = Callable[[AdminClient], Awaitable[Output]]

_AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of RocketMQ's layout")]
_TIMEOUT = Annotated[
    int | None,
    typer.Option("--timeout", min=1, help="ms for each question (default 5000; controllers 3000)"),
]
_UNUSED_NAMESRV = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        callback=checked_addresses,
        help="Taken by every command, as by RocketMQ's; this one asks no name server",
    ),
]
_INTERVAL = Annotated[
    int | None, typer.Option("-i", "--interval", min=1, help="Repeat every that many seconds (3)")
]


def command(
    name: str, *, repeats: bool = False, every_s: int | None = None
) -> Callable[[Callable[..., Action]], Callable[..., Action]]:
    """Register a subcommand. The decorated function gets its own flags only. `repeats`: it may be repeated;
    `every_s`: it is, so often, unless -i says otherwise."""
    common: list[tuple[str, Any, Any]] = [("timeout_ms", None, _TIMEOUT), ("as_json", False, _AS_JSON)]
    if every_s is not None:
        text = f"Repeat every that many seconds ({every_s}); 0: once"
        option: Any = typer.Option("-i", "--interval", min=0, help=text)
        common.insert(0, ("interval_s", every_s, Annotated[int, option]))
    elif repeats:
        common.insert(0, ("interval_s", None, _INTERVAL))

    def register(function: Callable[..., Action]) -> Callable[..., Action]:
        needs_namesrv = "namesrv_addr" in inspect.signature(function).parameters
        extra = [] if needs_namesrv else [("namesrv_addr", None, _UNUSED_NAMESRV)]

        def entry(
            *, as_json: bool, timeout_ms: int | None, interval_s: int | None = None, **flags: Any
        ) -> None:
            if not needs_namesrv:
                flags.pop("namesrv_addr")
            check_texts(flags.values())
            run(function(**flags), as_json=as_json, timeout_ms=timeout_ms, interval_s=interval_s or None)

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(function).parameters.values()
        ]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for key, default, annotation in (*extra, *common)
        ]
        entry.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        entry.__annotations__ = {each.name: each.annotation for each in (*own, *shared)}
        entry.__name__, entry.__doc__ = function.__name__, function.__doc__
        app.command(name)(entry)
        return function

    return register


def check_texts(flags: Iterable[object]) -> None:
    """A usage error for bytes that are no UTF-8: the system gives them as lone surrogates, which no request
    can carry."""
    for text in flags:
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise typer.BadParameter(f"{text!a} is no UTF-8 text") from None


def run(action: Action, *, as_json: bool, timeout_ms: int | None, interval_s: int | None) -> None:
    """Once, or every interval_s: then a failure is told and the next round follows. Ends the program."""
    quiet_connection_log()

    async def once(admin: AdminClient) -> int:
        try:
            output = await action(admin)
        except (AdminError, SendError, PullError) as error:
            complain(explain(error))
            return exit_code_of(error)
        text = json.dumps(output.value, ensure_ascii=False) if as_json else output.text
        if text:
            print(text, flush=True)
        for line in (*output.notes, *output.problems):
            complain(line)
        if output.exit_code is not None:
            return output.exit_code
        return IN_PART if output.problems else DONE

    async def main() -> int:
        async with AdminClient(timeout_ms=timeout_ms) as admin:
            while interval_s is not None:
                await once(admin)
                await asyncio.sleep(interval_s)
            return await once(admin)

    try:
        code = asyncio.run(main())
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def exit_code_of(*errors: Exception) -> int:
    """Of a question that failed everywhere."""

    def is_refusal(error: Exception) -> bool:
        if isinstance(error, AdminError):
            return error.code is not None
        if isinstance(error, PullError) and error.code is not None:
            return True  # also that no name server knows the topic: it is not found
        return getattr(error, "kind", None) in (SendErrorKind.REFUSED, PullErrorKind.REFUSED)

    return REFUSED if any(map(is_refusal, errors)) else NO_ANSWER


def per_server(
    said: Sequence[ServerResult[Any]],
    text: str,
    value: Callable[[ServerResult[Any]], dict[str, Any]] | None = None,
    *,
    done: str = "",
) -> Output:
    """The output of a question to several servers: `text`, and a list of {address, ok, error, ...} as JSON.
    `done` says for what the ones that answered are already changed, if others are not."""
    rows = [
        {
            "address": each.address,
            "ok": each.error is None,
            "error": None if each.error is None else explain(each.error),
            **({} if value is None or each.error is not None else value(each)),
        }
        for each in said
    ]
    errors = [each.error for each in said if each.error is not None]
    good = [each.address for each in said if each.error is None]
    notes = tuple(f"{each.address}: {each.remark}" for each in said if each.remark)
    problems = [explain(error) for error in errors]
    if errors and good and done:
        problems.append(f"{done} at {', '.join(good)} only: repeat the command when the others answer")
    code = None if not errors else IN_PART if good else exit_code_of(*errors)
    return Output(rows, text, tuple(problems), notes, code)


def complain(text: str) -> None:
    """One line on standard error: servers' remarks may have several."""
    print(f"mqadmin: {' '.join(text.split())}", file=sys.stderr, flush=True)


def explain(error: AdminError | SendError | PullError) -> str:
    """One line: what was asked, where, what came back, what to do."""
    if not isinstance(error, AdminError):
        what = "sendMessage" if isinstance(error, SendError) else "pullMessage"
        return f"{what}: {error}"
    if error.unknown:
        step = "nothing was changed: ask again" if is_read(error.request) else UNKNOWN_CHANGE
        return f"{error}; {step}"
    answer = (
        f"{error.request} at {error.address}: {error.code_name + ', ' if error.code else ''}{error.remark}"
    )
    step = next_step(error)
    return f"{answer}; {step}" if step else answer


def is_read(question: str) -> bool:
    """True if the operation of this name changes nothing."""
    return question.startswith(READS)


def next_step(error: AdminError) -> str:
    """What may help against this refusal; "": nothing that is known."""
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and "request type" not in error.remark:
        return ""  # it says itself why it does not serve that
    if error.code == ResponseCode.NO_PERMISSION:
        return BLACK_LIST if "black list" in error.remark else ""
    if error.code == ResponseCode.TOPIC_NOT_EXIST:
        if RETRY_PREFIX in error.remark:
            return "check the group's name; a group is known from its first consumer on"
        if error.request.startswith(("delete", "updateTopicPerm")):
            return "check its name with topicList"
    return NEXT_STEPS.get(error.code, "")


def dump(value: Wire) -> Any:
    return value.model_dump(mode="json", by_alias=True)
