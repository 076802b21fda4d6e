"""Which requests, response codes, header fields and metrics of RocketMQ do not exist here, and why.

wire.toml has a verdict on each such name of names.json. For a new release of RocketMQ, replace names.json;
tests/unit/keelmq/upstream then lists the names without a verdict.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources

import msgspec


class Row(msgspec.Struct, frozen=True):
    """Names with one verdict."""

    why: str
    names: tuple[str, ...]


class WireVerdicts(msgspec.Struct, frozen=True):
    """The content of wire.toml."""

    request: tuple[Row, ...]
    response: tuple[Row, ...]
    field: tuple[Row, ...]
    metric: tuple[Row, ...]
    metric_note: dict[str, str]


@functools.cache
def wire_verdicts() -> WireVerdicts:
    """Returns the verdicts."""
    text = resources.files(__package__).joinpath("wire.toml").read_text()
    return msgspec.convert(tomllib.loads(text), WireVerdicts)


def reasons(rows: Iterable[Row]) -> Mapping[str, str]:
    """Returns each name with its verdict."""
    return {name: row.why for row in rows for name in row.names}
