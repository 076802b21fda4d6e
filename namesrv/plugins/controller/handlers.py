"""The controller's operations bound to decide, propose, reply. A reply is made from what apply() said."""

import asyncio
from collections.abc import Callable
from typing import NoReturn

from namesrv.core.liveness import BrokerKey
from namesrv.plugins import Liveness
from namesrv.plugins.controller.core.decide import (
    CONTROLLER_ITSELF,
    Ballot,
    Drained,
    decide_alter_sync_state_set,
    decide_apply_broker_id,
    decide_elect,
    decide_read,
    decide_register,
    ids_of,
)
from namesrv.plugins.controller.core.events import (
    AlterSyncStateSet,
    ApplyBrokerId,
    ElectMaster,
    UpdateBrokerAddress,
)
from namesrv.plugins.controller.core.explain import Explanation, explain_election
from namesrv.plugins.controller.core.rules import Refused, other_cluster
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.core.tally import KEPT
from namesrv.plugins.controller.elections import Elections
from namesrv.plugins.controller.heartbeats import HeartbeatHandler
from namesrv.plugins.controller.members import added_text
from namesrv.plugins.controller.proposer import Proposer, Settled
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.settings import LiveConfig
from namesrv.plugins.controller.watch import Watch
from remoting.codes import ResponseCode
from remoting.command import encode, request_command
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations import controller as wire

NAMES_MAX = 10_000
"""Broker names in one 1006."""
HAND_OVER_WAIT_MS = 2_000
HAND_OVER_LOOK_MS = 5


