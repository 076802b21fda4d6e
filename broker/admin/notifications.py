"""Notifications at the broker's own port: 905 (the smallest broker id has changed) and 906 (HA addresses).
1008, a change of the role, is in controller_mode/role_change_notifications.py.

Their content is not trusted, because any client may connect to that port. A 905 only makes the broker poll
the controllers at once. Source: RocketMQ 5.3.3 AdminBrokerProcessor.
"""

from collections.abc import Callable

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, OperationTable, Reply
from keelmq.remoting.operations.broker_admin import EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo
from keelmq.remoting.operations.route import NOTIFY_MIN_BROKER_ID_CHANGE, MinBrokerIdChangeRequest


class Notifications:
    """Handlers of 905 and 906."""

    def __init__(
        self,
        broker_name: str,
        *,
        hint: Callable[[], None] | None,
        ha_info: Callable[[], ExchangeHaInfo],
    ) -> None:
        """hint: asks the controllers for the role; None: there are none. ha_info: the answer to 906."""
        self._broker_name, self._hint, self._ha_info = broker_name, hint, ha_info

    def bind(self, table: OperationTable) -> None:
        """Binds 905 (NOTIFY_MIN_BROKER_ID_CHANGE) and 906 (EXCHANGE_BROKER_HA_INFO)."""
        table.bind(NOTIFY_MIN_BROKER_ID_CHANGE, self.notify_min_broker_id_change)
        table.bind(EXCHANGE_BROKER_HA_INFO, self.exchange_ha_info)

    async def notify_min_broker_id_change(self, header: MinBrokerIdChangeRequest, call: Call) -> Reply:
        """Treats a 905 as a hint that the role changed. RocketMQ's name servers leave the broker name out."""
        if self._hint is not None and header.broker_name in (None, "", self._broker_name):
            self._hint()
        return Reply()

    async def exchange_ha_info(self, header: ExchangeHaInfo, call: Call) -> Reply:
        """Returns the HA address of a master; a slave's answer is empty (906). Raises CommandError if the
        request sets a master."""
        if header.master_ha_address is not None:
            remark = "a broker copies only from the master that the controllers name"
            raise CommandError(ResponseCode.NO_PERMISSION, remark)
        return Reply(self._ha_info())
