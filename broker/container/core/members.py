"""The brokers that a container starts: those of its configuration, changed by requests since. Pure."""

import json
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

VERSION = 1


class BadMembers(ValueError):
    """The text is not a valid list of members."""


class Members(msgspec.Struct, frozen=True):
    """added: {configPath: worker} of files that requests added. removed: files of brokerConfigPaths whose
    brokers requests removed. placed: {configPath: worker} of those whose brokers requests moved: an entry
    ends when its line is removed from brokerConfigPaths."""

    added: dict[str, int] = msgspec.field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    placed: dict[str, int] = msgspec.field(default_factory=dict)

    def worker_of(self, path: str) -> int | None:
        """Returns the worker where a request put the broker; None: no request did."""
        return self.added.get(path, self.placed.get(path))

    def with_added(self, path: str, worker: int) -> "Members":
        """Returns the members after a broker was added."""
        return Members({**self.added, path: worker}, self.removed - {path}, _without(self.placed, path))

    def with_moved(self, path: str, worker: int) -> "Members":
        """Returns the members after a broker that runs was moved."""
        if path in self.added:
            return replace(self, added={**self.added, path: worker})
        return replace(self, placed={**self.placed, path: worker})

    def with_removed(self, path: str, configured: Iterable[str]) -> "Members":
        """Returns the members after a broker was removed. configured: the files of brokerConfigPaths."""
        removed = self.removed | ({path} & set(configured))
        return Members(_without(self.added, path), removed, _without(self.placed, path))

    def to_start(self, configured: Sequence[str]) -> list[str]:
        """Returns the files to start with: those of brokerConfigPaths first, in their order."""
        kept = [path for path in dict.fromkeys(configured) if path not in self.removed]
        return [*kept, *(path for path in self.added if path not in kept)]

    def to_json(self) -> str:
        """Returns the text that parse_members() reads."""
        kept = {
            "version": VERSION,
            "added": self.added,
            "removed": sorted(self.removed),
            "placed": self.placed,
        }
        return json.dumps(kept, indent=2) + "\n"


def parse_members(text: str) -> Members:
    """Raises BadMembers."""
    try:
        kept = json.loads(text)
    except ValueError as error:
        raise BadMembers(f"not JSON: {error}") from None
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        raise BadMembers(f"no version {VERSION}")
    added, placed = _workers("added", kept.get("added")), _workers("placed", kept.get("placed", {}))
    removed = kept.get("removed")
    if not isinstance(removed, list) or not all(isinstance(each, str) for each in removed):
        raise BadMembers("`removed` is not a list of paths")
    return Members(added, frozenset(removed), placed)


def _workers(name: str, found: object) -> dict[str, int]:
    if not isinstance(found, dict) or not all(type(each) is int for each in found.values()):
        raise BadMembers(f"`{name}` is not {{path: worker}}")
    return found


def _without(workers: dict[str, int], path: str) -> dict[str, int]:
    return {each: worker for each, worker in workers.items() if each != path}
