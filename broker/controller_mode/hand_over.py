"""Planned hand-over: the mastership moves while producers send, and nobody's send fails.

    close the gate, sends are held -> drain: every reply has left, the heir has every byte and all metadata
        -> electMaster (1002) for the heir -> this broker is its slave -> what was held is forwarded

The election keeps those in the SyncStateSet who have every byte, so that the new master need not refuse
messages until enough replicas have joined. If a step fails, this broker goes on as master and stores what
was held: nothing has happened. If the answer of the election is lost, the set epoch is raised (a fencing
read), so that a late request finds another epoch and is void.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

from broker.controller_client import ControllerClient
from broker.core.heir import HeirLink, choose_heir, equals
from broker.ha.service import HaService
from broker.late_sends import LateSends
from broker.metadata.service import Metadata
from broker.pending import HAND_OVER, PendingReplies, SendGate
from broker.replicas_manager import ReplicasManager
from remoting.clock import now_ms, wall_ms
from remoting.operation import Failed, Ok, Outcome
from remoting.operations.controller import ELECT_MASTER, ElectMasterRequest, MasterInfo

logger = logging.getLogger(__name__)

DRAIN_MS = 1_000
ELECT_MS = 1_000
SWITCH_MS = 1_500
STEP_MS = 1
"""Between two looks: acks and role changes come at their own pace."""


class HandOverError(Exception):
    """This broker goes on as it was; the text says why."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Names for the request."""

    cluster_name: str
    broker_name: str


class HandOver:
    """One at a time."""

    def __init__(
        self,
        names: Groups,
        *,
        ha: HaService,
        gate: SendGate,
        pending: PendingReplies,
        late: LateSends,
        metadata: Metadata,
        manager: ReplicasManager,
        controller: ControllerClient,
    ) -> None:
        self._names, self._ha, self._gate, self._pending = names, ha, gate, pending
        self._late, self._manager, self._controller = late, manager, controller
        self._metadata = metadata
        self._running = asyncio.Lock()

    async def give(self, heir: int | None = None, *, leaves: bool = False) -> int:
        """The id of the new master, which is `heir` if one is named. leaves: this broker stops afterwards,
        and is not kept in the SyncStateSet if it can be spared. HandOverError."""
        async with self._running:
            role = self._manager.role
            if not role.is_master or self._ha.mastership is None:
                raise HandOverError("this broker is not master")
            heir = choose_heir(self._links(), heir)
            if heir is None:
                raise HandOverError("no other member of the SyncStateSet is connected")
            began_ms = now_ms()
            logger.info("hand-over to broker %d begins", heir)
            self._gate.close(HAND_OVER, f"the mastership goes to broker {heir}")
            try:
                self._metadata.seal()  # oneway commits of offsets; a closed gate takes no further ones
                await self._drain(heir)
                drained_ms = now_ms()
                await self._elect(heir, leaves=leaves)
                elected_ms = now_ms()
                await self._switched(role.epoch)
            except HandOverError as error:
                logger.warning("hand-over to broker %d failed: %s", heir, error)
                raise
            finally:
                self._gate.open(HAND_OVER)
                self._late.settle()
            logger.info(
                "hand-over to broker %d took %d ms: drain %d, election %d",
                heir,
                now_ms() - began_ms,
                drained_ms - began_ms,
                elected_ms - drained_ms,
            )
            return heir

    def _links(self) -> Collection[HeirLink]:
        mastership = self._ha.mastership
        if mastership is None:
            return ()
        links, members = self._ha.links, mastership.keeper.agreed.members
        return [
            HeirLink(broker_id, link.ack_offset)
            for broker_id, link in links.items()
            if broker_id in members and not link.learner
        ]

    async def _drain(self, heir: int) -> None:
        """Nothing is stored any more, so the end of the log and the tables stand still."""
        deadline_ms = now_ms() + DRAIN_MS
        while True:
            end, links = self._ha.store.commit_log.max_offset, self._links()
            lacks_metadata = self._metadata.is_behind(heir)
            if not len(self._pending) and heir in equals(links, end) and not lacks_metadata:
                return
            if self._ha.mastership is None or heir not in {link.broker_id for link in links}:
                raise HandOverError(f"broker {heir} left the SyncStateSet meanwhile")
            if now_ms() >= deadline_ms:
                raise HandOverError(
                    f"not drained within {DRAIN_MS} ms: {len(self._pending)} replies wait for replicas, and "
                    f"broker {heir} has to copy up to {end}{' and metadata' if lacks_metadata else ''}"
                )
            await asyncio.sleep(STEP_MS / 1000)

    async def _elect(self, heir: int, *, leaves: bool) -> None:
        role, mastership = self._manager.role, self._ha.mastership
        assert mastership is not None
        end, agreed = self._ha.store.commit_log.max_offset, mastership.keeper.agreed
        kept = equals(self._links(), end) & agreed.members
        if not leaves or len(kept) < self._gate.min_in_sync:
            kept |= {role.broker_id}
        request = ElectMasterRequest(
            cluster_name=self._names.cluster_name,
            broker_name=self._names.broker_name,
            broker_id=heir,
            designate_elect=True,
            invoke_time=wall_ms(),
            master_broker_id=role.broker_id,
            master_epoch=role.epoch,
            sync_state_set_epoch=agreed.epoch,
            equal_replicas=";".join(str(each) for each in sorted(kept)),
        )
        outcome = await self._controller.call(ELECT_MASTER, request, timeout_ms=ELECT_MS)
        if isinstance(outcome, Failed):
            raise HandOverError(f"the controllers refuse: {outcome.code} {outcome.remark}")
        self._learn(outcome)
        if not isinstance(outcome, Ok) and not leaves:
            await self._manager.read_sync_state_set(agreed.epoch)

    def _learn(self, outcome: Outcome[MasterInfo]) -> None:
        if isinstance(outcome, Ok) and outcome.header.master_broker_id is not None:
            self._manager.elected(outcome)

    async def _switched(self, epoch: int) -> None:
        deadline_ms = now_ms() + SWITCH_MS
        while self._manager.role.epoch <= epoch or self._manager.role.is_master:
            if now_ms() >= deadline_ms:
                raise HandOverError("the election's answer was lost, and this broker is still master")
            await asyncio.sleep(STEP_MS / 1000)
