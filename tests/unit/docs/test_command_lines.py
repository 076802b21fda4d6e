"""The commands in the blocks of the manual are ones that the programs take: none is carried out."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import typer
from typer.exceptions import TyperException

from cli.keelmq import app as keelmq
from cli.mqadmin.main import app as mqadmin
from tests.support.pages import ROOT, pages

PROGRAMS: dict[str, Any] = {
    "keelmq": typer.main.get_command(keelmq),
    "mqadmin": typer.main.get_command(mqadmin),
}
ADDRESSES = re.compile(r"\b(NAMESERVERS|CONTROLLERS|CONTAINER|[A-Z]+_ADDRESS)\b")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:mqadmin|keelmq) [^`\n]* -[^`\n]*)`")


def command_lines(text: str) -> Iterator[list[str]]:
    """Returns the words of each command, without what the shell makes of them."""
    for language, block in BLOCK.findall(text):
        if language not in ("", "sh", "console"):
            continue
        lines = block.replace("\\\n", " ").splitlines()
        if any(line.startswith("$ ") for line in lines):  # the other lines are what it prints
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        for line in lines:
            words = _words(re.sub(r"\$\([^)]*\)", "made-by-the-shell", line))
            if words and words[0] in PROGRAMS:
                yield words


def _words(line: str) -> list[str]:
    try:
        words = shlex.split(ADDRESSES.sub("127.0.0.1:9876", line), comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return []
    end = next((at for at, word in enumerate(words) if re.match(r"\d?[<>]|[|&;]", word)), None)
    words = words[:end]
    return words[1:] if words[:1] == ["./run"] else words


def parse(command: Any, name: str, words: list[str], parent: Any = None) -> None:
    """Raises TyperException."""
    context = command.make_context(name, list(words), parent=parent)
    if hasattr(command, "resolve_command"):
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if rest:
            found, inner, words = command.resolve_command(context, rest)
            parse(inner, found, words, context)


def test_the_programs_take_the_commands_of_the_manual() -> None:
    seen, wrong = 0, []
    for page in pages():
        text = page.read_text()
        inline = INLINE.findall(text) if page.parent.name == "runbooks" else []
        for words in (*command_lines(text), *map(_words, inline)):
            seen += 1
            try:
                parse(PROGRAMS[words[0]], words[0], words[1:])
            except typer.Exit:  # --help, --version
                pass
            except TyperException as error:
                wrong.append(f"{page.relative_to(ROOT)}: {shlex.join(words)}: {error}")
    assert seen > 100
    assert wrong == []
