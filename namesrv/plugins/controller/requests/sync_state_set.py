"""The SyncStateSet of a group: changing it (1001), and reading master and SyncStateSet (1004, 1006).

core/decide.py decides whether a change is proposed; core/apply.py checks it again when it is applied.
"""

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.decide import decide_alter_sync_state_set, decide_read
from namesrv.plugins.controller.core.events import AlterSyncStateSet
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.requests.replies import invalid, master_info, sync_state_set

NAMES_MAX = 10_000
"""Maximum number of broker names in one 1006."""


class SyncStateSetHandlers:
    """Served by the active controller only."""

    def __init__(self, proposer: Proposer, replicator: Replicator, liveness_view: LivenessView) -> None:
        self._proposer, self._replicator, self._liveness_view = proposer, replicator, liveness_view

    def bind(self, table: OperationTable) -> None:
        """Binds alterSyncStateSet (1001), getReplicaInfo (1004) and getSyncStateData (1006)."""
        table.bind(wire.ALTER_SYNC_STATE_SET, self.alter_sync_state_set)
        table.bind(wire.GET_REPLICA_INFO, self.get_replica_info)
        table.bind(wire.GET_SYNC_STATE_DATA, self.get_sync_state_data)

    async def alter_sync_state_set(self, request: wire.AlterSyncStateSetRequest, call: Call) -> Reply:
        """Replaces the SyncStateSet (1001). Returns it with its epoch. Raises CommandError: refused."""
        body = call.body
        if not isinstance(body, wire.SyncStateSet):
            invalid("alterSyncStateSet needs a body: the new SyncStateSet and the current syncStateSetEpoch")
        event = AlterSyncStateSet(
            broker_name=request.broker_name,
            master_broker_id=request.master_broker_id,
            new_sync_state_set=tuple(sorted(set(body.sync_state_set))),
            expected_master_epoch=request.master_epoch,
            expected_sync_state_set_epoch=body.sync_state_set_epoch,
        )
        try:
            decided = await self._proposer.decide_and_propose(
                lambda state: decide_alter_sync_state_set(
                    state, event, self._liveness_view.view_of(state, request.broker_name)
                )
            )
        except CommandError as error:
            if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                error.header = wire.AlterSyncStateSetResponse()
            raise
        broker_set = decided.broker_set
        header = wire.AlterSyncStateSetResponse(new_sync_state_set_epoch=broker_set.sync_state_set_epoch)
        return Reply(header, sync_state_set(broker_set))

    async def get_replica_info(self, request: wire.ReplicaInfoRequest, call: Call) -> Reply:
        """Returns master, epochs and SyncStateSet of a group (1004). Raises CommandError: it is unknown, or
        the sender is not the broker with its id any more."""
        decided = await self._proposer.decide_and_propose(
            lambda state: decide_read(
                state,
                broker_name=request.broker_name,
                broker_id=request.broker_id,
                broker_address=request.broker_address,
                master_broker_id=request.master_broker_id,
                master_epoch=request.master_epoch,
                fence_sync_state_set_epoch=request.fence_sync_state_set_epoch,
            )
        )
        return Reply(master_info(decided.broker_set, self._replicator), sync_state_set(decided.broker_set))

    async def get_sync_state_data(self, request: object, call: Call) -> Reply:
        """Returns the replicas of these groups, in sync or not (1006); unknown names are left out."""
        names = call.body
        if not names:
            invalid("getSyncStateSet needs a body: a JSON list of broker names")
        if len(names) > NAMES_MAX:
            invalid(f"{len(names)} broker names in one request, {NAMES_MAX} are allowed")
        await self._proposer.barrier()
        brokers = self._proposer.state.brokers
        table = {name: self._replicas_info(brokers[name]) for name in names if name in brokers}
        return Reply(None, wire.BrokerReplicasInfo(replicas_info_table=table))

    def _replicas_info(self, broker_set: BrokerSet) -> wire.ReplicasInfo:
        view = self._liveness_view.view(broker_set)
        identities = {
            broker_id: wire.ReplicaIdentity(
                broker_name=broker_set.broker_name,
                broker_id=broker_id,
                broker_address=replica.address,
                alive=view.is_alive(broker_id),
            )
            for broker_id, replica in sorted(broker_set.replicas.items())
        }
        members = broker_set.sync_state_set
        return wire.ReplicasInfo(
            master_broker_id=broker_set.master_broker_id,
            master_address=broker_set.master_address,
            master_epoch=broker_set.master_epoch,
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
            in_sync_replicas=[each for broker_id, each in identities.items() if broker_id in members],
            not_in_sync_replicas=[each for broker_id, each in identities.items() if broker_id not in members],
        )
