"""Commands that destroy something ask first, but only a person: mqadmin is a drop-in for RocketMQ's scripts.

On an interactive terminal the command shows what --dry-run would show, and asks. --yes does not ask. Where
standard input or standard error is no terminal (scripts, cron, pipes), nothing is asked and nothing changes.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from cli.command_line import print, print_error
from cli.mqadmin.shell import PROGRAM, REFUSED, Action, Output, explain
from keelmq.client.admin import AdminClient, AdminError

_YES = Annotated[
    bool,
    typer.Option(
        "--yes", help="Do not ask for confirmation (only on a terminal, after the output of --dry-run)"
    ),
]


def is_interactive() -> bool:
    """Returns whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def asks_first(function: Callable[..., Action]) -> Callable[..., Action]:
    """Decorates a command that has a dry_run: adds --yes, and the question."""
    signature = inspect.signature(function)

    def asking(*args: Any, yes: bool = False, **flags: Any) -> Action:
        given = signature.bind(*args, **flags)
        given.apply_defaults()
        action = function(**given.arguments)
        if yes or given.arguments["dry_run"] or not is_interactive():
            return action
        preview = function(**{**given.arguments, "dry_run": True})

        async def ask_and_act(admin: AdminClient) -> Output:
            await _show(preview, admin)
            if not typer.confirm("Do this now?", err=True):
                return Output({"done": False}, "", notes=("nothing was changed",), exit_code=REFUSED)
            return await action(admin)

        return ask_and_act

    option = inspect.Parameter("yes", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_YES)
    asking.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), option]
    )
    asking.__name__, asking.__doc__ = function.__name__, function.__doc__
    return asking


async def _show(preview: Action, admin: AdminClient) -> None:
    """Prints what would be done. If that cannot be found out, prints the reason: the question follows all the
    same."""
    try:
        output = await preview(admin)
    except AdminError as error:
        print_error(PROGRAM, f"cannot show what this would do: {explain(error)}")
        return
    if output.text:
        print(output.text.strip("\n"), file=sys.stderr, flush=True)
    for line in (*output.notes, *output.problems):
        print_error(PROGRAM, line)
