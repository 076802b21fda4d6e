"""Writes the table of docs/status.md: `python -m tests.gallery.table`."""

from pathlib import Path

from keelmq.health.summary import status_of
from tests.gallery.cluster import healthy
from tests.gallery.faults import FAULTS, Fault

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "status.md"
MARK = "<!-- faults -->"


def row(fault: Fault) -> str:
    """A line of the table, from what the rules say."""
    seen = healthy()
    fault.put(seen)
    problem = next(
        each
        for each in status_of(seen).problems
        if each.check == fault.check and fault.words in each.text and each.command == fault.command
    )
    says = f"{problem.level.value}: {problem.subject}: {problem.text}"
    cells = (fault.what, f"`{problem.check}`", says, problem.next_step, f"`{problem.command}`")
    return "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"


def rewritten(text: str) -> str:
    """Returns the page with the table of today."""
    head, _, tail = text.split(MARK)
    lines = ["| fault | check | status says | what to do | command |", "|---|---|---|---|---|"]
    table = "\n".join([*lines, *(row(each) for each in FAULTS.values())])
    return f"{head}{MARK}\n{table}\n{MARK}{tail}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
