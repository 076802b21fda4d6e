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


def numbered_elections(state: State) -> Iterator[tuple[int, PastElection]]:
    """Yields (number, past election), newest first. Numbers fall; each is the event_id, unless an election
    before it has the same or a larger one, of another log: after a restore or an import."""
    number, found = 0, []
    for each in state.elections:
        number = max(number + 1, each.event_id)
        found.append((number, each))
    return reversed(found)


def past_elections(state: State, broker_name: str = "") -> Iterator[PastElection]:
    """Yields past elections, newest first. broker_name "": of all groups."""
    return (each for each in reversed(state.elections) if broker_name in ("", each.broker_name))
