"""Table: a persistent (immutable) mapping by name, whose change costs little however large it is. Pure.

Names are spread over small dicts by hash; a changed table shares all dicts but one with the table before.
So a controller with thousands of groups copies a few dozen names for an event.

It iterates in the order of names, never in that of hashes.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

V = TypeVar("V", covariant=True)

SHARDS = 128
_MASK = SHARDS - 1


class Table(Mapping[str, V]):
    __slots__ = ("_count", "_shards")

    def __init__(self, items: Mapping[str, V]) -> None:
        shards: list[dict[str, V]] = [{} for _ in range(SHARDS)]
        for name, value in items.items():
            shards[hash(name) & _MASK][name] = value
        self._shards, self._count = shards, len(items)  # a list, and never changed: one copy less at set()

    @staticmethod
    def of(items: "Mapping[str, V]") -> "Table[V]":
        """Returns `items` itself if it is a Table, else a copy."""
        return items if isinstance(items, Table) else Table(items)

    def __getitem__(self, name: str) -> V:
        return self._shards[hash(name) & _MASK][name]

    def get(self, name: str, default: Any = None, /) -> Any:
        """Returns the value of `name`, or `default`."""
        return self._shards[hash(name) & _MASK].get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._shards[hash(name) & _MASK]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for shard in self._shards for name in shard))

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"Table({dict(self)!r})"

    def set(self, name: str, value: V) -> "Table[V]":  # type: ignore[misc]  # the table itself never takes a V
        """Returns a table with `name` set to `value`."""
        at = hash(name) & _MASK
        shard = self._shards[at].copy()
        shard[name] = value
        return self._with(at, shard, self._count - len(self._shards[at]) + len(shard))

    def without(self, name: str) -> "Table[V]":
        """Returns a table without `name`, which need not be in this one."""
        at = hash(name) & _MASK
        shard = {key: value for key, value in self._shards[at].items() if key != name}
        return self._with(at, shard, self._count - (name in self._shards[at]))

    def _with(self, at: int, shard: dict[str, V], count: int) -> "Table[V]":
        shards = self._shards.copy()
        shards[at] = shard
        table: Table[V] = Table.__new__(Table)
        table._shards, table._count = shards, count
        return table
