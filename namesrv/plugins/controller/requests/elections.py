"""Elections on request: electMaster (1002), and the explanation of what it would do.

If an operator designates a new master while the old one is alive, the old master is asked to hand over first.
A reply is made from what apply() returned, never from what was proposed.
"""

import asyncio
from collections.abc import Callable

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations import controller as wire
from keelmq.security.signer import Signer
from namesrv.plugins.controller.core.decide import (
    CONTROLLER_ITSELF,
    Drained,
    ElectionRequest,
    decide_elect,
    ids_of,
)
from namesrv.plugins.controller.core.events import ElectMaster
from namesrv.plugins.controller.core.explain import explain_election
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.core.tally import KEEP_CURRENT_MASTER, ElectionTally
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.proposer import Decided, Proposer
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.requests.replies import invalid, master_info
from namesrv.plugins.controller.settings import LiveConfig

HAND_OVER_WAIT_MS = 2_000
HAND_OVER_POLL_MS = 5


class ElectionHandlers:
    """`clock`: monotonic ms."""

    def __init__(
        self,
        config: LiveConfig,
        proposer: Proposer,
        replicator: Replicator,
        liveness_view: LivenessView,
        tally: ElectionTally,
        clock: Callable[[], int],
        signer: Signer | None = None,
    ) -> None:
        self._config, self._proposer, self._replicator = config, proposer, replicator
        self._liveness_view, self._tally, self._clock = liveness_view, tally, clock
        self._signer = signer

    def bind(self, table: OperationTable) -> None:
        """Binds electMaster (1002) and KeelMQ's explainElection (29011)."""
        table.bind(wire.ELECT_MASTER, self.elect_master)
        table.bind(wire.EXPLAIN_ELECTION, self.explain_election)

    async def elect_master(self, request: wire.ElectMasterRequest, call: Call) -> Reply:
        """Elects a master (1002). Returns master, epochs, SyncStateSet and the group's addresses.

        An unchanged master is answered with CONTROLLER_MASTER_STILL_EXIST. Raises CommandError: no replica
        may become master; UnknownOutcome.
        """
        if request.dry_run:
            return await self.explain_election(request, call)
        election_request = self._election_request(request)
        before = master_of(self._proposer.state.brokers.get(election_request.broker_name))
        reply = await self._elect(election_request)
        after = master_of(self._proposer.state.brokers.get(election_request.broker_name))
        if after != before:
            call.changes[f"master of {election_request.broker_name}"] = before, after
        return reply

    async def _elect(self, election_request: ElectionRequest) -> Reply:
        if election_request.designate_elect and election_request.drained is None:
            handed_over = await self._hand_over(election_request)
            if handed_over is not None:
                return handed_over
        decided = await self._proposer.decide_and_propose(
            lambda state: decide_elect(
                state, self._liveness_view.view_of(state, election_request.broker_name), election_request
            )
        )
        return self._elect_reply(decided)

    async def explain_election(self, request: wire.ElectMasterRequest, call: Call) -> Reply:
        """Returns what 1002 would do now (29011). Leader only: an election is based on its heartbeats."""
        election_request = self._election_request(request)
        await self._proposer.barrier()
        state = self._proposer.state
        explained = explain_election(
            state, self._liveness_view.view_of(state, election_request.broker_name), election_request
        )
        if isinstance(explained, Refused):
            raise CommandError(explained.code, explained.remark)
        broker_set, explanation = explained
        body = wire.ElectMasterResponseBody(
            sync_state_set=sorted(broker_set.sync_state_set), explanation=explanation
        )
        return Reply(master_info(broker_set, self._replicator), body, remark="dry run: nothing was changed")

    async def _hand_over(self, election_request: ElectionRequest) -> Reply | None:
        """Asks the live master to drain and then to request this election itself, so that no send fails.

        None: it cannot hand over, or did not do so within HAND_OVER_WAIT_MS: the caller elects at once.
        """
        if not self._replicator.is_active:
            return None  # the proposal is refused
        state = self._proposer.state
        view = self._liveness_view.view_of(state, election_request.broker_name)
        decision = decide_elect(state, view, election_request)
        before = state.brokers.get(election_request.broker_name)
        if before is None or before.master_broker_id is None or not isinstance(decision, ElectMaster):
            return None
        heartbeat = self._liveness_view.last_heartbeat(before.key(before.master_broker_id))
        if heartbeat is None or not heartbeat.hands_over:
            return None
        header = wire.HandOverRequest(
            broker_name=election_request.broker_name,
            master_epoch=before.master_epoch,
            broker_id=election_request.broker_id,
        )
        command = request_command(wire.HAND_OVER, header, oneway=True)
        if self._signer is not None:
            self._signer(command, "")
        heartbeat.peer.send(encode(command))
        deadline_ms = self._clock() + HAND_OVER_WAIT_MS
        while self._clock() < deadline_ms and self._replicator.is_active:
            await asyncio.sleep(HAND_OVER_POLL_MS / 1000)
            after = self._proposer.state.brokers.get(election_request.broker_name)
            if after is None or after.master_epoch == before.master_epoch:
                continue
            if after.master_broker_id != election_request.broker_id:
                return None
            body = wire.ElectMasterResponseBody(sync_state_set=sorted(after.sync_state_set))
            return Reply(master_info(after, self._replicator), body)
        return None

    def _election_request(self, request: wire.ElectMasterRequest) -> ElectionRequest:
        if not request.broker_name:
            invalid("electMaster needs brokerName")
        if request.designate_elect and request.broker_id == CONTROLLER_ITSELF:
            invalid("electMaster with designateElect needs brokerId, the broker that must become master")
        return ElectionRequest(
            broker_name=request.broker_name,
            cluster_name=request.cluster_name,
            broker_id=request.broker_id,
            designate_elect=request.designate_elect,
            unclean=self._config.current.enable_elect_unclean_master,
            drained=_drained(request),
            needs_room=request.needs_room,
        )

    def _elect_reply(self, decided: Decided) -> Reply:
        broker_set = decided.broker_set
        members = sorted(broker_set.sync_state_set)
        if decided.event is None:
            self._tally.count(broker_set, KEEP_CURRENT_MASTER, decided.remark or "")
            body = wire.ElectMasterResponseBody(sync_state_set=members)
            return Reply(master_info(broker_set, self._replicator), body, decided.code, decided.remark)
        if broker_set.master_broker_id is None:
            raise CommandError(
                ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
                f"no live replica of {broker_set.broker_name} may become master",
            )
        group = wire.BrokerMemberGroup(
            cluster=broker_set.cluster_name,
            broker_name=broker_set.broker_name,
            broker_addrs={each: replica.address for each, replica in sorted(broker_set.replicas.items())},
        )
        return Reply(
            master_info(broker_set, self._replicator),
            wire.ElectMasterResponseBody(broker_member_group=group, sync_state_set=members),
        )


def master_of(group: BrokerSet | None) -> dict[str, object] | None:
    """Returns the master and the epoch of its term; None: there is no such group."""
    if group is None:
        return None
    return {
        "masterBrokerId": group.master_broker_id,
        "masterAddress": group.master_address,
        "masterEpoch": group.master_epoch,
        "syncStateSet": sorted(group.sync_state_set),
    }


def _drained(request: wire.ElectMasterRequest) -> Drained | None:
    master, epoch, set_epoch = request.master_broker_id, request.master_epoch, request.sync_state_set_epoch
    if master is None or epoch is None or set_epoch is None:
        return None
    equals = ids_of(request.equal_replicas)
    if equals is None:
        invalid(f"equalReplicas {request.equal_replicas[:100]!r} is not a list of ids like 1;2;3")
    return Drained(master, epoch, set_epoch, equals)
