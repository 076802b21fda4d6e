"""The tables of docs/requests.md: RocketMQ's request codes, response codes and header fields."""

import re
from collections.abc import Iterable
from pathlib import Path

from keelmq.upstream.keys import names
from keelmq.upstream.wire import Row, reasons, wire_verdicts

PAGE = Path(__file__).parent.parent / "docs" / "requests.md"
_SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CODES = re.compile(r"^\| (\d+(?:, \d+)*) \|", re.MULTILINE)


def servers() -> dict[int, list[str]]:
    """Returns the programs that serve each code, by the page's own tables, which tests compare with the
    programs."""
    found: dict[int, list[str]] = {}
    for title, text in _SECTION.findall(PAGE.read_text(encoding="utf-8")):
        program = title.partition(":")[0].lower()
        for codes in _CODES.findall(text):
            for code in map(int, codes.split(", ")):
                if program not in found.setdefault(code, []):
                    found[code].append(program)
    return found


def request_table() -> str:
    served, refused = servers(), reasons(wire_verdicts().request)
    rows = ["| code | name | here |", "|---|---|---|"]
    for name, code in sorted(names().request_codes.items(), key=lambda item: item[1]):
        here = f"served by: {', '.join(served[code])}" if code in served else refused[name]
        rows.append(f"| {code} | {name} | {here} |")
    return "\n".join(rows)


def _table(title: str, verdicts: Iterable[Row]) -> str:
    rows = [f"| {title} | why |", "|---|---|"]
    return "\n".join(rows + [f"| {', '.join(each.names)} | {each.why} |" for each in verdicts])


def tables() -> dict[str, str]:
    """Returns each table with the name of its marker."""
    return {
        "RocketMQ's request codes": request_table(),
        "RocketMQ's response codes": _table("names", wire_verdicts().response),
        "RocketMQ's header fields": _table("fields", wire_verdicts().field),
    }
