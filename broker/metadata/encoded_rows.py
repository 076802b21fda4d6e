"""A table of topics or groups as JSON: the text of each row is kept until the row changes.

A registration (103) and the answers to GET_ALL_TOPIC_CONFIG (21) and GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201)
contain every row. Converting 50,000 topics takes 120 ms, so only changed rows are converted, and a long table
is converted in slices between which other work runs.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from broker.metadata.files import sorted_keys
from keelmq.remoting.operations.route import DataVersion
from keelmq.runtime.long_work import LongWork

READ_WRITE = 6
SLICE_ROWS = 2_000
"""Rows that one step checks: at most 6 ms, if all of them changed."""
TRIES = 3
"""How often rows that changed meanwhile are searched in slices; the next time, in one step."""


Row = TypeVar("Row")


class EncodedRows(msgspec.Struct, frozen=True):
    """One version of the table. names: sorted. texts: of each, `"name":{...}`. text_bytes: length of all
    texts with a comma behind each."""

    version: DataVersion
    names: Sequence[str]
    texts: Sequence[bytes]
    text_bytes: int


class _Kept(Generic[Row]):
    """What has been encoded so far. rows: what the texts were made of. names: sorted, without `added`."""

    def __init__(self) -> None:
        self.revision: Hashable = None
        self.rows: dict[str, Row] = {}
        self.texts: dict[str, bytes] = {}
        self.text_bytes = 0
        self.names: list[str] = []
        self.added: list[str] = []
        self.made: EncodedRows | None = None

    def put(self, name: str, row: Row, text: bytes) -> None:
        before = self.texts.get(name)
        if before is None:
            self.added.append(name)
        self.text_bytes += len(text) + 1 - (0 if before is None else len(before) + 1)
        self.rows[name], self.texts[name] = row, text

    def make(self, version: DataVersion, revision: Hashable, present: Mapping[str, Row]) -> EncodedRows:
        """Returns the rows, without those that are no longer present."""
        gone = self.rows.keys() - present.keys() if len(self.rows) != len(present) else ()
        for name in gone:
            self.text_bytes -= len(self.texts.pop(name)) + 1
            del self.rows[name]
        if gone:
            self.names = [name for name in self.names if name in self.rows]
        if self.added:
            self.names += [name for name in self.added if name in self.rows] if gone else self.added
            self.names.sort()  # quick: all but the new names are in order
            self.added = []
        self.revision = revision
        in_order = list(self.texts) == self.names  # as after the first conversion
        texts = list(self.texts.values()) if in_order else [self.texts[name] for name in self.names]
        return EncodedRows(version, tuple(self.names), texts, self.text_bytes)


class RowEncoder(Generic[Row]):
    """Owned by the event loop's thread."""

    def __init__(
        self,
        rows: Mapping[str, Row],
        version: Callable[[], DataVersion],
        revision: Callable[[], Hashable],
        text: Callable[[Row, int], bytes],
    ) -> None:
        """rows: the table, whose rows are replaced and never changed. version: of the table. revision:
        changes with every change of a row, also without a new version. text: the JSON of a row, with
        brokerPermission."""
        self._rows, self._version, self._revision, self._text = rows, version, revision, text
        self._kept: dict[int, _Kept[Row]] = {}
        self._last: EncodedRows | None = None
        self._turn = asyncio.Lock()

    @property
    def last(self) -> EncodedRows | None:
        """The last result of encoded(); None: it was not called yet."""
        return self._last

    async def encoded(self, permission: int = READ_WRITE) -> EncodedRows:
        """Returns the present table. permission: brokerPermission, which limits that of every topic. Does not
        wait if the table has at most SLICE_ROWS rows, or has not changed."""
        kept = self._kept.get(permission)
        if kept is None:
            # those of other permissions are not needed again soon, and each has the size of the table
            self._kept = {other: each for other, each in self._kept.items() if other == READ_WRITE}
            kept = self._kept[permission] = _Kept()
        async with self._turn:
            if kept.made is None or kept.revision != self._revision():
                for _ in range(TRIES):
                    revision = self._revision()
                    await self._convert_slices(kept, permission)
                    if revision == self._revision():
                        break
                else:
                    self._convert(kept, self._rows, permission)
                kept.made = kept.make(self._version(), self._revision(), self._rows)
            assert kept.made is not None
            self._last = kept.made
            return kept.made

    async def _convert_slices(self, kept: _Kept[Row], permission: int) -> None:
        names = list(self._rows)
        if not kept.rows and len(names) > SLICE_ROWS:
            names = await asyncio.to_thread(lambda: list(sorted_keys(names, LongWork(is_shared=True))))
        elif not kept.rows:
            names.sort()
        for start in range(0, len(names), SLICE_ROWS):
            if start:
                await asyncio.sleep(0)
            self._convert(kept, names[start : start + SLICE_ROWS], permission)

    def _convert(self, kept: _Kept[Row], names: Sequence[str] | Mapping[str, Row], permission: int) -> None:
        rows, known = self._rows, kept.rows
        for name in names:
            row = rows.get(name)
            if row is not None and known.get(name) is not row:
                kept.put(name, row, b"%b:%b" % (msgspec.json.encode(name), self._text(row, permission)))
