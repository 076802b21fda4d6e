"""PersistentMap: an immutable mapping whose changed copy shares nearly everything with the original. Pure.

Names are spread over SHARDS small dicts by hash; a changed copy has one new dict and shares the others. So a
controller with thousands of groups copies a few dozen names for an event.

It iterates in the order of the names, never in hash order.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

V = TypeVar("V", covariant=True)

SHARDS = 128
_MASK = SHARDS - 1


class PersistentMap(Mapping[str, V]):
    """Immutable: set() and without() return changed copies."""

    __slots__ = ("_count", "_shards")

    def __init__(self, items: Mapping[str, V]) -> None:
        shards: list[dict[str, V]] = [{} for _ in range(SHARDS)]
        for name, value in items.items():
            shards[hash(name) & _MASK][name] = value
        self._shards, self._count = shards, len(items)  # a list that is never changed: set() copies it faster

    @staticmethod
    def of(items: "Mapping[str, V]") -> "PersistentMap[V]":
        """Returns `items` itself if it is a PersistentMap, else a copy."""
        return items if isinstance(items, PersistentMap) else PersistentMap(items)

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
        return f"PersistentMap({dict(self)!r})"

    def set(self, name: str, value: V) -> "PersistentMap[V]":  # type: ignore[misc]  # no map is ever changed by it
        """Returns a map with `name` set to `value`."""
        at = hash(name) & _MASK
        shard = self._shards[at].copy()
        shard[name] = value
        return self._with(at, shard, self._count - len(self._shards[at]) + len(shard))

    def without(self, name: str) -> "PersistentMap[V]":
        """Returns a map without `name`, which need not be in this one."""
        at = hash(name) & _MASK
        shard = {key: value for key, value in self._shards[at].items() if key != name}
        return self._with(at, shard, self._count - (name in self._shards[at]))

    def _with(self, at: int, shard: dict[str, V], count: int) -> "PersistentMap[V]":
        shards = self._shards.copy()
        shards[at] = shard
        table: PersistentMap[V] = PersistentMap.__new__(PersistentMap)
        table._shards, table._count = shards, count
        return table
