"""Rewrites the tables of flags in docs/cli.md from the commands themselves: python tools/cli_tables.py"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cli import keelmq
from cli.mqadmin import main as mqadmin
from cli.mqadmin.coverage import NEVER, UPSTREAM
from keelmq.health.findings import CHECKS

DOCUMENT = Path(__file__).parent.parent / "docs" / "cli.md"
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
    for name in UPSTREAM:
        here = f"[yes](#mqadmin-{name.lower()})" if name in ours else f"never: {NEVER[name]}"
        rows.append(f"| `{name}` | {here} |")
    added = ", ".join(f"`{name}`" for name in sorted(set(ours) - set(UPSTREAM)))
    return "\n".join([*rows, "", f"Not in RocketMQ: {added}."])


def rewritten(document: str) -> str:
    """The document with every table between its markers replaced by the one of today's command."""
    tables = {name: table(command) for name, command in commands()}
    tables["checks"] = "\n".join(
        ["| check | holds when |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in CHECKS.items())]
    )
    tables["coverage"] = coverage()
    for name, text in tables.items():
        marker = f"<!-- {name} -->"
        pattern = re.compile(f"{re.escape(marker)}.*?{re.escape(marker)}", re.DOTALL)
        assert pattern.search(document), f"{DOCUMENT} lacks the markers of {name}: {marker}{marker}"
        new = f"{marker}\n{text}\n{marker}".replace("\\", r"\\")
        document = pattern.sub(new, document)
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
