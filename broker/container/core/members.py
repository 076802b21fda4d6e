"""Which brokers a container starts with: those of its configuration, changed by requests since. Pure."""

import json
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

VERSION = 1


class BadMembers(ValueError):
    """The text is not what members are kept as."""


class Members(msgspec.Struct, frozen=True):
    """added: {configPath: worker} of files that requests added, or moved to that worker. removed: files of
    brokerConfigPaths whose brokers requests removed."""

    added: dict[str, int] = msgspec.field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    def with_added(self, path: str, worker: int) -> "Members":
        """Returns the members after a broker was added or moved."""
        return replace(self, added={**self.added, path: worker}, removed=self.removed - {path})

    def with_removed(self, path: str, configured: Iterable[str]) -> "Members":
        """Returns the members after a broker was removed. configured: the files of brokerConfigPaths."""
        added = {each: worker for each, worker in self.added.items() if each != path}
        return Members(added, self.removed | ({path} & set(configured)))

    def to_start(self, configured: Sequence[str]) -> list[str]:
        """Returns the files to start with: those of brokerConfigPaths first, in their order."""
        kept = [path for path in dict.fromkeys(configured) if path not in self.removed]
        return [*kept, *(path for path in self.added if path not in kept)]

    def to_json(self) -> str:
        """Returns the text that parse_members() reads."""
        kept = {"version": VERSION, "added": self.added, "removed": sorted(self.removed)}
        return json.dumps(kept, indent=2) + "\n"


def parse_members(text: str) -> Members:
    """Raises BadMembers."""
    try:
        kept = json.loads(text)
    except ValueError as error:
        raise BadMembers(f"not JSON: {error}") from None
    if not isinstance(kept, dict) or kept.get("version") != VERSION:
        raise BadMembers(f"no version {VERSION}")
    added, removed = kept.get("added"), kept.get("removed")
    if not isinstance(added, dict) or not all(type(each) is int for each in added.values()):
        raise BadMembers("`added` is not {path: worker}")
    if not isinstance(removed, list) or not all(isinstance(each, str) for each in removed):
        raise BadMembers("`removed` is not a list of paths")
    return Members(added, frozenset(removed))
