"""hung_from_ms(): when a master began to hang, as this controller and the in-sync replicas see it. Pure.

A master hangs if all of these conditions hold:

    all-ack     the master's last heartbeat, of this term, says allAckInSyncStateSet: it acknowledges nothing
                that a member of the SyncStateSet lacks. So any elected replica has all that it has
                acknowledged or ever will, even if it does not hang: the election is safe at any time
    heartbeats  none has arrived for longer than its heartbeats of the last minute explain (Silence)
    replicas    more than half of the other members that are alive, and at least one, report that their link
                to this master, in this masterEpoch, is silent

All-ack makes the election safe, heartbeats and replicas make it right: a controller that merely lost the
master leaves it alone while its replicas hear it, and a lost link means nothing while the controller hears
it. Any other master is dead only after controllerHeartBeatTimeoutMills.
"""

from collections.abc import Collection
from typing import Final

import msgspec

HEARTBEAT_SILENCE_MIN_MS: Final = 800
"""The least silence of heartbeats that come every 200 ms: above a pause of 400 ms and a packet that is
lost."""

SELDOM_SILENCE_MIN_MS: Final = 1_800
"""The same of heartbeats that come every second: a controller that is not active asks for no more."""


class MasterHeartbeat(msgspec.Struct, frozen=True):
    """The last heartbeat of the master that the group has in `master_epoch`.

    epoch: the one that it named. silent_from_ms: from then on its heartbeats are missing; None: it does not
    send all-ack heartbeats.
    """

    epoch: int
    silent_from_ms: int | None


def hung_from_ms(
    heartbeat: MasterHeartbeat, reports: Collection[int | None], *, master_epoch: int
) -> int | None:
    """Returns the time from which the master hangs, if nothing more is heard from it; None: unknown.

    reports: of each other member of the SyncStateSet that is alive: the masterEpoch whose link is silent, or
    None.
    """
    if heartbeat.silent_from_ms is None or heartbeat.epoch != master_epoch:
        return None
    silent = sum(each == master_epoch for each in reports)
    return heartbeat.silent_from_ms if 2 * silent > len(reports) else None
