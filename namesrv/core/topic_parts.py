"""The parts of a topic table that a broker registers in several requests (103). Pure.

A broker whose table is too large for one frame sends it in parts, and this name server itself applies a large
registration in parts, so that no step holds the event loop for long. Two decisions need the whole table: what
has changed, and which topics are missing. The first is taken at part 1 and kept; the second is taken at the
last part, and only if no part was lost in between.
"""

from collections.abc import Set as AbstractSet

import msgspec

from keelmq.remoting.operations.route import DataVersion
from namesrv.core.values import Registration


class _Round(msgspec.Struct):
    """The parts of one table so far. changed: as decided at part 1. absent: topics of the broker that no part
    has named yet; None: nothing is removed."""

    next_number: int
    changed: bool
    absent: set[str] | None


class TopicParts(msgspec.Struct):
    """The unfinished rounds, by address: at most one for each registered broker."""

    _rounds: dict[tuple[str, str], _Round] = msgspec.field(default_factory=dict)

    def begin_or_continue(
        self, request: Registration, *, changed: bool, known: AbstractSet[str], removes: bool
    ) -> tuple[bool, AbstractSet[str]]:
        """Takes one part. Returns whether its topics count as changed, and the topics to remove now.

        changed: the version differs from that of the last complete table. known: the broker's topics before
        this part. removes: topics that no part names are removed after the last one. A part that does not
        follow the one before counts as changed, and nothing is removed at the end of its round.
        """
        key, part, names = (request.cluster_name, request.broker_addr), request.part, request.body.topics
        removes = removes and not request.body.mappings
        if part.number == 1:
            absent = set(known) if removes and (names or not part.is_last) else None
            found = _Round(2, changed, absent)
        else:
            before = self._rounds.get(key)
            if before is None or before.next_number != part.number:
                found = _Round(part.number + 1, True, None)
            else:
                found = _Round(part.number + 1, before.changed, before.absent if removes else None)
        if found.absent is not None:
            found.absent -= names.keys()
        if not part.is_last:
            self._rounds[key] = found
            return found.changed, frozenset()
        self._rounds.pop(key, None)
        return found.changed, found.absent or frozenset()

    def forget(self, address: tuple[str, str]) -> None:
        """Ends the round of this address, which is no longer registered."""
        self._rounds.pop(address, None)


def version_after(request: Registration) -> DataVersion:
    """Returns the version that counts after this part. Before the last part it equals no table's version, so
    QUERY_DATA_VERSION (322) answers "changed", and a round that is interrupted is repeated as changed. The
    stateVersion counts at once, because it decides which broker may have the id."""
    version = request.body.data_version
    if request.part.is_last:
        return version
    return DataVersion(counter=-1, state_version=version.state_version)
