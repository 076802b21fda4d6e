"""Requests of operators: settings (1009, 1010), cleaning (1011, and its preview), past elections, export and
import of state.

Every controller serves reads of replicated values from its own copy.
"""

import logging
from itertools import islice

import msgspec

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Empty,
    Failed,
    Ok,
    OperationTable,
    Reply,
    UnknownOutcome,
)
from keelmq.remoting.operations import controller as wire
from keelmq.runtime.config import to_properties
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Signer
from namesrv.plugins.controller.config import BROKERS_MAX
from namesrv.plugins.controller.core.decide import Answer, Decision, decide_clean, decide_update_config
from namesrv.plugins.controller.core.events import CleanBrokerData
from namesrv.plugins.controller.core.history import past_elections
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.core.state_codec import StateVersionError, state_from_json, state_to_json
from namesrv.plugins.controller.core.transfer import check_import, import_events
from namesrv.plugins.controller.election.liveness_view import LivenessView
from namesrv.plugins.controller.election.reconcile_loop import Elections
from namesrv.plugins.controller.proposer import Proposer
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.settings import LiveConfig

log = logging.getLogger(__name__)

LEADER_TIMEOUT_MS = 500


class AdminHandlers:
    """Event loop only."""

    def __init__(
        self,
        config: LiveConfig,
        proposer: Proposer,
        replicator: Replicator,
        elections: Elections,
        liveness_view: LivenessView,
        tls: ClientTls | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._config, self._proposer, self._replicator = config, proposer, replicator
        self._elections, self._liveness_view = elections, liveness_view
        self._client: RemotingClient | None = None  # to the controller that leads
        self._tls, self._signer = tls, signer

    def bind(self, table: OperationTable) -> None:
        """Binds settings (1009, 1010), cleaning (1011, 29015), past elections (29012) and state (29013,
        29014)."""
        table.bind(wire.UPDATE_CONTROLLER_CONFIG, self.update_config)
        table.bind(wire.GET_CONTROLLER_CONFIG, self.get_config)
        table.bind(wire.CLEAN_BROKER_DATA, self.clean_broker_data)
        table.bind(wire.EXPLAIN_CLEAN_BROKER_DATA, self.explain_clean_broker_data)
        table.bind(wire.GET_ELECTIONS, self.get_elections)
        table.bind(wire.EXPORT_STATE, self.export_state)
        table.bind(wire.IMPORT_STATE, self.import_state)

    async def close(self) -> None:
        """Closes the connections to the leader."""
        if self._client is not None:
            await self._client.close()

    async def update_config(self, request: wire.UpdateConfigRequest, call: Call) -> Reply:
        """Changes settings of all controllers (1009).

        RocketMQ's tools send it to each controller in turn, so a controller that does not lead forwards it.
        """
        changes = self._config.check_changes(call.raw_body)
        before = self._config.current.model_dump(mode="json", by_alias=True)
        asked = {key: (before.get(key), value) for key, value in changes.items()}
        if not self._replicator.is_active and not request.forwarded:
            reply = await self._forward(call.raw_body)
            call.changes.update(asked)
            return reply
        decided = await self._proposer.decide_and_propose(lambda state: decide_update_config(state, changes))
        if decided.event is not None:
            shown = ", ".join(f"{key}={'' if value is None else value}" for key, value in changes.items())
            log.info("%s: settings of all controllers changed: %s", call.peer.address, shown)
            call.changes.update(asked)
            self._elections.check_all_groups()
        return Reply()

    async def _forward(self, body: bytes) -> Reply:
        leader = self._replicator.leader_id
        address = self._replicator.request_addresses.get(leader or "")
        if address is None:
            raise CommandError(ResponseCode.CONTROLLER_NOT_LEADER, "no controller leads: repeat later")
        where = f"{address[0]}:{address[1]}"
        request = wire.UpdateConfigRequest(forwarded=True)
        match await self._leader_client().call(where, wire.UPDATE_CONTROLLER_CONFIG, request, body):
            case Ok():
                return Reply()
            case Failed(code=code, remark=remark):
                raise CommandError(code, f"controller {leader}, which leads: {remark}")
            case unknown:
                remark = f"outcome unknown at controller {leader}, which leads ({unknown.remark}): repeat"
                raise UnknownOutcome(ResponseCode.SYSTEM_ERROR, remark)

    async def leader_http_address(self) -> str | None:
        """Asks the leader for its HTTP address. None: no leader, or no answer within LEADER_TIMEOUT_MS."""
        address = self._replicator.request_addresses.get(self._replicator.leader_id or "")
        if address is None:
            return None
        outcome = await self._leader_client().call(
            f"{address[0]}:{address[1]}", wire.GET_METADATA_INFO, Empty(), timeout_ms=LEADER_TIMEOUT_MS
        )
        return outcome.header.http_address if isinstance(outcome, Ok) else None

    def _leader_client(self) -> RemotingClient:
        if self._client is None:
            self._client = RemotingClient(tls=self._tls, signer=self._signer)
        return self._client

    async def get_config(self, request: Empty, call: Call) -> Reply:
        """Returns the settings in force here as key=value lines (1010)."""
        return Reply(body=to_properties(self._config.current).encode())

    async def clean_broker_data(self, request: wire.CleanBrokerDataRequest, call: Call) -> Reply:
        """cleanBrokerData (1011). Raises CommandError: refused, for example because a broker is alive."""
        name = request.broker_name
        before = ids_of_replicas(self._proposer.state.brokers.get(name))
        decided = await self._proposer.decide_and_propose(lambda state: self._decide_clean(state, request))
        if decided.event is not None:
            call.changes[f"brokers of {name}"] = before, ids_of_replicas(decided.after)
            ids = request.broker_controller_ids_to_clean or "all"
            log.warning("%s: cleaned brokers %s of %s", call.peer.address, ids, name)
        return Reply(remark=decided.remark)

    async def explain_clean_broker_data(self, request: wire.CleanBrokerDataRequest, call: Call) -> Reply:
        """Returns what 1011 would remove now, and changes nothing (29015). Raises CommandError as 1011."""
        await self._proposer.barrier()
        state = self._proposer.state
        decision = self._decide_clean(state, request)
        if isinstance(decision, Refused):
            raise CommandError(decision.code, decision.remark)
        if isinstance(decision, Answer):
            return Reply(body=wire.CleanExplanation(), remark=decision.remark)
        assert isinstance(decision, CleanBrokerData)
        group, live = (
            state.brokers[request.broker_name],
            self._liveness_view.view_of(state, request.broker_name),
        )
        replicas = [
            wire.ReplicaIdentity(
                broker_name=group.broker_name,
                broker_id=each,
                broker_address=group.replicas[each].address,
                alive=live.is_alive(each),
            )
            for each in decision.broker_ids
        ]
        is_master_in = group.master_broker_id in decision.broker_ids
        body = wire.CleanExplanation(
            replicas=replicas,
            is_whole=len(replicas) == len(group.replicas),
            master_broker_id=group.master_broker_id if is_master_in else None,
        )
        return Reply(body=body, remark="dry run: nothing was changed")

    def _decide_clean(self, state: State, request: wire.CleanBrokerDataRequest) -> Decision:
        return decide_clean(
            state,
            self._liveness_view.view_of(state, request.broker_name),
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            broker_ids=request.broker_controller_ids_to_clean,
            clean_living=request.is_clean_living_broker,
        )

    async def get_elections(self, request: wire.ElectionsRequest, call: Call) -> Reply:
        """Returns the past elections of one group, or of all: at most `count`, newest first (29012)."""
        found = islice(past_elections(self._proposer.state, request.broker_name), request.count)
        elections = [wire.PastElection(**msgspec.structs.asdict(each)) for each in found]
        return Reply(body=wire.Elections(elections=elections))

    async def export_state(self, request: Empty, call: Call) -> Reply:
        """Returns the replicated state as JSON (29013).

        Every controller serves it, even without a leader: it may have what a majority has lost.
        """
        return Reply(body=state_to_json(self._proposer.state))

    async def import_state(self, request: Empty, call: Call) -> wire.ImportStateResponse:
        """Imports an exported state into an empty cluster. Raises CommandError: refused; UnknownOutcome."""
        incoming = _decoded(call.raw_body)
        self._config.check(incoming.settings)
        await self._proposer.barrier()
        imported_max = int(incoming.settings.get(BROKERS_MAX, 0))  # the import may bring a higher limit
        brokers_max = max(self._config.current.controller_brokers_max, imported_max)
        if refused := check_import(self._proposer.state, incoming, brokers_max):
            raise CommandError(refused.code, refused.remark)
        for event in import_events(incoming, brokers_max):
            applied = await self._proposer.propose(event)
            if applied.refused is not None:
                raise CommandError(applied.refused.code, applied.refused.remark)
        call.changes["groups"] = [], sorted(incoming.brokers)
        log.warning("%s: imported %d groups", call.peer.address, len(incoming.brokers))
        self._elections.check_all_groups()
        return wire.ImportStateResponse(groups=len(incoming.brokers))


def ids_of_replicas(group: BrokerSet | None) -> dict[int, str] | None:
    """Returns the address of each replica by its id; None: there is no such group."""
    return None if group is None else {id_: each.address for id_, each in sorted(group.replicas.items())}


def _decoded(body: bytes) -> State:
    try:
        return state_from_json(body)
    except (StateVersionError, msgspec.DecodeError) as error:
        raise CommandError(
            ResponseCode.CONTROLLER_INVALID_REQUEST, f"not the state of a controller: {error}"
        ) from error
