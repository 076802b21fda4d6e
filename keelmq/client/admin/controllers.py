"""AdminClient's requests to controllers. Callers may name any controller; its metadata (1005) names the
leader."""

from collections.abc import Sequence
from typing import Any

from keelmq.client.admin.transport import AdminError, AdminTransport, body_of, first_of, properties_of
from keelmq.remoting.address_text import parse_addresses
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Operation, Wire
from keelmq.remoting.operations.controller import (
    CLEAN_BROKER_DATA,
    ELECT_MASTER,
    EXPLAIN_CLEAN_BROKER_DATA,
    EXPLAIN_ELECTION,
    EXPLAIN_REMOVE_CONTROLLER,
    EXPORT_STATE,
    GET_CONTROLLER_CONFIG,
    GET_ELECTIONS,
    GET_METADATA_INFO,
    GET_SYNC_STATE_DATA,
    IMPORT_STATE,
    UPDATE_CONTROLLER_CONFIG,
    BrokerReplicasInfo,
    CleanBrokerDataRequest,
    CleanExplanation,
    ControllerIdRequest,
    ControllerMetadata,
    ElectionExplanation,
    Elections,
    ElectionsRequest,
    ElectMasterRequest,
    ElectMasterResponseBody,
    MasterInfo,
    PastElection,
    UpdateConfigRequest,
)

CONTROLLER_TIMEOUT_MS = 3_000
MEMBERS_TIMEOUT_MS = 20_000
"""A controller that is added first receives the whole log."""


