"""Registration of a broker: it reads the next id (1012), applies for it (1013) and registers (1003)."""

from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.decide import decide_apply_broker_id, decide_register
from namesrv.plugins.controller.core.events import ApplyBrokerId, UpdateBrokerAddress
from namesrv.plugins.controller.core.rules import other_cluster
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.proposer import Decided, Proposer
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.requests.replies import invalid, master_info, sync_state_set
from namesrv.plugins.controller.settings import LiveConfig


class RegistrationHandlers:
    """The three steps of a broker, each safe to repeat."""

    def __init__(
        self,
        config: LiveConfig,
        proposer: Proposer,
        replicator: Replicator,
        liveness_view: LivenessView,
    ) -> None:
        self._config, self._proposer, self._replicator = config, proposer, replicator
        self._liveness_view = liveness_view

    def bind(self, table: OperationTable) -> None:
        """Binds getNextBrokerId (1012), applyBrokerId (1013) and registerBroker (1003)."""
        table.bind(wire.GET_NEXT_BROKER_ID, self.get_next_broker_id)
        table.bind(wire.APPLY_BROKER_ID, self.apply_broker_id)
        table.bind(wire.REGISTER_BROKER_TO_CONTROLLER, self.register_broker)

    async def get_next_broker_id(
        self, request: wire.BrokerSetRequest, call: Call
    ) -> wire.GetNextBrokerIdResponse:
        """Returns the next broker id (1012), without reserving it: 1013 gives it to one of several
        brokers."""
        await self._proposer.barrier()
        state = self._proposer.state
        broker_set = state.brokers.get(request.broker_name)
        if broker_set is not None and (refused := other_cluster(broker_set, request.cluster_name)):
            raise CommandError(refused.code, refused.remark)
        return wire.GetNextBrokerIdResponse(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            next_broker_id=(
                state.first_broker_id(request.broker_name)
                if broker_set is None
                else broker_set.next_broker_id
            ),
        )

    async def apply_broker_id(
        self, request: wire.ApplyBrokerIdRequest, call: Call
    ) -> wire.ApplyBrokerIdResponse:
        """Gives the broker the id that it asks for (1013). Raises CommandError: taken, or invalid."""
        address, semicolon, _millis = request.register_check_code.partition(";")
        if not address or not semicolon or not request.broker_name:
            invalid("applyBrokerId needs brokerName and registerCheckCode '<brokerAddr>;<millis>'")
        event = ApplyBrokerId(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            broker_id=request.applied_broker_id,
            broker_address=address,
            register_check_code=request.register_check_code,
            v=3,
            brokers_max=self._config.current.controller_brokers_max,
        )
        await self._proposer.decide_and_propose(lambda state: decide_apply_broker_id(state, event))
        return wire.ApplyBrokerIdResponse(cluster_name=request.cluster_name, broker_name=request.broker_name)

    async def register_broker(self, request: wire.RegisterBrokerToControllerRequest, call: Call) -> Reply:
        """Registers the broker's address (1003). Returns the SyncStateSet, and the master if it is alive.

        Raises CommandError: the id was not applied for; UnknownOutcome.
        """
        decided = await self._decide_register(request, call.peer.connection_id)
        if isinstance(decided.event, UpdateBrokerAddress):
            # It may be the master. Then the term ends, whatever epoch is on its disk: a process at the former
            # address may have written in it, and may go on.
            decided = await self._decide_register(request.model_copy(update={"epoch": None}), 0)
        broker_set = decided.broker_set
        is_alive = self._liveness_view.view(broker_set).serves(broker_set.master_broker_id)
        info = master_info(broker_set if is_alive else None, self._replicator)
        header = wire.RegisterBrokerToControllerResponse(
            cluster_name=request.cluster_name, broker_name=request.broker_name, **info.model_dump()
        )
        return Reply(header, sync_state_set(broker_set))

    async def _decide_register(
        self, request: wire.RegisterBrokerToControllerRequest, connection_id: int
    ) -> Decided:
        return await self._proposer.decide_and_propose(
            lambda state: decide_register(
                state,
                self._liveness_view.view_of(state, request.broker_name),
                cluster_name=request.cluster_name,
                broker_name=request.broker_name,
                broker_id=request.broker_id,
                broker_address=request.broker_address,
                epoch=request.epoch,
                check_code=request.register_check_code,
                connection_id=connection_id,
            )
        )
