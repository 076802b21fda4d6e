"""keelmq upgrade: brings a cluster on machines to another version, one process after the other.

Exit codes: 0 done, or nothing to do; 1 stopped before the first step; 2 usage; 3 no answer; 4 stopped after
some steps; 130 Ctrl-C.
"""

import asyncio
import json
import re
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import ControllersOption, NamesrvAddr, Refused, print, print_error, quiet_connection_log
from cli.credentials import CredentialsOption, checked_credentials
from cli.mqadmin.shell import DONE, IN_PART, NO_ANSWER, REFUSED
from cli.status.command import ContainersOption, listed
from cli.upgrade.core.steps import CONTROLLERS, Done, Restart, Stop, Wait
from cli.upgrade.core.view import NO_VERSION, Server, View, rank, summary
from cli.upgrade.lease import Held, Lease
from cli.upgrade.restart_command import RestartCommand, parse_command
from cli.upgrade.roll import AGAIN, Order, Roll, Stopped, planned, stop_text
from cli.upgrade.survey import NoAnswer, Survey
from keelmq.client.admin import AdminClient
from keelmq.health.reach import Reach
from keelmq.runtime.program import installed_version
from keelmq.security.signer import Credentials

NAME = "keelmq upgrade"
REQUEST_TIMEOUT_MS = 2_000
TIMEOUT_DEFAULT_S = 600.0
INTERRUPTED = 130
NOT_INCLUDED = (
    "not included: proxies, consoles and clients; they get a newer version last, an older one first"
)
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+]*")

RestartOption = Annotated[
    str | None,
    typer.Option(
        "--restart",
        metavar="COMMAND",
        help="Installs the target and restarts one process, such as 'ssh {host} sudo systemctl restart "
        "{unit}'; placeholders {host} {unit} {kind} {address} {name} {version} (default: say what to "
        "restart, and wait until it is done)",
    ),
]

InstallOption = Annotated[
    str | None,
    typer.Option(
        "--install",
        metavar="COMMAND",
        help="Installs the target, before --restart; the cluster is looked at again in between (default: "
        "--restart installs)",
    ),
]


def upgrade(
    namesrv_addr: NamesrvAddr,
    controllers: ControllersOption = None,
    container: ContainersOption = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="VERSION",
            help=f"The target, newer or older; {NO_VERSION}: one that reports no version (default: the "
            "version of this program)",
        ),
    ] = None,
    restart: RestartOption = None,
    install: InstallOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the steps, and change nothing")] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="GROUP",
            help=f"Only this broker group; {CONTROLLERS}: and name servers, only them",
        ),
    ] = None,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="Also restart what sends or elections cannot do without")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", min=1, help="Seconds for each restart, and again until all is in sync"),
    ] = TIMEOUT_DEFAULT_S,
    logs: Annotated[
        Path | None,
        typer.Option(
            "--logs", metavar="DIR", help="For the output of the command (default: a new temporary directory)"
        ),
    ] = None,
    credentials: CredentialsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object in each line")] = False,
) -> None:
    """Roll a cluster to another version: controllers, then brokers, one by one; no send fails.

    It asks every server for its version, so it goes on where an earlier run stopped. RocketMQ's own servers
    and proxies are left alone.
    """
    target = _target(to)
    if install is not None and restart is None:
        raise typer.BadParameter("it needs --restart", param_hint="--install")
    command, installation = _parsed("--restart", restart), _parsed("--install", install)
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()
    order = Order(target, only, allow_gap, timeout_s, command, logs or Path(), installation)
    run = _Run((namesrv_addr, controllers, container), order, given, as_json=as_json)
    try:
        code = asyncio.run(run.show() if plan else run.upgrade(has_logs=logs is not None))
    except KeyboardInterrupt:
        run.stop(("interrupted",), f"a restart that has begun goes on: when it has ended, {AGAIN}")
        code = INTERRUPTED
    raise typer.Exit(code)


def _parsed(option: str, text: str | None) -> RestartCommand | None:
    """Returns the command. BadParameter: it is none."""
    try:
        return parse_command(text) if text is not None else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _target(to: str | None) -> str:
    """Returns the target. BadParameter: it is no version, or not known."""
    version = installed_version() if to is None else to
    if version == NO_VERSION:
        return ""
    if not version:
        raise typer.BadParameter("this program is not installed and has no version", param_hint="--to")
    if not _VERSION.fullmatch(version) or not rank(version)[0]:
        raise typer.BadParameter(f"{version!r} is no version, such as 0.2.0", param_hint="--to")
    return version


