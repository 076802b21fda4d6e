"""Planned hand-over (leadership transfer): the mastership moves while producers send, and no send fails.

    close the gate, sends are held -> drain: every reply has left, the target has every byte and all metadata
        -> electMaster (1002) for the target -> this broker is its slave -> held sends are forwarded

The election keeps the replicas in the SyncStateSet that have every byte, so that the new master does not
refuse messages until enough replicas have joined. If a step fails, this broker stays master and stores the
held sends. If the answer of the election is lost, a fencing read raises the set epoch, so that a late request
for the election is refused.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_forwarder import SendForwarder
from broker.admission.send_gate import HAND_OVER, SendGate
from broker.controller_mode.controller_client import ControllerClient
from broker.controller_mode.replicas_manager import ReplicasManager
from broker.core.role import Role
from broker.core.transfer_target import Transfer, TransferCandidate, fully_replicated, next_transfer
from broker.ha.service import HaService
from broker.metadata.service import Metadata
from keelmq.remoting.operation import Call, Failed, Ok, OperationTable, Outcome
from keelmq.remoting.operations.controller import (
    ELECT_MASTER,
    ElectMasterRequest,
    HandOverRequest,
    MasterInfo,
)
from keelmq.remoting.operations.controller import HAND_OVER as HAND_OVER_OPERATION
from keelmq.runtime.clock import now_ms, wall_ms

logger = logging.getLogger(__name__)

DRAIN_MS = 1_000
ELECT_MS = 1_000
SWITCH_MS = 1_500
STEP_MS = 1
"""Period of the checks for acks and for the role change."""


class HandOverError(Exception):
    """The mastership was not handed over, and this broker stays master. The text is the reason."""


class HandOverRefused(HandOverError):
    """The controllers refuse this target: its log is damaged, its disk is full, or it is not alive."""


class HandOver:
    """Hands the mastership over; one hand-over at a time."""

    def __init__(
        self,
        *,
        cluster_name: str,
        broker_name: str,
        ha: HaService,
        gate: SendGate,
        pending: PendingReplies,
        forwarder: SendForwarder,
        metadata: Metadata,
        manager: ReplicasManager,
        controller: ControllerClient,
    ) -> None:
        self._cluster_name, self._broker_name = cluster_name, broker_name
        self._ha, self._gate, self._pending = ha, gate, pending
        self._forwarder, self._manager, self._controller = forwarder, manager, controller
        self._metadata = metadata
        self._running = asyncio.Lock()

    @property
    def is_master(self) -> bool:
        """Whether this broker is master."""
        return self._manager.role.is_master

    @property
    def has_target(self) -> bool:
        """Whether another member of the SyncStateSet could take over."""
        return bool(self._ha.transfer_targets)

    async def give(
        self, wanted: int | None = None, *, leaves: bool = False, for_room: bool = False, quiet: bool = False
    ) -> int:
        """Hands over to `wanted`; None: to the best member that the controllers do not refuse. Returns
        the id of the new master. leaves: this broker stops afterwards, and stays in the SyncStateSet only if
        minInSyncReplicas needs it. for_room: only to a member whose disk is not full. quiet: failures are not
        logged here. Raises HandOverError."""
        refused: set[Transfer] = set()
        while True:
            transfer = next_transfer(self._links(), refused, wanted=wanted, for_room=for_room)
            try:
                return await self._give(transfer, leaves=leaves, quiet=quiet)
            except HandOverRefused:
                assert transfer is not None
                refused.add(transfer)
                if next_transfer(self._links(), refused, wanted=wanted, for_room=for_room) is None:
                    raise

    async def _give(self, transfer: Transfer | None, *, leaves: bool, quiet: bool) -> int:
        async with self._running:
            role = self._manager.role
            if not role.is_master or self._ha.mastership is None:
                raise HandOverError("this broker is not master")
            if transfer is None:
                raise HandOverError("no other member of the SyncStateSet is connected")
            transfer_target, began_ms = transfer.broker_id, now_ms()
            logger.log(
                logging.DEBUG if quiet else logging.INFO, "hand-over to broker %d begins", transfer_target
            )
            self._gate.close(HAND_OVER, f"the mastership is handed over to broker {transfer_target}")
            try:
                self._metadata.commit_staged()  # for the last oneway offset commits: the gate is closed
                await self._drain(transfer_target)
                drained_ms = now_ms()
                await self._elect(transfer, leaves=leaves)
                elected_ms = now_ms()
                await self._switched(role.epoch)
            except HandOverError as error:
                level = logging.DEBUG if quiet else logging.WARNING
                logger.log(level, "hand-over to broker %d failed: %s", transfer_target, error)
                raise
            finally:
                self._gate.open(HAND_OVER)
                self._forwarder.settle()
            logger.info(
                "hand-over to broker %d took %d ms: drain %d, election %d",
                transfer_target,
                now_ms() - began_ms,
                drained_ms - began_ms,
                elected_ms - drained_ms,
            )
            return transfer_target

    def _links(self) -> Collection[TransferCandidate]:
        mastership = self._ha.mastership
        if mastership is None:
            return ()
        links, members = self._ha.links, mastership.sync_state_set_manager.agreed.members
        return [
            TransferCandidate(broker_id, link.ack_offset)
            for broker_id, link in links.items()
            if broker_id in members and not link.learner
        ]

    async def _drain(self, transfer_target: int) -> None:
        """Waits until the target has all bytes and metadata; the log does not grow meanwhile. Raises
        HandOverError."""
        deadline_ms = now_ms() + DRAIN_MS
        while True:
            end, links = self._ha.store.commit_log.max_offset, self._links()
            lacks_metadata = self._metadata.is_behind(transfer_target)
            if (
                not len(self._pending)
                and transfer_target in fully_replicated(links, end)
                and not lacks_metadata
            ):
                return
            if self._ha.mastership is None or transfer_target not in {link.broker_id for link in links}:
                raise HandOverError(f"broker {transfer_target} left the SyncStateSet")
            if now_ms() >= deadline_ms:
                raise HandOverError(
                    f"not drained within {DRAIN_MS} ms: {len(self._pending)} replies wait for replicas, and "
                    f"broker {transfer_target} has to copy up to {end}"
                    f"{' and metadata' if lacks_metadata else ''}"
                )
            await asyncio.sleep(STEP_MS / 1000)

    async def _elect(self, transfer: Transfer, *, leaves: bool) -> None:
        role, mastership = self._manager.role, self._ha.mastership
        assert mastership is not None
        end, agreed = self._ha.store.commit_log.max_offset, mastership.sync_state_set_manager.agreed
        kept = fully_replicated(self._links(), end) & agreed.members
        # A broker that cannot copy must leave the set: the new master would wait for its acks.
        can_copy = not self._ha.store.commit_log.sync_fault.text
        if can_copy and (not leaves or len(kept) < self._gate.min_in_sync):
            kept |= {role.broker_id}
        request = ElectMasterRequest(
            cluster_name=self._cluster_name,
            broker_name=self._broker_name,
            broker_id=transfer.broker_id,
            designate_elect=True,
            invoke_time=wall_ms(),
            master_broker_id=role.broker_id,
            master_epoch=role.epoch,
            sync_state_set_epoch=agreed.epoch,
            equal_replicas=";".join(str(each) for each in sorted(kept)),
            needs_room=transfer.needs_room,
        )
        outcome = await self._controller.call(ELECT_MASTER, request, timeout_ms=ELECT_MS)
        if isinstance(outcome, Failed):
            raise HandOverRefused(f"the controllers refuse: {outcome.code} {outcome.remark}")
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


class HandOverRequests:
    """Handler of the controller's request to hand over, which an operator's electMaster causes."""

    def __init__(self, hand_over: HandOver, role: Callable[[], Role], *, broker_name: str) -> None:
        self._hand_over, self._role, self._broker_name = hand_over, role, broker_name

    def bind_pushed(self, table: OperationTable) -> None:
        """Binds the request on connections that this broker opened, so the peer is a controller."""
        table.bind(HAND_OVER_OPERATION, self.hand_over)

    async def hand_over(self, request: HandOverRequest, call: Call) -> None:
        """Hands over to the named broker; a request of another group or term is ignored."""
        if request.broker_name == self._broker_name and request.master_epoch == self._role().epoch:
            with contextlib.suppress(HandOverError):  # it is logged, and the controller elects without us
                await self._hand_over.give(request.broker_id)
