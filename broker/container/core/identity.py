"""The identity of a broker: cluster, group and broker id, and the names that are made of them.

Source: RocketMQ 5.3.3 BrokerIdentity.
"""

from typing import NamedTuple

NOT_APPLIED = -1
"""brokerId of a broker in controller mode whose id the controllers have not given yet."""


class BrokerIdentity(NamedTuple):
    """A broker of a container. broker_id: as configured; in controller mode always NOT_APPLIED, regardless of
    the controllers' id, so that the key of a broker never changes. Then a container can have only one replica
    of a group, as it should: two copies in one process are lost together."""

    cluster: str
    name: str
    broker_id: int

    @property
    def canonical_name(self) -> str:
        """<cluster>_<name>_<id>, as RocketMQ names it in logs, without the id before there is one."""
        return canonical_name(self.cluster, self.name, self.broker_id)


def canonical_name(cluster: str, name: str, broker_id: int) -> str:
    """Returns the name for logs, directories and metrics."""
    return f"{cluster}_{name}" if broker_id == NOT_APPLIED else f"{cluster}_{name}_{broker_id}"
