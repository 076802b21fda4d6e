"""What name servers, controllers and replicas tell a broker at its own port: 905, 906, 1008.

Nothing of it is believed: anybody may connect there. News of a role only make the broker ask the controllers
at once, instead of with its next poll; who is master is what they answer. Source: RocketMQ 5.3.3
AdminBrokerProcessor.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from remoting.clock import now_ms
from remoting.codes import ResponseCode
from remoting.operation import Call, CommandError, OperationTable, Reply
from remoting.operations.broker_admin import EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo
from remoting.operations.controller import NOTIFY_BROKER_ROLE_CHANGED, NotifyBrokerRoleChangedRequest
from remoting.operations.route import NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeRequest

if TYPE_CHECKING:
    from broker.app import Broker

HINT_PAUSE_MS: Final = 1_000
"""A hint that comes sooner after the last one is not followed: whoever sends it may send thousands."""


class Neighbours:
    def __init__(self, broker: "Broker", *, clock: Callable[[], int] = now_ms) -> None:
        self._broker, self._clock = broker, clock
        self._hinted_ms = -HINT_PAUSE_MS

    def bind(self, table: OperationTable) -> None:
        table.bind(NOTIFY_MIN_BROKER_ID_CHANGE, self.min_id_changed)
        table.bind(EXCHANGE_BROKER_HA_INFO, self.exchange_ha_info)
        if self._broker.controlled is not None:
            table.bind(NOTIFY_BROKER_ROLE_CHANGED, self.role_changed)

    async def min_id_changed(self, header: MinBrokerIdChangeRequest, call: Call) -> Reply:
        """905: a master has come or gone, by what a name server sees. Its sender leaves the name out."""
        if header.broker_name in (None, "", self._broker.config.broker_name):
            self._hint()
        return Reply()

    async def role_changed(self, header: NotifyBrokerRoleChangedRequest, call: Call) -> Reply:
        """1008 of RocketMQ's controllers, which connect to us; ours use the connection that we opened."""
        if header.broker_name in (None, "", self._broker.config.broker_name):
            self._hint()
        return Reply()

    def _hint(self) -> None:
        now, controlled = self._clock(), self._broker.controlled
        if controlled is not None and now - self._hinted_ms >= HINT_PAUSE_MS:
            self._hinted_ms = now
            controlled.poll_now()

    async def exchange_ha_info(self, header: ExchangeHaInfo, call: Call) -> Reply:
        """A master says where it is copied from; a slave nothing."""
        broker = self._broker
        if header.master_ha_address is not None:
            remark = "a broker copies from the master that the controllers name, and without them from nobody"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        if broker.role_name != "master":
            return Reply(ExchangeHaInfo())
        return Reply(
            ExchangeHaInfo(
                master_ha_address=broker.ha_address or None,
                master_flush_offset=broker.store.commit_log.flushed_offset,
                master_address=broker.address,
            )
        )