class ControllerHandlers:
    def __init__(
        self,
        config: LiveConfig,
        proposer: Proposer,
        replicator: Replicator,
        elections: Elections,
        watch: Watch,
        liveness: Liveness,
        clock: Callable[[], int],
    ) -> None:
        self._config, self._proposer, self._replicator = config, proposer, replicator
        self._elections, self._watch, self._clock = elections, watch, clock
        self.http_address: Callable[[], str | None] = lambda: None  # of this controller, for 1005
        self.heartbeats = HeartbeatHandler(config, liveness, clock, self._came_back)

    def bind(self, table: OperationTable) -> None:
        """For the TCP door."""
        self.bind_requests(table)
        self.heartbeats.bind(table)

    def bind_requests(self, table: OperationTable) -> None:
        """For any door: all but the heartbeat, which says that a connection lives."""
        table.bind(wire.ALTER_SYNC_STATE_SET, self.alter_sync_state_set)
        table.bind(wire.ELECT_MASTER, self.elect_master)
        table.bind(wire.EXPLAIN_ELECTION, self.explain_election)
        table.bind(wire.REGISTER_BROKER_TO_CONTROLLER, self.register_broker)
        table.bind(wire.GET_REPLICA_INFO, self.get_replica_info)
        table.bind(wire.GET_METADATA_INFO, self.get_metadata_info)
        table.bind(wire.GET_SYNC_STATE_DATA, self.get_sync_state_data)
        table.bind(wire.GET_NEXT_BROKER_ID, self.get_next_broker_id)
        table.bind(wire.APPLY_BROKER_ID, self.apply_broker_id)

    async def alter_sync_state_set(self, request: wire.AlterSyncStateSetRequest, call: Call) -> Reply:
        body = call.body
        if not isinstance(body, wire.SyncStateSet):
            _invalid("alterSyncStateSet needs a body: the new SyncStateSet and the current syncStateSetEpoch")
        event = AlterSyncStateSet(
            broker_name=request.broker_name,
            master_broker_id=request.master_broker_id,
            new_sync_state_set=tuple(sorted(set(body.sync_state_set))),
            expected_master_epoch=request.master_epoch,
            expected_sync_state_set_epoch=body.sync_state_set_epoch,
        )
        try:
            settled = await self._proposer.settle(
                lambda state: decide_alter_sync_state_set(
                    state, event, self._watch.view_of(state, request.broker_name)
                )
            )
        except CommandError as error:
            if error.code != ResponseCode.CONTROLLER_NOT_LEADER:
                error.header = wire.AlterSyncStateSetResponse()
            raise
        broker_set = settled.broker_set
        header = wire.AlterSyncStateSetResponse(new_sync_state_set_epoch=broker_set.sync_state_set_epoch)
        return Reply(header, _sync_state_set(broker_set))

    async def elect_master(self, request: wire.ElectMasterRequest, call: Call) -> Reply:
        if request.dry_run:
            return await self.explain_election(request, call)
        ballot = self._ballot(request)
        if ballot.designate_elect and ballot.drained is None:
            handed_over = await self._asked_to_hand_over(ballot)
            if handed_over is not None:
                return handed_over
        settled = await self._proposer.settle(
            lambda state: decide_elect(state, self._watch.view_of(state, ballot.broker_name), ballot)
        )
        return self._elect_reply(settled)

    async def explain_election(self, request: wire.ElectMasterRequest, call: Call) -> Reply:
        """What 1002 would do now. Only the controller that leads knows: whom it hears decides."""
        ballot = self._ballot(request)
        await self._proposer.barrier()
        state = self._proposer.state
        explained = explain_election(state, self._watch.view_of(state, ballot.broker_name), ballot)
        if isinstance(explained, Refused):
            raise CommandError(explained.code, explained.remark)
        body = wire.ElectMasterResponseBody(
            sync_state_set=sorted(explained.broker_set.sync_state_set), explanation=_explanation(explained)
        )
        return Reply(self._master_info(explained.broker_set), body, remark="dry run: nothing was changed")

    async def _asked_to_hand_over(self, ballot: Ballot) -> Reply | None:
        """A live master that knows how to drains first, and asks for the same election itself: nobody's send
        fails. None: it is not able to, or it did not come in time, and the election is held at once."""
        if not self._replicator.is_active:
            return None  # the master hears every controller, and would do it
        state = self._proposer.state
        view = self._watch.view_of(state, ballot.broker_name)
        decision = decide_elect(state, view, ballot)
        before = state.brokers.get(ballot.broker_name)
        if before is None or before.master_broker_id is None or not isinstance(decision, ElectMaster):
            return None
        heard = self._watch.heard(before.key(before.master_broker_id))
        if heard is None or not heard.hands_over:
            return None
        header = wire.HandOverRequest(
            broker_name=ballot.broker_name, master_epoch=before.master_epoch, broker_id=ballot.broker_id
        )
        heard.peer.send(encode(request_command(wire.HAND_OVER, header, oneway=True)))
        deadline_ms = self._clock() + HAND_OVER_WAIT_MS
        while self._clock() < deadline_ms and self._replicator.is_active:
            await asyncio.sleep(HAND_OVER_LOOK_MS / 1000)
            after = self._proposer.state.brokers.get(ballot.broker_name)
            if after is None or after.master_epoch == before.master_epoch:
                continue
            if after.master_broker_id != ballot.broker_id:
                return None
            body = wire.ElectMasterResponseBody(sync_state_set=sorted(after.sync_state_set))
            return Reply(self._master_info(after), body)
        return None

    def _ballot(self, request: wire.ElectMasterRequest) -> Ballot:
        if not request.broker_name:
            _invalid("electMaster needs brokerName")
        if request.designate_elect and request.broker_id == CONTROLLER_ITSELF:
            _invalid("electMaster with designateElect needs brokerId, the one that must become master")
        return Ballot(
            broker_name=request.broker_name,
            cluster_name=request.cluster_name,
            broker_id=request.broker_id,
            designate_elect=request.designate_elect,
            unclean=self._config.current.enable_elect_unclean_master,
            drained=_drained(request),
        )

    def _elect_reply(self, settled: Settled) -> Reply:
        broker_set = settled.broker_set
        members = sorted(broker_set.sync_state_set)
        if settled.event is None:
            self._elections.tally.count(broker_set, KEPT, settled.remark or "")
            body = wire.ElectMasterResponseBody(sync_state_set=members)
            return Reply(self._master_info(broker_set), body, settled.code, settled.remark)
        if broker_set.master_broker_id is None:
            self._elections.notify(broker_set)
            raise CommandError(
                ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
                f"no live replica of {broker_set.broker_name} may become master",
            )
        self._elections.elected(broker_set, getattr(settled.event, "reason", ""))
        group = wire.BrokerMemberGroup(
            cluster=broker_set.cluster_name,
            broker_name=broker_set.broker_name,
            broker_addrs={each: replica.address for each, replica in sorted(broker_set.replicas.items())},
        )
        return Reply(
            self._master_info(broker_set),
            wire.ElectMasterResponseBody(broker_member_group=group, sync_state_set=members),
        )

    async def register_broker(self, request: wire.RegisterBrokerToControllerRequest, call: Call) -> Reply:
        settled = await self._settle_register(request)
        if isinstance(settled.event, UpdateBrokerAddress):
            settled = await self._settle_register(request)  # with its new address it may have been the master
        broker_set = settled.broker_set
        master = broker_set.master_broker_id
        if isinstance(settled.event, ElectMaster) and master is not None:
            self._elections.elected(broker_set, settled.event.reason)
        elif isinstance(settled.event, ElectMaster):
            self._elections.notify(broker_set)
            self._elections.look_at(broker_set.broker_name)
        is_alive = master is not None and self._watch.view(broker_set).is_alive(master)
        info = self._master_info(broker_set) if is_alive else self._no_master()
        header = wire.RegisterBrokerToControllerResponse(
            cluster_name=request.cluster_name, broker_name=request.broker_name, **info.model_dump()
        )
        return Reply(header, _sync_state_set(broker_set))

    async def _settle_register(self, request: wire.RegisterBrokerToControllerRequest) -> Settled:
        return await self._proposer.settle(
            lambda state: decide_register(
                state,
                self._watch.view_of(state, request.broker_name),
                cluster_name=request.cluster_name,
                broker_name=request.broker_name,
                broker_id=request.broker_id,
                broker_address=request.broker_address,
                epoch=request.epoch,
            )
        )

    async def get_replica_info(self, request: wire.ReplicaInfoRequest, call: Call) -> Reply:
        settled = await self._proposer.settle(
            lambda state: decide_read(
                state,
                broker_name=request.broker_name,
                master_broker_id=request.master_broker_id,
                master_epoch=request.master_epoch,
                fence_sync_state_set_epoch=request.fence_sync_state_set_epoch,
            )
        )
        return Reply(self._master_info(settled.broker_set), _sync_state_set(settled.broker_set))

    async def get_metadata_info(self, request: object, call: Call) -> wire.ControllerMetadata:
        """Answered by every member from its own view."""
        return self.metadata()

    def metadata(self) -> wire.ControllerMetadata:
        config, replicator = self._config.current, self._replicator
        leader = replicator.self_id if replicator.is_active else replicator.leader_id
        peers = replicator.request_addresses
        leads_at = peers.get(leader or "")
        return wire.ControllerMetadata(
            group=config.controller_d_leger_group,
            controller_leader_id=leader,
            controller_leader_address=None if leads_at is None else _text(leads_at),
            is_leader=replicator.is_active,
            peers="".join(f"{each}:{_text(address)};" for each, address in peers.items()),
            http_address=self.http_address(),
            self_id=replicator.self_id,
            raft_address=_text(config.raft_addresses[config.controller_d_leger_self_id]),
        )

    async def get_sync_state_data(self, request: object, call: Call) -> Reply:
        names = call.body
        if not names:
            _invalid("getSyncStateSet needs a body: a JSON list of broker names")
        if len(names) > NAMES_MAX:
            _invalid(f"{len(names)} broker names in one request, {NAMES_MAX} are allowed")
        await self._proposer.barrier()
        brokers = self._proposer.state.brokers
        table = {name: self._replicas_info(brokers[name]) for name in names if name in brokers}
        return Reply(None, wire.BrokerReplicasInfo(replicas_info_table=table))

    async def get_next_broker_id(
        self, request: wire.BrokerSetRequest, call: Call
    ) -> wire.GetNextBrokerIdResponse:
        """Nothing is reserved: two brokers may get the same number, 1013 gives it to one of them."""
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
        address, semicolon, _millis = request.register_check_code.partition(";")
        if not address or not semicolon or not request.broker_name:
            _invalid("applyBrokerId needs brokerName and registerCheckCode '<brokerAddr>;<millis>'")
        event = ApplyBrokerId(
            cluster_name=request.cluster_name,
            broker_name=request.broker_name,
            broker_id=request.applied_broker_id,
            broker_address=address,
            register_check_code=request.register_check_code,
            v=3,
            brokers_max=self._config.current.controller_brokers_max,
        )
        await self._proposer.settle(lambda state: decide_apply_broker_id(state, event))
        return wire.ApplyBrokerIdResponse(cluster_name=request.cluster_name, broker_name=request.broker_name)

    def _came_back(self, key: BrokerKey) -> None:
        """It may be electable, and it may have missed who is master."""
        if not self._replicator.is_active:
            return
        broker_set = self._proposer.state.brokers.get(key.broker_name)
        if broker_set is None or key.broker_id not in broker_set.replicas:
            return
        if broker_set.master_broker_id is not None:
            self._elections.notify(broker_set, only=key.broker_id)
        self._elections.look_at(key.broker_name)

    def _master_info(self, broker_set: BrokerSet) -> wire.MasterInfo:
        return wire.MasterInfo(
            master_broker_id=broker_set.master_broker_id,
            master_address=broker_set.master_address,
            master_epoch=broker_set.master_epoch,
            sync_state_set_epoch=broker_set.sync_state_set_epoch,
            controllers=added_text(self._replicator),
        )

    def _no_master(self) -> wire.MasterInfo:
        return wire.MasterInfo(controllers=added_text(self._replicator))

    def _replicas_info(self, broker_set: BrokerSet) -> wire.ReplicasInfo:
        view = self._watch.view(broker_set)
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


