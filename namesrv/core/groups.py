"""BrokerGroup: the replicas of one brokerName, in a RouteTable. Pure."""

import msgspec

from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.route import BrokerData
from namesrv.core.values import MinIdChange


class BrokerGroup(msgspec.Struct):
    """All replicas of one brokerName."""

    cluster_name: str
    broker_name: str
    addrs: dict[int, str] = msgspec.field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None
    had_forwarders: bool = False
    """A slave that forwards was registered. The group keeps its alias entries when no such slave is left:
    they lead to the master, and the list of queues does not change."""

    def shown(self) -> tuple[dict[int, str], bool, str | None]:
        """Returns the values that replies show; `addrs` is replaced, never changed in place."""
        return self.addrs, self.enable_acting_master, self.zone_name

    def min_id_change(
        self, before: int | None, *, offline_addr: str | None = None, ha_addr: str | None = None
    ) -> MinIdChange | None:
        """Returns the notification of a changed lowest id; None: unchanged.

        `before`: the lowest id until now; None: the group was empty. A broker whose own registration made it
        the lowest is not notified.
        """
        lowest = min(self.addrs)
        if before is None or lowest == before:
            return None
        itself_too = offline_addr is not None or len(self.addrs) == 1 or lowest > before
        receivers = [addr for each, addr in sorted(self.addrs.items()) if itself_too or each != lowest]
        return MinIdChange(
            self.broker_name, lowest, self.addrs[lowest], tuple(receivers), offline_addr, ha_addr
        )

    def broker_data(self, *, acting_master: bool = False, master_addr: str | None = None) -> BrokerData:
        """`master_addr`: shown as master, whatever is registered as such."""
        addrs = dict(sorted(self.addrs.items()))
        if acting_master:
            addrs = {MASTER_ID: addrs.pop(min(addrs)), **addrs}
        if master_addr is not None:
            slaves = {each: addr for each, addr in addrs.items() if each and addr != master_addr}
            addrs = {MASTER_ID: master_addr, **slaves}
        return BrokerData(
            cluster=self.cluster_name,
            broker_name=self.broker_name,
            broker_addrs=addrs,
            enable_acting_master=self.enable_acting_master,
            zone_name=self.zone_name,
        )
