"""Scenario files: a command, `----`, and what it said. Blank lines part the steps, `#` begins a comment."""

from collections.abc import Callable
from pathlib import Path

SEPARATOR = "----"


def play(path: Path, command: Callable[[str], str], *, rewrite: bool) -> None:
    """Run every step; the first that says something else fails, with the place."""
    written = []
    for number, step in enumerate(path.read_text().strip().split("\n\n"), 1):
        comments = [line for line in step.splitlines() if line.startswith("#")]
        lines = [line for line in step.splitlines() if not line.startswith("#")]
        if not lines:
            written.append(step)
            continue
        asked = lines[: lines.index(SEPARATOR)] if SEPARATOR in lines else lines
        wanted = "\n".join(lines[len(asked) + 1 :])
        said = "\n".join(command(line) for line in asked)
        if not rewrite:
            assert said == wanted, f"{path.name}, step {number}: {' / '.join(asked)}"
        written.append("\n".join([*comments, *asked, SEPARATOR, said]))
    if rewrite:
        path.write_text("\n\n".join(written) + "\n")
