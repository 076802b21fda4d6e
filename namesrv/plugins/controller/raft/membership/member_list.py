"""MemberList: the members of the group: those in the log, or before the first change those of the file. Pure.

A change is an entry of the log. A member uses it as soon as the entry is in its log, committed or not, until
the entry is truncated (Raft dissertation, chapter 4: a majority before a change of one member and a majority
after it always have a member in common). An entry names the change that it is based on; if that is not the
last one before it, every member ignores the entry. So there is never more than one change in progress.
"""

from collections.abc import Callable, Mapping

import msgspec

from namesrv.plugins.controller.raft.codec import CodecError, Number, decode_command
from namesrv.plugins.controller.raft.fenced_state_machine import decode_batch

Address = tuple[str, int]
MARK = b"\xa7members"  # the kind of such a batch in MessagePack
MARK_WITHIN = 64  # the kind is within this number of bytes from the start of the entry


class Change(msgspec.Struct, frozen=True, array_like=True):
    """`fresh`: (id, incarnation) of a member that never was one before, so it cannot have lost a vote.

    `added`: (id, host, port), the request addresses of members that were added by addController. A
    configuration file may lack them or have an older address, so for these members the log decides; for
    others the file.
    """

    based_on: Number  # index of the change before it, 0: none
    members: tuple[tuple[str, str, int], ...]  # (id, host, port), in order
    used_ids: tuple[str, ...] = ()  # every id that is or was a member
    fresh: tuple[str, str] | None = None
    added: tuple[tuple[str, str, int], ...] = ()


_decoder = msgspec.msgpack.Decoder(Change)


def encode_change(change: Change) -> bytes:
    """Returns the change as MessagePack."""
    return msgspec.msgpack.encode(change)


def decode_change(data: bytes) -> Change:
    """Parses a change. Raises msgspec.MsgspecError."""
    return _decoder.decode(data)


class MemberList:
    """All changes since the last snapshot. `changed` is called after each. Raft thread."""

    def __init__(self, members: Mapping[str, Address]) -> None:
        first = Change(0, tuple((name, *members[name]) for name in sorted(members)))
        self._changes: list[tuple[int, Change]] = [(0, first)]
        self.changed: Callable[[], None] = lambda: None

    @property
    def index(self) -> int:
        """Index of the last change; 0: the configuration."""
        return self._changes[-1][0]

    @property
    def members(self) -> dict[str, Address]:
        """Member id -> raft address, as the last change says."""
        return {name: (host, port) for name, host, port in self._changes[-1][1].members}

    @property
    def added(self) -> dict[str, Address]:
        """Request addresses of the members that were added by addController."""
        return {name: (host, port) for name, host, port in self._changes[-1][1].added}

    def addresses(self, files: Mapping[str, Address]) -> dict[str, Address]:
        """Returns the raft addresses of the members. `files`: those in this member's configuration."""
        change = self._changes[-1][1]
        added = {name for name, _, _ in change.added}
        return {
            name: (host, port) if name in added else files.get(name, (host, port))
            for name, host, port in change.members
        }

    def request_addresses(self, files: Mapping[str, Address]) -> dict[str, Address]:
        """Returns the request addresses of the members; without those that are in neither log nor `files`."""
        known = {**files, **self.added}
        return {name: known[name] for name, _, _ in self._changes[-1][1].members if name in known}

    @property
    def fresh(self) -> tuple[str, str] | None:
        """(id, incarnation) of the member that the last change added, if it never was one before."""
        return self._changes[-1][1].fresh

    def at(self, index: int) -> tuple[int, Change]:
        """Returns (index, change) as of this entry: a snapshot must not contain what may still be
        truncated."""
        return next(each for each in reversed(self._changes) if each[0] <= index or each is self._changes[0])

    def used_ids(self, blob: bytes) -> tuple[str, ...] | None:
        """Returns `used_ids` of the encoded change; None: the change is void."""
        try:
            wanted = decode_change(blob)
        except msgspec.MsgspecError:
            return None
        return next((change.used_ids for _, change in self._changes if change == wanted), None)

    # ------------------------------------------------------------------ what happens to the log
    def appended(self, command: bytes, index: int, term: int) -> None:
        """LogObserver: takes over the membership change in this entry, if it is one."""
        if MARK not in command[:MARK_WITHIN]:
            return
        try:
            batch = decode_batch(decode_command(command[1:])[1][0])
            if batch.kind != "members" or batch.term != term:
                return  # proposed in one term and appended in a later one: void
            change = decode_change(batch.items[0][1] or b"")
        except (CodecError, msgspec.MsgspecError, IndexError):
            return  # not a change; the state machine reports it
        if change.based_on == self.index:
            self._changes.append((index, change))
            self.changed()

    def cut(self, first: int) -> None:
        """LogObserver: the entries from this index on were truncated."""
        kept = [each for each in self._changes if each[0] < first or each is self._changes[0]]
        if len(kept) < len(self._changes):
            self._changes = kept
            self.changed()

    def cleared(self) -> None:
        """LogObserver: the whole log was removed, except what a snapshot contains."""
        self.cut(self._changes[0][0] + 1)

    def restored(self, last: int, saved: tuple[int, bytes] | None) -> None:
        """Sets the member list of a snapshot whose last entry is `last`. `saved`: its index and encoded
        change.

        `saved` None: the snapshot was written by a release without membership changes. Raises
        msgspec.MsgspecError.
        """
        first = self._changes[0] if saved is None else (saved[0], decode_change(saved[1]))
        self._changes = [first, *(each for each in self._changes if each[0] > max(last, first[0]))]
        self.changed()
