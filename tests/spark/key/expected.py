"""A table of expected rows, and the comparison with the rows that were computed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.spark.key.world import DELAY_MS, UNCORRECTED_MS, Group

Key = tuple[Any, ...]
Row = dict[str, Any]
SHOWN_MAX = 20


@dataclass(frozen=True)
class Near:
    """A number that is known to `tolerance` only: what is computed may differ by so much."""

    value: float
    tolerance: float

    def is_met(self, found: object) -> bool:
        """Returns whether a computed value is within the tolerance."""
        return isinstance(found, int | float) and abs(found - self.value) <= self.tolerance

    def __str__(self) -> str:
        return f"{self.value:g} within {self.tolerance:g}"


def near(value: int, tolerance: int) -> Any:
    """Returns what is expected of a number: exactly this one if it has no tolerance."""
    return value if tolerance == 0 else Near(value, tolerance)


def tolerance_of(group: Group, broker: int, ts: int) -> int:
    """Returns by how much a broker's corrected time may differ from the true one, ms.

    A clock that is off by UNCORRECTED_MS or less is left as it is. A larger difference is measured with the
    least delay of a heartbeat in it.
    """
    offset = abs(group.offset_at(broker, ts))
    return offset if offset <= UNCORRECTED_MS else DELAY_MS


@dataclass
class Comparison:
    """`values`: how many were compared; `missing`: with every row that is expected or computed, but not
    both."""

    values: int = 0
    differences: list[str] = field(default_factory=list)
    by_table: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, expected: Mapping[Key, Row], found: Mapping[Key, Row]) -> None:
        """Compares the expected columns of a table."""
        before = self.values
        for key in sorted(expected.keys() | found.keys(), key=str):
            if key not in found:
                self._note(f"{table} {key}: no row, expected {_shown(expected[key])}")
            elif key not in expected:
                self._note(f"{table} {key}: not expected: {_shown(found[key])}")
            else:
                for name, value in expected[key].items():
                    self.check(f"{table} {key} {name}", value, found[key].get(name, "no such column"))
        self.by_table[table] = self.by_table.get(table, 0) + self.values - before

    def check(self, what: str, expected: object, found: object) -> None:
        """Compares one value."""
        self.values += 1
        is_met = expected.is_met(found) if isinstance(expected, Near) else expected == found
        if not is_met:
            self.differences.append(f"{what}: {found}, expected {expected}")

    def _note(self, text: str) -> None:
        self.values += 1
        self.differences.append(text)

    def __str__(self) -> str:
        if not self.differences:
            return f"{self.values:,} comparisons, no difference"
        shown = "\n  ".join(self.differences[:SHOWN_MAX])
        return f"{self.values:,} comparisons, {len(self.differences):,} differences:\n  {shown}"


def keyed(rows: Iterable[Row], names: Sequence[str]) -> dict[Key, Row]:
    """Returns the rows by these columns. Raises ValueError if a key is there twice."""
    found: dict[Key, Row] = {}
    for row in rows:
        key = tuple(row[name] for name in names)
        if key in found:
            raise ValueError(f"the key {key} of {', '.join(names)} is there twice")
        found[key] = row
    return found


def numbered(rows: Iterable[Row], names: Sequence[str], order: str) -> dict[Key, Row]:
    """Returns the rows by these columns and by their place in the order of a column whose values have a
    tolerance, so that it cannot be a key itself."""
    places: dict[Key, int] = {}
    found: dict[Key, Row] = {}
    for row in sorted(rows, key=lambda each: _value(each[order])):
        key = tuple(row[name] for name in names)
        places[key] = places.get(key, -1) + 1
        found[*key, places[key]] = row
    return found


def _value(found: Any) -> float:
    return float(found.value if isinstance(found, Near) else found)


def _shown(row: Row) -> str:
    return ", ".join(f"{name}={value}" for name, value in list(row.items())[:6])
