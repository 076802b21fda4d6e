"""A table that is read in pages (21, 201 of RocketMQ 5.3.4, #9467). Pure.

A server without pages answers with the whole table and no total. One with pages begins again with the first
row if the table has changed since the page before.
"""

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.route import DataVersion

PAGE_ROWS: Final = 2_000
"""Rows of a page, as RocketMQ requests them (splitMetadataSize)."""
PAGES_MAX: Final = 1_000
"""A table that changes with every page is given up then."""

Row = TypeVar("Row")


class PagedTable(Generic[Row]):
    """rows: what has been read of the version."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.version: DataVersion | None = None
        self.pages = 0

    @property
    def seq(self) -> int:
        """The number of the row that the next request asks for."""
        return len(self.rows)

    @property
    def version_text(self) -> str | None:
        """The version as the next request names it; None: of the first request."""
        return None if self.version is None else body_bytes(self.version).decode()

    def take(self, rows: Mapping[str, Row], version: DataVersion, total: int | None) -> bool:
        """Adds a page. total: None in an answer without pages. Returns whether the table is complete. Raises
        ValueError if it cannot be read: a page is empty, or there are too many."""
        self.pages += 1
        if total is None or version != self.version:
            self.rows, self.version = {}, version
        self.rows.update(rows)
        if total is None or len(self.rows) >= total:
            return True
        if not rows or self.pages >= PAGES_MAX:
            raise ValueError(f"{len(self.rows)} of {total} rows after {self.pages} pages")
        return False
