"""KnownReplicas: the replicas that a master has had a link to in its present term, for telemetry.

A replica that disconnects keeps its last ack, and its lag grows with the log that it misses. A replica that
never connected in this term has no ack and is not included: the SyncStateSet and the controllers name it.
"""

from typing import Final

from broker.ha.core.master_link import MasterLink
from broker.ha.mastership import Mastership
from broker.ha.service import HaService
from keelmq.remoting.records import ReplicaSample

REPLICAS_MAX: Final = 64
"""Disconnected replicas beyond this many are forgotten, lowest ids first."""


class KnownReplicas:
    """Owned by the event loop's thread."""

    def __init__(self) -> None:
        self._mastership: Mastership | None = None
        self._links: dict[int, MasterLink] = {}  # the latest link of each replica
        self._caught_up_ms: dict[int, int] = {}

    def samples(self, ha: HaService) -> tuple[ReplicaSample, ...]:
        """Returns the replicas by id; empty when this broker is not master. Called for every sample."""
        if ha.mastership is not self._mastership:
            self._mastership = ha.mastership
            self._links, self._caught_up_ms = {}, {}
        if ha.mastership is None:
            return ()
        self._links |= ha.links
        for broker_id in sorted(self._links.keys() - ha.links.keys()):
            if len(self._links) > max(REPLICAS_MAX, len(ha.links)):
                del self._links[broker_id]
                self._caught_up_ms.pop(broker_id, None)
        members = ha.mastership.sync_state_set_manager.agreed.members
        return tuple(
            self._sample(ha.now_ms(), broker_id, link, in_sync=broker_id in members)
            for broker_id, link in sorted(self._links.items())
        )

    def _sample(self, now_ms: int, broker_id: int, link: MasterLink, *, in_sync: bool) -> ReplicaSample:
        # a closed link no longer follows the growth of the log: its last state is kept instead
        found_ms = link.caught_up_ms(now_ms)
        caught_up_ms = max(found_ms, self._caught_up_ms.get(broker_id, found_ms))
        self._caught_up_ms[broker_id] = caught_up_ms
        return ReplicaSample(
            broker_id=broker_id,
            ack_offset=link.ack_offset,
            lag_ms=now_ms - caught_up_ms,
            in_sync=in_sync,
        )
