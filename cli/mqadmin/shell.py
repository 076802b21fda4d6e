"""The parts that all subcommands of mqadmin share: the app, its options, two forms of output, errors, exit
codes.

A subcommand is a function that checks its flags and returns an `Action`; `command` registers it and adds
--json, --timeout, to the commands of WATCHED --watch, and to those that upstream repeats -i.

Exit codes: 0 done; 1 refused, or nothing found; 2 usage; 3 no answer; 4 done in part (some servers did not
answer or refused); 5 done, but the answer could not be written (cli.answer). One line on standard error says
what failed, where, and what to do next.
"""

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli.command_line import checked_addresses, controllers_option, print, print_error, quiet_connection_log
from cli.credentials import CredentialsOption, checked_credentials
from cli.tls_options import is_plain
from cli.watch import WATCHED, WatchOption, fresh_screen, repeated, run_repeated
from keelmq.client import PullError, PullErrorKind, SendError, SendErrorKind
from keelmq.client.admin import AdminClient, AdminError, ServerResult
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Wire
from keelmq.security.signer import Credentials

INTERVAL_DEFAULT_S = 3
"""For -i without a number."""
PROGRAM = "mqadmin"
DONE, REFUSED, NO_ANSWER, IN_PART = 0, 1, 3, 4
"""Exit codes; 2, usage, is typer's."""

NEXT_STEPS: dict[int | None, str] = {
    None: "check the address, and that the program runs there",
    ResponseCode.TOPIC_NOT_EXIST: "check its name; a topic is created by its first message",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "check its name with consumerProgress, which lists the "
    "groups; a group is created by updateSubGroup or by its first consumer",
    ResponseCode.BROKER_NOT_EXIST: "clusterList shows the brokers and their masters",
    ResponseCode.CONSUMER_NOT_ONLINE: "check the group's name with consumerProgress, and that its "
    "consumers run",
    ResponseCode.CONTROLLER_NOT_LEADER: "an election takes about a second: try again; "
    "if this persists, a majority of the controllers is down",
    ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST: "check the broker's name with clusterList",
    ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED: "check the names with getSyncStateSet",
    ResponseCode.CONTROLLER_MASTER_STILL_EXIST: "it is already the master: nothing to do",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the server is of another kind or version: check the port",
    ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA: "see getSyncStateSet; a live broker is "
    "cleaned only with -l",
    ResponseCode.CONTROLLER_ELECT_MASTER_FAILED: "see getSyncStateSet: the new master must be "
    "alive and in the SyncStateSet",
}
"""Keyed by the answer's code; None: no server answered."""
OF_NO_PERMISSION = (
    ("black list", "keys on the black list can be changed only in the configuration file, with a restart"),
    ("username cannot be null", "requests must be signed there: --credentials FILE, or KEELMQ_CREDENTIALS"),
    ("check signature failed", "the user has another password there: is it the right credentials file?"),
    ("has no permission to access", "an administrator grants it (createAcl); getAcl shows what is granted"),
)
"""Words of a remark, and the next step."""
LOST = re.compile(r"^connection\b.* lost")
TLS_ONLY = "; a server that takes TLS only closes plain connections: --tls-ca FILE"
UNKNOWN_CHANGE = "it may have happened: check before you repeat it"
READS = ("get", "query", "search", "view", "explain", "export", "check", "pull", "authGet", "authList",
         "containerStatus", "containerPlan")  # fmt: skip
"""Prefixes of the names of operations that change nothing."""
RETRY_PREFIX = "%RETRY%"
"""Of a consumer group's retry topic, whose route leads to the brokers that have the group."""


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
    for arg, following in zip(args, [*args[1:], "-"], strict=False):  # strict: there may be no arguments
        full.append(arg)
        if arg in ("-i", "--interval") and following.startswith("-"):
            full.append(str(INTERVAL_DEFAULT_S))
    return full


