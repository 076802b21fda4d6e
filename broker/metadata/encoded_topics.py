"""The topic table as JSON: the text of each topic is kept until the topic changes.

A registration (103) and the answer to GET_ALL_TOPIC_CONFIG (21) contain every topic. To convert 50,000 topics
takes 120 ms, so only changed topics are converted, and a long table in slices between which other work runs.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.route import DataVersion, TopicConfig

READ_WRITE = 6
SLICE_TOPICS = 2_000
"""Topics that one step looks at: at most 6 ms, if all of them changed."""
TRIES = 3
"""How often topics that changed meanwhile are looked for in slices; the next time, in one step."""


class EncodedTopics(msgspec.Struct, frozen=True):
    """One version of the table. names: sorted. texts: of each, `"name":{...}`. text_bytes: length of all
    texts with a comma behind each."""

    version: DataVersion
    names: Sequence[str]
    texts: Sequence[bytes]
    text_bytes: int


class _Kept(msgspec.Struct):
    """What has been encoded so far. rows: what the texts were made of. names: sorted, without `added`."""

    revision: int = -1
    rows: dict[str, TopicConfig] = msgspec.field(default_factory=dict)
    texts: dict[str, bytes] = msgspec.field(default_factory=dict)
    text_bytes: int = 0
    names: list[str] = msgspec.field(default_factory=list)
    added: list[str] = msgspec.field(default_factory=list)
    made: EncodedTopics | None = None

    def put(self, name: str, row: TopicConfig, text: bytes) -> None:
        before = self.texts.get(name)
        if before is None:
            self.added.append(name)
        self.text_bytes += len(text) + 1 - (0 if before is None else len(before) + 1)
        self.rows[name], self.texts[name] = row, text

    def make(self, version: DataVersion, revision: int, present: Mapping[str, TopicConfig]) -> EncodedTopics:
        """Returns the topics, without those that are no longer present."""
        gone = self.rows.keys() - present.keys() if len(self.rows) != len(present) else ()
        for name in gone:
            self.text_bytes -= len(self.texts.pop(name)) + 1
            del self.rows[name]
        if gone:
            self.names = [name for name in self.names if name in self.rows]
        if self.added:
            self.names += [name for name in self.added if name in self.rows]
            self.names.sort()  # quick: all but the new names are in order
            self.added = []
        self.revision = revision
        texts = [self.texts[name] for name in self.names]
        return EncodedTopics(version, tuple(self.names), texts, self.text_bytes)


class TopicEncoder:
    """Owned by the event loop's thread."""

    def __init__(
        self,
        rows: Mapping[str, TopicConfig],
        version: Callable[[], DataVersion],
        revision: Callable[[], int],
    ) -> None:
        """rows: the table, whose rows are replaced and never changed. version: of the table. revision: grows
        with every change of a row, also with those that have no version."""
        self._rows, self._version, self._revision = rows, version, revision
        self._kept: dict[int, _Kept] = {}
        self._last: EncodedTopics | None = None
        self._turn = asyncio.Lock()

    @property
    def last(self) -> EncodedTopics | None:
        """What encoded() has returned last; None: it was not called yet."""
        return self._last

    async def encoded(self, permission: int = READ_WRITE) -> EncodedTopics:
        """Returns the present table. permission: brokerPermission, which limits that of every topic. Does not
        wait if the table has at most SLICE_TOPICS topics, or has not changed."""
        kept = self._kept.get(permission)
        if kept is None:
            # those of other permissions are not asked for again soon, and each has the size of the table
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

    async def _convert_slices(self, kept: _Kept, permission: int) -> None:
        names = list(self._rows) if kept.rows else sorted(self._rows)
        for start in range(0, len(names), SLICE_TOPICS):
            if start:
                await asyncio.sleep(0)
            self._convert(kept, names[start : start + SLICE_TOPICS], permission)

    def _convert(
        self, kept: _Kept, names: Sequence[str] | Mapping[str, TopicConfig], permission: int
    ) -> None:
        rows, known = self._rows, kept.rows
        for name in names:
            row = rows.get(name)
            if row is None or known.get(name) is row:
                continue
            limited = row
            if permission != READ_WRITE:
                limited = row.model_copy(update={"perm": row.perm & permission})
            kept.put(name, row, b"%b:%b" % (msgspec.json.encode(name), body_bytes(limited)))
