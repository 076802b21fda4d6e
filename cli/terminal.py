"""A rich Console for text of others: their control characters are escaped, its own sequences are not."""

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from keelmq.runtime.printable import printable


class TerminalConsole(Console):
    """See rich's Console, which passes ESC and C1 characters of a text on to the terminal."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            each if each.control else Segment(printable(each.text), each.style) for each in buffer
        )
