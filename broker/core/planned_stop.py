"""When a broker that hands over its mastership at a planned stop may exit. Pure.

RocketMQ's clients poll the route every 30 s, and ignore every earlier hint. Until then
they send to the old master, which forwards. So it stays until no such client is connected, or until all of
them have polled. Our own clients read the route at the first forwarded answer.
"""

import msgspec

QUIET_MS = 300
"""Time after the last message from a KeelMQ client at which that client has the new route."""
ANSWERS_MS = 2_500
"""Extra time for the answers to forwarded messages."""
MASTER_LOST_MS = 5_000
"""A broker that has had no link to its master for this time cannot forward."""


class Observed(msgspec.Struct, frozen=True):
    """old_routes: connected clients that learn a new route only by polling. forwarding: messages that are
    held, or on their way to the master. last_send_ms: when the last message arrived that had to be forwarded.
    linked_ms: when the replication link to the master was last up."""

    now_ms: int
    old_routes: int
    forwarding: int
    last_send_ms: int
    linked_ms: int


class PlannedStopRule(msgspec.Struct, frozen=True):
    """began_ms: start of the stop. demoted_ms: when this broker lost the mastership. hand_over_ms,
    forward_ms: shutdownHandOverTimeout and shutdownForwardTimeout."""

    began_ms: int
    demoted_ms: int
    hand_over_ms: int
    forward_ms: int

    def may_end(self, observed: Observed) -> bool:
        """Returns whether no client needs this broker any more, or it cannot help them."""
        now_ms, polled_ms = observed.now_ms, self.demoted_ms + self.forward_ms
        if now_ms - max(observed.linked_ms, self.demoted_ms) >= MASTER_LOST_MS:
            return True
        if observed.old_routes and now_ms < polled_ms:
            return False
        if not observed.forwarding and now_ms - max(observed.last_send_ms, self.demoted_ms) >= QUIET_MS:
            return True
        limit_ms = max(self.began_ms + self.hand_over_ms, polled_ms if observed.old_routes else 0)
        return now_ms >= limit_ms + (ANSWERS_MS if observed.forwarding else 0)
