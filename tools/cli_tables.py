"""Rewrites the tables of flags in docs/cli.md from the commands themselves: python tools/cli_tables.py"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from cli import keelmq
from cli.doctor.findings import CHECKS
from cli.mqadmin import main as mqadmin

DOCUMENT = Path(__file__).parent.parent / "docs" / "cli.md"
PROGRAMS = {"mqadmin": mqadmin.app, "keelmq": keelmq.app}


def commands() -> Iterator[tuple[str, Any]]:
    """("mqadmin topicList", the command), every one that --help shows."""

    def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None:
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


def rewritten(document: str) -> str:
    """The document with every table between its markers replaced by the one of today's command."""
    tables = {name: table(command) for name, command in commands()}
    tables["checks"] = "\n".join(
        ["| check | holds when |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in CHECKS.items())]
    )
    for name, text in tables.items():
        marker = f"<!-- {name} -->"
        pattern = re.compile(f"{re.escape(marker)}.*?{re.escape(marker)}", re.DOTALL)
        assert pattern.search(document), f"{DOCUMENT} lacks the markers of {name}: {marker}{marker}"
        new = f"{marker}\n{text}\n{marker}".replace("\\", r"\\")
        document = pattern.sub(new, document)
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
