"""The elections that are remembered: replicated, so that every controller tells the same after a restart.

Bounded: the newest ELECTIONS_MAX, and of one group no more than ELECTIONS_PER_GROUP_MAX, so that a group that
flaps does not push out the story of the others. Pure.
"""

from collections.abc import Iterator

from namesrv.plugins.controller.core.state import PastElection, State

ELECTIONS_MAX = 1_000
ELECTIONS_PER_GROUP_MAX = 100


def remembered(elections: tuple[PastElection, ...], newest: PastElection) -> tuple[PastElection, ...]:
    """With one more; the oldest of its group, or of all, is forgotten if there are too many."""
    own = [index for index, each in enumerate(elections) if each.broker_name == newest.broker_name]
    if len(own) >= ELECTIONS_PER_GROUP_MAX:
        elections = elections[: own[0]] + elections[own[0] + 1 :]
    return (*elections[-(ELECTIONS_MAX - 1) :], newest)


def past_elections(state: State, broker_name: str = "") -> Iterator[PastElection]:
    """Newest first; of one group, or of all."""
    return (each for each in reversed(state.elections) if broker_name in ("", each.broker_name))