app = typer.Typer(
    cls=_AnyCase,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Administer a KeelMQ or RocketMQ cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


ControllerAddress = Annotated[str, controllers_option("Any of the controllers, host:port;host:port")]
ClusterName = Annotated[str | None, typer.Option("-c", "--clusterName", help="Every broker of this cluster")]
BrokerName = Annotated[str | None, typer.Option("-b", "--brokerName", help="Only this broker name")]


@dataclass(frozen=True)
class Output:
    """The result of a command, as JSON and as text. `problems`: one line on standard error for each server
    that did not answer or refused. `notes`: other lines for standard error. `exit_code` None: 0, or 4 with
    problems."""

    value: object
    text: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    exit_code: int | None = None


class DoesNotExist(AdminError):
    """The group, topic or key of a change does not exist at this server, and nothing was changed there.

    RocketMQ's servers answer such a change with success, and so do KeelMQ's. The command asks first."""


Action = Callable[[AdminClient], Awaitable[Output]]

_AS_JSON = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of RocketMQ's layout")]
_TIMEOUT = Annotated[
    int | None,
    typer.Option("--timeout", min=1, help="ms per request (default 5000; controllers 3000)"),
]
_UNUSED_NAMESRV = Annotated[
    str | None,
    typer.Option(
        "-n",
        "--namesrvAddr",
        callback=checked_addresses,
        help="Accepted by every command, as in RocketMQ; this command needs no name server",
    ),
]
_INTERVAL = Annotated[
    int | None, typer.Option("-i", "--interval", min=1, help="Repeat at this interval in seconds (default 3)")
]


def command(
    name: str, *, repeats: bool = False, every_s: int | None = None
) -> Callable[[Callable[..., Action]], Callable[..., Action]]:
    """Returns a decorator that registers a subcommand; the decorated function gets only its own flags.
    `repeats`: adds -i. `every_s`: adds -i with this default, in seconds. The commands of WATCHED have
    --watch."""
    common: list[tuple[str, Any, Any]] = [
        ("timeout_ms", None, _TIMEOUT),
        ("credentials", None, CredentialsOption),
        ("as_json", False, _AS_JSON),
    ]
    if every_s is not None:
        text = f"Repeat at this interval in seconds (default {every_s}); 0: once"
        option: Any = typer.Option("-i", "--interval", min=0, help=text)
        common.insert(0, ("interval_s", every_s, Annotated[int, option]))
    elif repeats:
        common.insert(0, ("interval_s", None, _INTERVAL))
    if name in WATCHED:
        common.insert(0, ("watch_s", None, WatchOption))

    def register(function: Callable[..., Action]) -> Callable[..., Action]:
        needs_namesrv = "namesrv_addr" in inspect.signature(function).parameters
        extra = [] if needs_namesrv else [("namesrv_addr", None, _UNUSED_NAMESRV)]

        def entry(
            *,
            as_json: bool,
            timeout_ms: int | None,
            credentials: Path | None,
            interval_s: int | None = None,
            watch_s: int | None = None,
            **flags: Any,
        ) -> None:
            if interval_s is not None and watch_s is not None:
                raise typer.BadParameter("give -i or --watch: both repeat the command")
            if not needs_namesrv:
                flags.pop("namesrv_addr")
            check_texts(flags.values())
            run(
                function(**flags),
                as_json=as_json,
                timeout_ms=timeout_ms,
                interval_s=interval_s or None,
                watch_s=watch_s,
                credentials=checked_credentials(PROGRAM, credentials),
            )

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
                raise typer.BadParameter(f"{text!a} is not UTF-8 text") from None


def run(
    action: Action,
    *,
    as_json: bool,
    timeout_ms: int | None,
    interval_s: int | None,
    watch_s: int | None = None,
    credentials: Credentials | None = None,
) -> None:
    """Runs the action once, or every interval_s or watch_s seconds; a failure does not end the repetition.
    Ends the program."""
    quiet_connection_log()

    async def once(admin: AdminClient) -> int:
        try:
            output = await action(admin)
        except (AdminError, SendError, PullError) as error:
            fresh_screen(None if as_json else watch_s)
            print_error(PROGRAM, explain(error))
            return exit_code_of(error)
        print_output(output, PROGRAM, as_json=as_json, watch_s=watch_s)
        if output.exit_code is not None:
            return output.exit_code
        return IN_PART if output.problems else DONE

    async def main() -> int:
        async with AdminClient(timeout_ms=timeout_ms, credentials=credentials) as admin:
            return await repeated(watch_s or interval_s, lambda: once(admin))

    raise run_repeated(main)


def print_output(output: Output, program: str, *, as_json: bool, watch_s: int | None) -> None:
    """Prints the answer, and on standard error the notes and problems."""
    fresh_screen(None if as_json else watch_s)
    text = json.dumps(output.value, ensure_ascii=False) if as_json else output.text
    if text:
        print(text, flush=True)
    for line in (*output.notes, *output.problems):
        print_error(program, line)


def exit_code_of(*errors: Exception) -> int:
    """Returns the exit code of a request that failed at every server: REFUSED if any of them answered."""

    def is_refusal(error: Exception) -> bool:
        if isinstance(error, AdminError):
            return error.code is not None
        if isinstance(error, PullError) and error.code is not None:
            return True  # also if no name server knows the topic: not found
        return getattr(error, "kind", None) in (SendErrorKind.REFUSED, PullErrorKind.REFUSED)

    return REFUSED if any(map(is_refusal, errors)) else NO_ANSWER


def per_server(
    results: Sequence[ServerResult[Any]],
    text: str,
    value: Callable[[ServerResult[Any]], dict[str, Any]] | None = None,
    *,
    done: str = "",
) -> Output:
    """Returns the output of a question to several servers: `text`, and a list of {address, ok, error, ...} as
    JSON. `done` names the change, for the problem line that names the servers that made it when others
    failed. A server with nothing to change gets a note. Raises DoesNotExist if no server has anything to
    change."""
    _raise_if_nowhere(results)
    rows = [
        {
            "address": each.address,
            "ok": each.error is None,
            "error": None if each.error is None else explain(each.error),
            **({} if value is None or each.error is not None else value(each)),
        }
        for each in results
    ]
    failed = [each.error for each in results if each.error is not None]
    errors = [error for error in failed if not isinstance(error, DoesNotExist)]
    good = [each.address for each in results if each.error is None]
    absent = [f"{error.address}: {error.remark}" for error in failed if isinstance(error, DoesNotExist)]
    notes = (*(f"{each.address}: {each.remark}" for each in results if each.remark), *absent)
    problems = [explain(error) for error in errors]
    if errors and good and done:
        problems.append(f"{done} at {', '.join(good)} only: repeat the command when the others answer")
    code = None if not errors else IN_PART if good else exit_code_of(*errors)
    return Output(rows, text, tuple(problems), notes, code)


def _raise_if_nowhere(results: Sequence[ServerResult[Any]]) -> None:
    missing = [each.error for each in results if isinstance(each.error, DoesNotExist)]
    if missing and len(missing) == len(results):
        places = ", ".join(error.address for error in missing)
        raise DoesNotExist(missing[0].request, places, missing[0].remark, missing[0].code)


def explain(error: AdminError | SendError | PullError) -> str:
    """Returns one line: the request, the server, its answer, and what to do next."""
    if not isinstance(error, AdminError):
        what = "sendMessage" if isinstance(error, SendError) else "pullMessage"
        return f"{what}: {error}; {_step_of_client(error)}"
    if error.unknown:
        step = "nothing was changed: try again" if is_read(error.request) else UNKNOWN_CHANGE
        if is_plain() and LOST.search(error.remark):
            step += TLS_ONLY
        return f"{error}; {step}"
    answer = (
        f"{error.request} at {error.address}: {error.code_name + ', ' if error.code else ''}{error.remark}"
    )
    step = next_step(error)
    return f"{answer}; {step}" if step else answer


def _step_of_client(error: SendError | PullError) -> str:
    if isinstance(error, PullError):
        if error.kind is PullErrorKind.UNREACHABLE:
            return "nothing was changed: try again; clusterList shows which brokers are registered"
        return NEXT_STEPS.get(error.code or 0, "topicRoute shows the topic's brokers and permissions")
    if error.kind is SendErrorKind.UNKNOWN:
        return f"it may be stored: check with queryMsgByUniqueKey -i {error.msg_id} before you repeat it"
    if error.kind is SendErrorKind.NO_ROUTE:
        return "nothing was sent: topicRoute shows the topic's brokers and permissions"
    return (
        "nothing was stored: remove the cause, then repeat it; clusterList shows which brokers are registered"
    )


def is_read(question: str) -> bool:
    """Returns whether the operation of this name changes nothing."""
    return question.startswith(READS)


def next_step(error: AdminError) -> str:
    """Returns the next step after this refusal; "" if none is known."""
    if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and "request type" not in error.remark:
        return ""  # the remark says why
    if error.code == ResponseCode.NO_PERMISSION:
        return next((step for words, step in OF_NO_PERMISSION if words in error.remark), "")
    if error.code == ResponseCode.TOPIC_NOT_EXIST:
        if RETRY_PREFIX in error.remark:
            return "check the group's name; a group is known as soon as its first consumer connects"
        if error.request.startswith(("delete", "updateTopicPerm", "setConsumeMode")):
            return "check its name with topicList"
        if error.request.startswith("send"):
            return "check its name with topicList, or create it with updateTopic"
    if isinstance(error, DoesNotExist) and error.code == ResponseCode.QUERY_NOT_FOUND:
        if error.request.endswith("User"):
            return "check the name with listUser"
        if error.request.endswith("Acl"):
            return "check the subject with listAcl"
        return "check the namespace and the key"
    return NEXT_STEPS.get(error.code, "")


def dump(value: Wire) -> Any:
    """Returns the JSON form of a wire value, with RocketMQ's field names."""
    return value.model_dump(mode="json", by_alias=True)
