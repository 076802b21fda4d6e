"""Writes docs/reference/: the pages of docs/ with the tables that come from the code. `make docs`

A page has the marker `<!-- NAME -->` where the table NAME belongs. docs/reference/ is not committed.
"""

import re
from collections.abc import Callable
from pathlib import Path

from tools import attack_tables, cli_tables, config_tables, http_tables, metrics_tables, request_tables

DOCS = Path(__file__).parent.parent / "docs"
PAGES: dict[str, Callable[[], dict[str, str]]] = {
    "attacks.md": attack_tables.tables,
    "cli.md": cli_tables.tables,
    "configuration.md": config_tables.tables,
    "http.md": http_tables.tables,
    "metrics.md": metrics_tables.tables,
    "requests.md": request_tables.tables,
}
OUTPUT = DOCS / "reference"
LINK = re.compile(rf"\]\((?!#|\w+://)(?!(?:{'|'.join(PAGES)})\b)")
"""The beginning of a link to a page that docs/reference/ does not have."""


def with_tables(name: str, text: str) -> str:
    """Returns the text of a page with its tables. Raises ValueError: a marker is missing, or there twice."""
    for marker, table in PAGES[name]().items():
        comment = f"<!-- {marker} -->\n"
        if text.count(comment) != 1:
            raise ValueError(f"docs/{name} must have one line {comment.strip()}")
        text = text.replace(comment, table + "\n")
    return text


def built(name: str) -> str:
    """Returns a page of docs/reference/."""
    return LINK.sub("](../", with_tables(name, (DOCS / name).read_text(encoding="utf-8")))


if __name__ == "__main__":
    OUTPUT.mkdir(exist_ok=True)
    for name in PAGES:
        (OUTPUT / name).write_text(built(name), encoding="utf-8")
