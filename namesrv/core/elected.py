"""ElectedMasters: the masters that controllers in this process have elected. Pure.

The name server knows an election before the new master has registered as such, which takes a role change and,
for RocketMQ's brokers, a second. A client that reads the route meanwhile would keep one without a master for
30 s. Fenced by masterEpoch: an older election is ignored, and so is the registration of an older master.
"""

import msgspec
from msgspec.structs import replace

from keelmq.remoting.codes import MASTER_ID
from namesrv.core.values import Elected, Registration


class ElectedMasters(msgspec.Struct):
    """By cluster and brokerName. `version` grows with every change that a route can show."""

    version: int = 0
    _masters: dict[tuple[str, str], Elected] = msgspec.field(default_factory=dict)

    def elect(self, cluster_name: str, broker_name: str, master_addr: str, master_epoch: int) -> bool:
        """Records an election. False: it is known already, or older than what is known."""
        known = self._masters.get((cluster_name, broker_name))
        if known is not None:
            if master_epoch < known.master_epoch:
                return False
            if (known.master_epoch, known.master_addr) == (master_epoch, master_addr):
                return False
        self._masters[cluster_name, broker_name] = Elected(cluster_name, master_addr, master_epoch)
        self.version += 1
        return True

    def forget(self, cluster_name: str, broker_name: str) -> None:
        """The controllers do not know this group any more, or it has no master. Safe to repeat."""
        if self._masters.pop((cluster_name, broker_name), None) is not None:
            self.version += 1

    def unregistered_master(self, cluster_name: str, broker_name: str) -> str | None:
        """Returns the address of the elected master that has not registered as master yet; None: there is
        none."""
        known = self._masters.get((cluster_name, broker_name))
        return None if known is None or known.is_registered else known.master_addr

    def refuses(self, request: Registration) -> Elected | None:
        """Returns the election that makes a registration stale; None: it is accepted.

        A stateVersion of 0 is not of controller mode: a group may have left it.
        """
        known = self._masters.get((request.cluster_name, request.broker_name))
        epoch = request.body.data_version.state_version
        if known is None or request.broker_id != MASTER_ID or request.broker_addr == known.master_addr:
            return None
        return known if 0 < epoch < known.master_epoch else None

    def registered(self, request: Registration) -> None:
        """A registration was accepted: a master's registration supersedes the recorded election."""
        key = request.cluster_name, request.broker_name
        known = self._masters.get(key)
        if known is None or known.is_registered or request.broker_id != MASTER_ID:
            return
        epoch = request.body.data_version.state_version
        if epoch >= known.master_epoch or not epoch:
            self._masters[key] = replace(known, is_registered=True)
            self.version += 1