class _Run:
    def __init__(
        self,
        addresses: tuple[str, str | None, str | None],
        order: Order,
        credentials: Credentials | None,
        *,
        as_json: bool,
    ) -> None:
        self._addresses, self._order, self._credentials = addresses, order, credentials
        self._as_json = as_json

    async def show(self) -> int:
        """Prints the plan. Returns the exit code."""
        async with Reach(REQUEST_TIMEOUT_MS, self._credentials) as reach:
            view = await self._first_look(self._survey(reach))
        if isinstance(view, int):
            return view
        if view.faults:
            self._tell(
                f"no step begins before this is right: {summary(view.faults)}",
                {"event": "waiting", "reason": summary(view.faults)},
            )
        *steps, end = self._order.plan(view)
        for number, step in enumerate(steps, 1):
            assert not isinstance(step, Done | Stop | Wait)
            text, value = planned(step, self._order.version)
            self._tell(f"[{number}/{len(steps)}] {text}", {**value, "step": number, "of": len(steps)})
        if isinstance(end, Stop):
            return self.stop(end.reasons, stop_text(end))
        if not steps:
            self._nothing()
        return DONE

    async def upgrade(self, *, has_logs: bool) -> int:
        """Carries it out. Returns the exit code."""
        async with Reach(REQUEST_TIMEOUT_MS, self._credentials) as reach:
            survey = self._survey(reach)
            view = await self._first_look(survey)
            if isinstance(view, int):
                return view
            try:
                order = self._with_logs(view, has_logs=has_logs)
            except OSError as error:
                return self.stop((f"no directory for output: {error}",), "name one with --logs")
            async with AdminClient(credentials=self._credentials) as admin, AsyncExitStack() as stack:
                lease = Lease(admin, lambda: survey.name_servers, self._tell_waiting)
                roll = Roll(survey, admin, lease, order, self._tell)
                try:
                    if len(self._order.plan(view)) > 1:  # something is to be done, and may be done
                        await stack.enter_async_context(lease)
                    await roll.run()
                except Stopped as stopped:
                    return self.stop(stopped.reasons, stopped.next_step, is_begun=roll.made > 0)
                except Held as held:
                    next_step = f"wait until it has ended; {AGAIN}"
                    return self.stop((str(held),), next_step, is_begun=roll.made > 0)
                except Refused as error:
                    return self.stop((str(error),), AGAIN, is_begun=roll.made > 0)
        if not roll.made:
            self._nothing()
        else:
            text = f"done: every server has {self._order.version}"
            self._tell(text, {"event": "done", "steps": roll.made, "version": self._order.version})
        return DONE

    def stop(self, reasons: tuple[str, ...], next_step: str, *, is_begun: bool = False) -> int:
        """Reports why there is no further step. Returns the exit code."""
        value = {"event": "stopped", "reasons": list(reasons), "next": next_step}
        if self._as_json:
            print(json.dumps(value, ensure_ascii=False), flush=True)
        print_error(NAME, f"stopped: {'; '.join(reasons)}; next: {next_step}")
        return IN_PART if is_begun else REFUSED

    def _survey(self, reach: Reach) -> Survey:
        name_servers, controllers, containers = self._addresses
        return Survey(reach, listed(name_servers), listed(controllers), listed(containers))

    async def _first_look(self, survey: Survey) -> View | int:
        """Returns the view; an exit code: it cannot go on."""
        try:
            view = await survey.look()
        except NoAnswer as error:
            print_error(NAME, f"{error}; next: {error.next_step}")
            return NO_ANSWER
        except Refused as error:
            print_error(NAME, str(error))
            return REFUSED
        if view.left_alone:
            self._tell(
                f"RocketMQ's own servers are left alone: {', '.join(view.left_alone)}",
                {"event": "leftAlone", "addresses": list(view.left_alone)},
            )
        servers = self._restarts(view)
        if servers:
            self._tell(NOT_INCLUDED, {"event": "notIncluded", "programs": ["proxies", "consoles", "clients"]})
        if self._order.command is not None and (wrong := self._wrong_values(servers)):
            return self.stop((wrong,), "correct the command, or the configuration of that server")
        return view

    def _restarts(self, view: View) -> list[Server]:
        return [each.server for each in self._order.plan(view) if isinstance(each, Restart)]

    def _wrong_values(self, servers: list[Server]) -> str:
        """Returns why the command cannot be made for all of them; "": it can."""
        command = self._order.command
        assert command is not None
        try:
            commands = [tuple(command.for_server(each, self._order.version)) for each in servers]
            if self._order.install is not None:
                for each in servers:
                    self._order.install.for_server(each, self._order.version)
        except ValueError as error:
            return str(error)
        same = [command for command, count in Counter(commands).items() if count > 1]
        if not same:
            return ""
        labels = [each.label for each, words in zip(servers, commands, strict=True) if words == same[0]]
        return (
            f"the command is the same for {' and '.join(labels)}: use {{unit}} or {{address}} in it, or if "
            "they are brokers of one container, name that with --container"
        )

    def _with_logs(self, view: View, *, has_logs: bool) -> Order:
        """Returns the order with a directory for the output of its command, if it will run. Raises
        OSError."""
        if self._order.command is None or not self._restarts(view):
            return self._order
        if not has_logs:
            return replace(self._order, logs=Path(tempfile.mkdtemp(prefix="keelmq-upgrade-")))
        self._order.logs.mkdir(parents=True, exist_ok=True)
        return self._order

    def _nothing(self) -> None:
        scope = f" ({self._order.only})" if self._order.only is not None else ""
        self._tell(
            f"nothing to do: every server{scope} has {self._order.version}",
            {"event": "done", "steps": 0, "version": self._order.version},
        )

    def _tell_waiting(self, reason: str) -> None:
        self._tell(f"waiting: {reason}", {"event": "waiting", "reason": reason})

    def _tell(self, text: str, value: dict[str, Any]) -> None:
        print(json.dumps(value, ensure_ascii=False) if self._as_json else text, flush=True)
