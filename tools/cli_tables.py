"""The tables of docs/reference/cli.md, from the commands themselves."""

from collections.abc import Iterator
from typing import Any

import typer

from cli import keelmq
from cli.mqadmin import main as mqadmin
from cli.mqadmin.coverage import NEVER
from keelmq.health.findings import CHECKS
from keelmq.upstream.keys import names

PROGRAMS = {"mqadmin": mqadmin.app, "keelmq": keelmq.app}


def commands() -> Iterator[tuple[str, Any]]:
    """("mqadmin topicList", the command), every one that --help shows."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None:
            if not command.hidden:
                yield name, command
        else:
            for child, sub in children.items():
                yield from walk(f"{name} {child}", sub)

    for program, app in PROGRAMS.items():
        yield from walk(program, typer.main.get_command(app))


def table(command: Any) -> str:
    rows = ["| flag | meaning |", "|---|---|"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        is_argument = parameter.param_type_name == "argument"
        names = [parameter.metavar or parameter.name.upper()] if is_argument else parameter.opts
        flags = ", ".join(f"`{name}`" for name in names)
        needed = " (required)" if parameter.required else ""
        rows.append(f"| {flags}{needed} | {getattr(parameter, 'help', '') or ''} |")
    return "\n".join(rows)


def coverage() -> str:
    """Returns what there is of RocketMQ's commands, and the commands that RocketMQ lacks."""
    ours = [name.partition(" ")[2] for name, _ in commands() if name.startswith("mqadmin ")]
    rows = ["| RocketMQ's command | here |", "|---|---|"]
    theirs = names().commands
    for name in theirs:
        here = f"[yes](#mqadmin-{name.lower()})" if name in ours else f"never: {NEVER[name]}"
        rows.append(f"| `{name}` | {here} |")
    added = ", ".join(f"`{name}`" for name in sorted(set(ours) - set(theirs)))
    return "\n".join([*rows, "", f"Not in RocketMQ: {added}."])


def tables() -> dict[str, str]:
    """Returns each table with the name of its marker."""
    checks = [
        "| check | holds when |",
        "|---|---|",
        *(f"| `{name}` | {text} |" for name, text in CHECKS.items()),
    ]
    flags = {name: table(command) for name, command in commands()}
    return {**flags, "checks": "\n".join(checks), "coverage": coverage()}
