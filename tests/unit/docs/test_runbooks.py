"""Runbooks are read in a hurry: every command of ours in them is one that the programs take."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.keelmq import app as keelmq
from cli.mqadmin.main import app as mqadmin

PAGES = sorted((Path(__file__).parents[3] / "docs" / "runbooks").glob("*.md"))
COMMAND = re.compile(r"^(?:mqadmin|keelmq) .+$|`((?:mqadmin|keelmq) [^`]* -[^`]*)`", re.MULTILINE)
PLACEHOLDER = re.compile(r"\b(?:NAMESERVERS|CONTROLLERS|CONTAINER|[A-Z]+_ADDRESS)\b")


def parse(words: list[str]) -> None:
    """Raises the error that the command line would print."""
    command: Any = typer.main.get_command({"mqadmin": mqadmin, "keelmq": keelmq}[words[0]])
    name, arguments, parent = words[0], words[1:], None
    while arguments and hasattr(command, "resolve_command"):
        parent = typer.Context(command, info_name=name, parent=parent)
        name, command, arguments = command.resolve_command(parent, arguments)
    command.make_context(name, arguments, parent=parent)


@pytest.mark.parametrize(
    "line", sorted({found[1] or found[0] for page in PAGES for found in COMMAND.finditer(page.read_text())})
)
def test_a_command_of_a_runbook_parses(line: str) -> None:
    parse(shlex.split(PLACEHOLDER.sub("127.0.0.1:1", line)))


def test_a_key_of_a_runbook_is_one_of_the_programs() -> None:
    """Programs refuse an unknown key, and whoever reads a runbook has no time to look for the right one."""
    known = (PAGES[0].parents[1] / "configuration.md").read_text()
    answers = {"dispatchBehindBytes", "getElections", "logDamage", "notWritable"}  # of mqadmin
    answers.add("retryMaxTimes")  # a setting of groups
    for page in PAGES:
        keys = set(re.findall(r"`([a-z]+[A-Z]\w+)(?:=\w+)?`", page.read_text())) - answers
        assert {key for key in keys if f"`{key}`" not in known} == set(), page.name
