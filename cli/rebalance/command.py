"""keelmq rebalance-masters: plans, shows, asks, and moves masters one by one.

Exit codes: 0 done, or nothing to do; 1 not confirmed, or the first move failed; 2 usage; 3 no answer; 4 some
moves were made, and then one failed.
"""

import asyncio
import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cli.command_line import (
    ControllersOption,
    NamesrvAddr,
    checked_addresses,
    print,
    print_error,
    quiet_connection_log,
)
from cli.credentials import CredentialsOption, checked_credentials
from cli.mqadmin.shell import DONE, IN_PART, REFUSED, exit_code_of, explain
from cli.rebalance.core.plan import Move, Plan, plan_moves
from cli.rebalance.moves import Made, MoveFailed, Mover
from cli.rebalance.survey import Survey, SurveyScope, take_survey
from keelmq.client.admin import AdminClient, AdminError
from keelmq.security.signer import Credentials

NAME = "keelmq rebalance-masters"
WAIT_DEFAULT_S = 60.0
_MOVE = "%-24s  %-20s  %-32s  %s"
_HOST = "%-32s  %-8s  %s"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line."""

    is_dry: bool
    is_confirmed: bool
    as_json: bool
    wait_s: float


def rebalance_masters(
    namesrv_addr: NamesrvAddr,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="NAME", help="Only this cluster (default: all)")
    ] = None,
    controllers: ControllersOption = None,
    containers: Annotated[
        str | None,
        typer.Option(
            "-c",
            "--container",
            callback=checked_addresses,
            help="Containers, host:port;host:port: their brokers are told apart by container, not by host",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation")] = False,
    wait_s: Annotated[
        float,
        typer.Option("--wait", min=1, help="Seconds to wait until a group is in sync again after its move"),
    ] = WAIT_DEFAULT_S,
    credentials: CredentialsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON value (with --yes or --dry-run)")] = False,
) -> None:
    """Spread masters evenly over hosts, by planned hand-overs in which no send fails."""
    if not (dry_run or yes) and (as_json or not can_ask()):
        raise typer.BadParameter(
            "no terminal to ask for confirmation: give --yes to move masters, or --dry-run"
        )
    scope = SurveyScope(namesrv_addr, cluster, controllers, containers or "")
    given = checked_credentials("keelmq", credentials)
    quiet_connection_log()

    run = _Run(scope, RunOptions(dry_run, yes, as_json, wait_s), given)
    try:
        code = run.run()
    except AdminError as error:
        print_error(NAME, explain(error))
        code = exit_code_of(error)
    except KeyboardInterrupt:
        print_error(NAME, "stopped; a hand-over that has begun goes on. Run it again: it plans anew")
        code = 130
    raise typer.Exit(code)


class _Run:
    def __init__(self, scope: SurveyScope, options: RunOptions, credentials: Credentials | None) -> None:
        self._scope, self._options, self._credentials = scope, options, credentials
        self._made: list[Made] = []
        self._failed: tuple[Move, MoveFailed] | None = None

    def run(self) -> int:
        """Returns the exit code. AdminError: nothing was changed."""
        survey = asyncio.run(self._look())
        plan = plan_moves(survey.groups, survey.fixed)
        self._say(plan_text(plan, survey))
        if plan.moves and not self._options.is_dry:
            if not self._options.is_confirmed:  # between two event loops: Ctrl-C must end the question
                question = f"Move {_plural(len(plan.moves), 'master')} now?"
                if not typer.confirm(question, default=False):
                    print_error(NAME, "nothing was changed")
                    return REFUSED
            asyncio.run(self._move(plan, survey))
        if self._options.as_json:
            print(json.dumps(self._value(plan, survey), ensure_ascii=False))
        if self._failed is None:
            return DONE
        self._explain_failure(plan, *self._failed)
        return IN_PART if self._made or self._failed[1].is_made else REFUSED

    async def _look(self) -> Survey:
        async with AdminClient(credentials=self._credentials) as admin:
            return await take_survey(admin, self._scope)

    async def _move(self, plan: Plan, survey: Survey) -> None:
        async with AdminClient(credentials=self._credentials) as admin:
            mover = Mover(admin, survey, self._scope.name_servers, wait_s=self._options.wait_s)
            for move in plan.moves:
                try:
                    made = await mover.make(move)
                except MoveFailed as error:
                    self._failed = move, error
                    return
                self._made.append(made)
                self._say(f"{move.group}: {move.from_host} -> {move.to_host} done in {made.took_ms} ms")
                if not made.is_planned:
                    print_error(
                        NAME,
                        f"{move.group}: the old master did not hand over in time, so the controllers elected "
                        "without it, and clients have repeated some sends; its log says why",
                    )
        self._say(f"done: {_plural(len(plan.moves), 'master')} moved")

    def _explain_failure(self, plan: Plan, move: Move, error: MoveFailed) -> None:
        made = [each.move.group for each in self._made]
        left = [each.group for each in plan.moves if each.group not in (*made, move.group)]
        state = "moved, but" if error.is_made else "not moved:"
        print_error(
            NAME,
            f"{move.group} ({move.from_host} -> {move.to_host}) {state} {error}. "
            f"Done: {', '.join(made) or 'none'}; left: {', '.join(left) or 'none'}. "
            "Remove the cause and run it again: it plans anew",
        )

    def _value(self, plan: Plan, survey: Survey) -> dict[str, Any]:
        made = {each.move: each for each in self._made}

        def state_of(move: Move) -> str:
            if move in made:
                return "done"
            if self._failed is not None and self._failed[0] == move:
                return "failed"
            return "planned" if self._options.is_dry else "left"

        return {
            "before": dict(plan.before),
            "after": dict(plan.after),
            "moves": [
                {
                    "clusterName": move.cluster,
                    "brokerName": move.group,
                    "fromBrokerId": move.from_id,
                    "fromAddress": survey.addresses[move.group, move.from_id],
                    "fromHost": move.from_host,
                    "toBrokerId": move.to_id,
                    "toAddress": survey.addresses[move.group, move.to_id],
                    "toHost": move.to_host,
                    "state": state_of(move),
                    "tookMs": made[move].took_ms if move in made else None,
                    "handedOver": made[move].is_planned if move in made else None,
                }
                for move in plan.moves
            ],
            "notes": survey.notes,
            "error": str(self._failed[1]) if self._failed is not None else None,
        }

    def _say(self, text: str) -> None:
        if not self._options.as_json:
            print(text, flush=True)


def plan_text(plan: Plan, survey: Survey) -> str:
    """Returns masters per host now and afterwards, the moves in their order, and the notes."""
    rows: list[tuple[object, ...]] = [("#Host", "#Masters", "#After")]
    rows += [(host, count, plan.after[host]) for host, count in plan.before.items()]
    lines = [_HOST % row for row in rows]
    if plan.moves:
        lines += ["", _MOVE % ("#Broker Name", "#Cluster", "#From", "#To")]
    for move in plan.moves:
        ends = [
            f"{survey.addresses[move.group, broker_id]} ({broker_id})"
            for broker_id in (move.from_id, move.to_id)
        ]
        lines.append(_MOVE % (move.group, move.cluster, *ends))
    lines += ["", *survey.notes] if survey.notes else []
    summary = f"{_plural(len(plan.moves), 'master')} to move" if plan.moves else "nothing to move"
    return "\n".join([*lines, "", summary])


def can_ask() -> bool:
    """Returns whether a person can answer at the terminal."""
    return sys.stdin.isatty()


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
