"""getMetadataInfo (1005): the leader, the members and their addresses, as this controller knows them."""

from collections.abc import Callable

from keelmq.remoting.operation import Call, OperationTable
from keelmq.remoting.operations import controller as wire
from keelmq.runtime.program import installed_version
from namesrv.plugins.controller.raft.api import Replicator
from namesrv.plugins.controller.requests.replies import address_text
from namesrv.plugins.controller.settings import LiveConfig


class MetadataHandler:
    """`http_address()`: of this controller, for other hosts; None: it has no HTTP port."""

    def __init__(
        self, config: LiveConfig, replicator: Replicator, http_address: Callable[[], str | None]
    ) -> None:
        self._config, self._replicator, self._http_address = config, replicator, http_address

    def bind(self, table: OperationTable) -> None:
        """Binds getMetadataInfo (1005)."""
        table.bind(wire.GET_METADATA_INFO, self.get_metadata_info)

    async def get_metadata_info(self, request: object, call: Call) -> wire.ControllerMetadata:
        """Returns this member's own view (1005), even if there is no leader."""
        return self.metadata()

    def metadata(self) -> wire.ControllerMetadata:
        """Returns the reply to 1005."""
        config, replicator = self._config.current, self._replicator
        leader = replicator.self_id if replicator.is_active else replicator.leader_id
        peers = replicator.request_addresses
        leads_at = peers.get(leader or "")
        return wire.ControllerMetadata(
            group=config.controller_d_leger_group,
            controller_leader_id=leader,
            controller_leader_address=None if leads_at is None else address_text(leads_at),
            is_leader=replicator.is_active,
            peers="".join(f"{each}:{address_text(address)};" for each, address in peers.items()),
            http_address=self._http_address(),
            self_id=replicator.self_id,
            raft_address=address_text(config.raft_addresses[config.controller_d_leger_self_id]),
            keelmq_version=installed_version() or None,
        )
