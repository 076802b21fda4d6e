"""Past elections. They are replicated: every controller reports the same, even after a restart. Pure.

Bounded: the newest ELECTIONS_MAX, and at most ELECTIONS_PER_GROUP_MAX of one group, so that a flapping group
does not displace the elections of other groups.
"""

from collections.abc import Iterator

from namesrv.plugins.controller.core.state import PastElection, State

ELECTIONS_MAX = 1_000
ELECTIONS_PER_GROUP_MAX = 100


def append_election(elections: tuple[PastElection, ...], newest: PastElection) -> tuple[PastElection, ...]:
    """Appends `newest`; drops the oldest one of its group, or of all, above the limits."""
    own = [index for index, each in enumerate(elections) if each.broker_name == newest.broker_name]
    if len(own) >= ELECTIONS_PER_GROUP_MAX:
        elections = elections[: own[0]] + elections[own[0] + 1 :]
    return (*elections[-(ELECTIONS_MAX - 1) :], newest)


def past_elections(state: State, broker_name: str = "") -> Iterator[PastElection]:
    """Yields past elections, newest first. broker_name "": of all groups."""
    return (each for each in reversed(state.elections) if broker_name in ("", each.broker_name))
