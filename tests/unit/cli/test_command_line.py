"""Control characters of others, on a terminal and in logs."""

import io
import json
import logging
import os
import pty

import pytest

from cli.command_line import print as printed
from cli.command_line import print_error
from cli.terminal import TerminalConsole
from keelmq.runtime.log_context import ContextFormatter, JsonFormatter, PlainFormatter
from keelmq.runtime.printable import printable, printable_json, printable_line

TEXT = "body \x1b]0;title\x07\x1b[31mred\x9b1m\ttab\nline é"
CONTROLS = [chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
SEQUENCES = [
    "\x1b[2J", "\x1b[H", "\x1b[1A\x1b[2K", "\x1b]0;title\x07", "\x1b]52;c;ZWNobw==\x07", "\x1b[31mred",
    "\x1b[?1049h", "\x1bc", "\x1b[6n", "\x1bP$q\x1b\\", "\x9b2J", "\x9d0;t\x9c", "a\rb", "a\x08b", "\x00",
]  # fmt: skip
INPUTS = [*SEQUENCES, *(f"client@{each}id" for each in CONTROLS)]


def is_clean(text: str) -> bool:
    return not set(text) & set(CONTROLS)


def on_terminal(text: str) -> str:
    """What a terminal gets of a printed text."""
    reader, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        printed(text, file=stream, flush=True)
        got = b""
        while not got.endswith(b"\n"):  # what print() writes may come in parts
            got += os.read(reader, 4_096)
    os.close(reader)
    return got.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("text", INPUTS, ids=ascii)
def test_control_characters_reach_neither_a_terminal_nor_a_log(text: str) -> None:
    assert len(INPUTS) >= 30
    shown = on_terminal(f"topic {text} end")
    assert is_clean(shown) and shown.startswith("topic ") and shown.endswith(" end\n")
    try:
        raise ValueError(text)
    except ValueError as error:
        record = logging.LogRecord("n", 30, "f", 1, "client %s", (text,), (ValueError, error, None))
    for formatter in (ContextFormatter(), PlainFormatter(), JsonFormatter()):
        assert is_clean(formatter.format(record))
    assert json.loads(JsonFormatter().format(record))["message"] == f"client {text}"
    screen = io.StringIO()
    TerminalConsole(file=screen, color_system=None, force_terminal=True).print(text, markup=False)
    assert is_clean(screen.getvalue())


def test_escapes() -> None:
    assert printable(TEXT) == "body \\x1b]0;title\\x07\\x1b[31mred\\x9b1m\ttab\nline é"
    assert printable_line(TEXT).endswith("\\x9b1m\\ttab\\nline \u00e9")
    assert printable_json('"\x9b"') == '"\\u009b"'


def test_a_file_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    printed(TEXT)
    assert capsys.readouterr().out == TEXT + "\n"
    print_error("mqadmin", "topic a\nb\x1b[31m")
    assert capsys.readouterr().err == "mqadmin: topic a b\x1b[31m\n"
