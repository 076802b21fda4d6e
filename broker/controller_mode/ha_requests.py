"""Handlers of 1007 (epochs) and 907 (HA status) of a broker in controller mode."""

from collections.abc import Callable

from broker.core.role import Role
from broker.ha.report import runtime_info
from broker.ha.service import HaService
from keelmq.remoting.operation import Call, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import (
    GET_BROKER_EPOCH_CACHE,
    GET_BROKER_HA_STATUS,
    BrokerNameOptionalRequest,
    EpochEntryBody,
    EpochEntryCache,
)


class HaRequests:
    """Handlers that read the HA service."""

    def __init__(
        self, ha: HaService, *, role: Callable[[], Role], cluster_name: str, broker_name: str
    ) -> None:
        self._ha, self._role = ha, role
        self._cluster_name, self._broker_name = cluster_name, broker_name

    def bind(self, table: OperationTable) -> None:
        """Binds 1007 (GET_BROKER_EPOCH_CACHE) and 907 (GET_BROKER_HA_STATUS)."""
        table.bind(GET_BROKER_EPOCH_CACHE, self.get_broker_epoch)
        table.bind(GET_BROKER_HA_STATUS, self.get_broker_ha_status)

    async def get_broker_ha_status(self, request: Empty, call: Call) -> Reply:
        """Returns the state of each HA connection (907)."""
        return Reply(body=runtime_info(self._ha))

    async def get_broker_epoch(self, request: BrokerNameOptionalRequest, call: Call) -> Reply:
        """Returns the epochs of this broker's log with their start and end offsets (1007)."""
        entries = [
            EpochEntryBody(epoch=entry.epoch, start_offset=entry.start_offset, end_offset=entry.end_offset)
            for entry in self._ha.epochs
        ]
        return Reply(
            body=EpochEntryCache(
                cluster_name=self._cluster_name,
                broker_name=self._broker_name,
                broker_id=self._role().broker_id,
                epoch_list=entries,
                max_offset=self._ha.store.commit_log.max_offset,
            )
        )
