"""The committed pages, and the fenced blocks of commands on them."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def pages() -> list[Path]:
    """Returns README.md, SECURITY.md and every page of docs/, without those that `make docs` builds."""
    found = (each for each in (ROOT / "docs").rglob("*.md") if each.parent.name != "reference")
    return [ROOT / "README.md", ROOT / "SECURITY.md", *sorted(found)]
