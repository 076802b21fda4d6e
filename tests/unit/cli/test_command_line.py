"""What others have written, on a terminal."""

import os
import pty

import pytest

from cli.command_line import printable
from cli.mqadmin.shell import complain

TEXT = "body \x1b]0;title\x07\x1b[31mred\x9b1m\ttab\nline é"


def test_a_terminal_gets_no_control_characters_of_others() -> None:
    reader, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stream:
        assert printable(TEXT, stream) == ("body \\x1b]0;title\\x07\\x1b[31mred\\x9b1m\ttab\nline é")
    os.close(reader)


def test_a_file_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with open(os.devnull, "w") as stream:
        assert printable(TEXT, stream) == TEXT
    complain("topic a\nb\x1b[31m")
    assert capsys.readouterr().err == "mqadmin: topic a b\x1b[31m\n"