class ControllerAdmin(AdminTransport):
    """SyncStateSets, elections, settings and members of the controllers. All methods raise AdminError."""

    # controllers

    async def controller_metadata(self, controller_addr: str) -> ControllerMetadata:
        """Returns the metadata of the first controller of the list that answers, preferably one that knows a
        leader (GET_METADATA_INFO, 1005)."""

        async def ask(address: str) -> ControllerMetadata:
            answer = await self.ask(address, GET_METADATA_INFO, Empty(), timeout_ms=CONTROLLER_TIMEOUT_MS)
            return answer.header

        addresses = parse_addresses(controller_addr)
        return await first_of(addresses, ask, is_enough=lambda view: bool(view.controller_leader_address))

    async def controller_leader(self, controller_addr: str) -> str:
        """Returns the leader's address. AdminError 2007: no controller is leader now."""
        metadata = await self.controller_metadata(controller_addr)
        if not metadata.controller_leader_address:
            remark = "no controller leads now (an election is running, or a majority of the peers is down)"
            raise AdminError(
                GET_METADATA_INFO.name, controller_addr, remark, ResponseCode.CONTROLLER_NOT_LEADER
            )
        return metadata.controller_leader_address

    async def sync_state_sets(self, controller_addr: str, broker_names: Sequence[str]) -> BrokerReplicasInfo:
        """Returns master and replicas of each broker name, as the leader knows them (GET_SYNC_STATE_DATA,
        1006)."""
        leader = await self.controller_leader(controller_addr)
        return await self.sync_state_sets_at(leader, broker_names)

    async def sync_state_sets_at(self, leader: str, broker_names: Sequence[str]) -> BrokerReplicasInfo:
        """As sync_state_sets(), from a controller that is known to be the leader. Unknown broker names are
        absent from the result."""
        if not broker_names:  # controllers refuse an empty list
            return BrokerReplicasInfo()
        answer = await self.ask(
            leader, GET_SYNC_STATE_DATA, Empty(), list(broker_names), timeout_ms=CONTROLLER_TIMEOUT_MS
        )
        return body_of(answer, BrokerReplicasInfo, GET_SYNC_STATE_DATA, leader)

    async def elect_master(
        self, controller_addr: str, *, cluster_name: str, broker_name: str, broker_id: int
    ) -> tuple[MasterInfo, ElectMasterResponseBody]:
        """Makes broker_id the master (ELECT_MASTER, 1002). AdminError 2011: it already is; 2012: it cannot
        be; and others."""
        leader = await self.controller_leader(controller_addr)
        header = ElectMasterRequest(
            cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id, designate_elect=True
        )
        answer = await self.ask(leader, ELECT_MASTER, header, timeout_ms=CONTROLLER_TIMEOUT_MS)
        body = answer.body if isinstance(answer.body, ElectMasterResponseBody) else ElectMasterResponseBody()
        return answer.header, body

    async def explain_election(
        self, controller_addr: str, *, cluster_name: str, broker_name: str, broker_id: int | None
    ) -> ElectionExplanation:
        """Returns the decision that elect_master would make, and changes nothing (EXPLAIN_ELECTION, 29011).
        `broker_id` None: the election that the controller itself would hold. Raises as explain()."""
        leader = await self.controller_leader(controller_addr)
        header = ElectMasterRequest(
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_id=-1 if broker_id is None else broker_id,
            designate_elect=broker_id is not None,
            dry_run=True,
        )
        answer = await self.explain(leader, EXPLAIN_ELECTION, header, timeout_ms=CONTROLLER_TIMEOUT_MS)
        body = body_of(answer, ElectMasterResponseBody, EXPLAIN_ELECTION, leader)
        if body.explanation is None:
            raise AdminError(EXPLAIN_ELECTION.name, leader, "the response has no explanation", answer.code)
        return body.explanation

    async def clean_broker_data(
        self,
        controller_addr: str,
        *,
        cluster_name: str,
        broker_name: str,
        broker_ids: str = "",
        clean_living: bool = False,
    ) -> str:
        """Removes replicas from the controllers' state (CLEAN_BROKER_DATA, 1011). `broker_ids`: "1;2", blank
        removes the whole group. Returns the controller's remark."""
        leader = await self.controller_leader(controller_addr)
        header = CleanBrokerDataRequest(
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_controller_ids_to_clean=broker_ids,
            is_clean_living_broker=clean_living,
        )
        return (await self.ask(leader, CLEAN_BROKER_DATA, header, timeout_ms=CONTROLLER_TIMEOUT_MS)).remark

    async def explain_clean_broker_data(
        self,
        controller_addr: str,
        *,
        cluster_name: str,
        broker_name: str,
        broker_ids: str = "",
        clean_living: bool = False,
    ) -> tuple[CleanExplanation, str]:
        """Returns what clean_broker_data() would remove, and the controller's remark; changes nothing
        (EXPLAIN_CLEAN_BROKER_DATA, 29015). Raises as explain()."""
        leader = await self.controller_leader(controller_addr)
        header = CleanBrokerDataRequest(
            cluster_name=cluster_name,
            broker_name=broker_name,
            broker_controller_ids_to_clean=broker_ids,
            is_clean_living_broker=clean_living,
        )
        answer = await self.explain(
            leader, EXPLAIN_CLEAN_BROKER_DATA, header, timeout_ms=CONTROLLER_TIMEOUT_MS
        )
        return body_of(answer, CleanExplanation, EXPLAIN_CLEAN_BROKER_DATA, leader), answer.remark

    async def elections(self, controller_addr: str, broker_name: str, count: int) -> list[PastElection]:
        """Returns at most `count` past elections, newest first, of one group, or of all if broker_name is ""
        (GET_ELECTIONS, 29012)."""
        header = ElectionsRequest(broker_name=broker_name, count=count)
        answer = await self.ask_any(controller_addr, GET_ELECTIONS, header)
        return list(body_of(answer, Elections, GET_ELECTIONS, controller_addr).elections)

    async def import_state(self, controller_addr: str, state: bytes) -> int:
        """Imports what export_state() returned (IMPORT_STATE, 29014). Returns the number of groups."""
        leader = await self.controller_leader(controller_addr)
        return (await self.ask(leader, IMPORT_STATE, Empty(), state)).header.groups

    async def change_controllers(
        self, controller_addr: str, operation: Operation[Any, ControllerMetadata], header: Wire
    ) -> tuple[ControllerMetadata, str]:
        """Sends addController, removeController or transferLeader. Returns the metadata after the change, and
        the remark."""
        leader = await self.controller_leader(controller_addr)
        answer = await self.ask(leader, operation, header, timeout_ms=MEMBERS_TIMEOUT_MS)
        return answer.header, answer.remark

    async def explain_remove_controller(
        self, controller_addr: str, controller_id: str
    ) -> tuple[ControllerMetadata, str]:
        """Returns the present group, and the leader's remark (EXPLAIN_REMOVE_CONTROLLER, 29024). Raises as
        explain()."""
        leader = await self.controller_leader(controller_addr)
        header = ControllerIdRequest(controller_id=controller_id)
        answer = await self.explain(leader, EXPLAIN_REMOVE_CONTROLLER, header, timeout_ms=MEMBERS_TIMEOUT_MS)
        return answer.header, answer.remark

    # one controller; each() calls them for several

    async def controller_config(self, address: str) -> dict[str, str]:
        """Returns the controller's settings as text by key (GET_CONTROLLER_CONFIG, 1010)."""
        return properties_of(
            await self.ask(address, GET_CONTROLLER_CONFIG, Empty(), timeout_ms=CONTROLLER_TIMEOUT_MS)
        )

    async def update_controller_config(self, address: str, key: str, value: str) -> str:
        """Changes one setting (UPDATE_CONTROLLER_CONFIG, 1009). Returns the controller's remark, usually
        empty."""
        body = f"{key}={value}\n".encode()
        return (await self.ask(address, UPDATE_CONTROLLER_CONFIG, UpdateConfigRequest(), body)).remark

    async def export_state(self, controller_addr: str) -> dict[str, Any]:
        """Returns the whole state of the first controller that answers, which may be a follower
        (EXPORT_STATE, 29013)."""
        return dict((await self.ask_any(controller_addr, EXPORT_STATE, Empty())).body)
