"""ElectionTally: counts of elections for metrics, and the last election of each group. Pure.

Only the active controller counts elections. The last election of a group is in the log, so every controller
knows it. Reasons are reduced to a few kinds: texts with numbers in them would make unlimited metric labels.
"""

import re
from collections import Counter
from typing import NamedTuple

import msgspec

from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.elect import LossReason
from namesrv.plugins.controller.core.events import AnyEvent, ElectMaster
from namesrv.plugins.controller.core.state import BrokerSet

NEW_MASTER_ELECTED, KEEP_CURRENT_MASTER, NO_MASTER_ELECTED = (
    "new_master_elected",
    "keep_current_master",
    "no_master_elected",
)
"""The values of RocketMQ's metric label election_result."""

OTHER = "other"
_KINDS = (
    ("first_election", r"first election"),
    ("designated", r"designated"),
    *((each.value, rf"master \d+ is not active \({each.value}\)") for each in LossReason),
    ("master_not_active", r"master \d+ is not active"),
    ("no_master", r"no master$"),
    ("cleaned", r"master \d+ was cleaned"),
    ("unclean", r"unclean election"),
    ("master_alive", r"master \d+ is alive|The old master \d+ is still alive"),
    ("not_heard_yet", r"waiting to hear from"),
    ("nobody_alive", r"no member of the SyncStateSet"),
    ("not_in_syncstateset", r"broker \d+ is not in the SyncStateSet"),
    ("not_alive", r"broker \d+ is not alive"),
    ("not_replicated", r"outcome unknown|The controller is not in leader state|the controller has too many"),
)
KINDS = tuple((kind, re.compile(pattern)) for kind, pattern in _KINDS)


class Counted(NamedTuple):
    """One series of the counter."""

    cluster_name: str
    broker_name: str
    result: str
    reason: str


class LastElection(msgspec.Struct, frozen=True):
    """ts: ms since 1970 of the proposal; 0: not recorded."""

    ts: int
    master_broker_id: int | None
    master_epoch: int
    reason: str
    unclean: bool


class ElectionTally:
    """Counts since this process started. Event loop only, except applied()."""

    def __init__(self) -> None:
        self.counts: Counter[Counted] = Counter()
        self._last: dict[str, LastElection] = {}

    def count(self, broker_set: BrokerSet, result: str, reason: str) -> None:
        """Counts one election by its result (for example NEW_MASTER_ELECTED) and the kind of its reason."""
        self.counts[Counted(broker_set.cluster_name, broker_set.broker_name, result, kind_of(reason))] += 1

    def total(self, result: str) -> int:
        """Returns the number of elections with this result."""
        return sum(count for counted, count in self.counts.items() if counted.result == result)

    def applied(self, event: AnyEvent, applied: Applied) -> None:
        """Implements EventHook: raft thread, also at replay."""
        after = applied.after
        if isinstance(event, ElectMaster) and applied.refused is None and after is not None:
            self._last[after.broker_name] = LastElection(
                event.ts, after.master_broker_id, after.master_epoch, event.reason, event.unclean
            )

    def last(self, broker_set: BrokerSet) -> LastElection | None:
        """Returns the last election of the group; None: it is older than this controller's snapshot."""
        found = self._last.get(broker_set.broker_name)
        return found if found is not None and found.master_epoch == broker_set.master_epoch else None


def kind_of(reason: str) -> str:
    """Returns the metric label of a reason; OTHER: the text is unknown."""
    return next((kind for kind, pattern in KINDS if pattern.match(reason)), OTHER)