def _drained(request: wire.ElectMasterRequest) -> Drained | None:
    master, epoch, set_epoch = request.master_broker_id, request.master_epoch, request.sync_state_set_epoch
    if master is None or epoch is None or set_epoch is None:
        return None
    equals = ids_of(request.equal_replicas)
    if equals is None:
        _invalid(f"equalReplicas {request.equal_replicas[:100]!r} is not a list of ids like 1;2;3")
    return Drained(master, epoch, set_epoch, equals)


def _explanation(explained: Explanation) -> wire.ElectionExplanation:
    return wire.ElectionExplanation(
        code=explained.code,
        remark=explained.remark,
        verdict=explained.election.verdict.value,
        is_change=explained.is_change,
        new_master_broker_id=explained.election.winner,
        unclean=explained.election.unclean,
        candidates=[
            wire.ElectionCandidate(
                broker_id=each.broker_id,
                broker_address=each.address,
                in_sync=each.in_sync,
                alive=each.alive,
                wins=each.wins,
                why=each.why,
                epoch=each.epoch,
                max_offset=each.max_offset,
                confirm_offset=each.confirm_offset,
                election_priority=each.election_priority,
                behind_bytes=each.behind_bytes,
            )
            for each in explained.candidates
        ],
    )


def _sync_state_set(broker_set: BrokerSet) -> wire.SyncStateSet:
    return wire.SyncStateSet(
        sync_state_set=sorted(broker_set.sync_state_set),
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _invalid(remark: str) -> NoReturn:
    raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
