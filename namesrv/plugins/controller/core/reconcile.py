"""Which groups need an election, and when a failed election is repeated. Pure.

A group needs one while it has replicas, but no master or a master that is known to be dead or unfit. A failed
election is repeated with back-off, and its reason is stored. A dead master that no replica can succeed is
cleared only after a delay, so that it stays master if it merely lost its connection for a moment.
"""

from collections.abc import Mapping

import msgspec

from namesrv.plugins.controller.core.elect import Election, LiveView, Verdict, elect
from namesrv.plugins.controller.core.state import BrokerSet

RETRY_MIN_MS = 100


class Retry(msgspec.Struct, frozen=True):
    """A group without a live master since `since_ms`; its next election is due at `due_ms` (monotonic ms)."""

    attempts: int
    since_ms: int
    due_ms: int
    reason: str


def needs_election(broker_set: BrokerSet, view: LiveView) -> bool:
    """Returns whether the group has replicas, but no master that may be at work."""
    return bool(broker_set.replicas) and not view.serves(broker_set.master_broker_id)


def next_retry(retry: Retry | None, *, now_ms: int, reason: str, retry_max_ms: int) -> Retry:
    """Returns the next Retry after a failure: in 100 ms, 200 ms, ... up to retry_max_ms.

    There is no jitter: only the active controller elects, and one group does not wait for another.
    """
    attempts = 1 if retry is None else retry.attempts + 1
    delay_ms = min(retry_max_ms, RETRY_MIN_MS << min(attempts - 1, 16))
    return Retry(attempts, now_ms if retry is None else retry.since_ms, now_ms + delay_ms, reason)


def try_election(
    broker_set: BrokerSet,
    view: LiveView,
    retry: Retry | None,
    *,
    now_ms: int,
    unclean: bool,
    clear_after_ms: int,
) -> Election | None:
    """Returns the Election to propose; None: none is needed. Verdict WAIT: nothing to propose yet."""
    if not needs_election(broker_set, view):
        return None
    election = elect(broker_set, view, unclean=unclean)
    if election.verdict is not Verdict.NONE:
        return election
    is_old = retry is not None and now_ms - retry.since_ms >= clear_after_ms
    if broker_set.master_broker_id is not None and is_old:
        return election
    return Election(Verdict.WAIT, election.reason)


def next_due_ms(retries: Mapping[str, Retry]) -> int | None:
    """Returns when the earliest retry is due; None: there is none."""
    return min((each.due_ms for each in retries.values()), default=None)
