"""Should this broker get traffic? Pure.

A healthy slave should: it serves reads, and whoever wants the master asks for the role. So the answer depends
on one peer only: a name server that knows this broker.
"""

from dataclasses import dataclass
from typing import Literal

RoleName = Literal["master", "slave", "none"]


@dataclass(frozen=True, slots=True)
class Standing:
    """`serving`: started and not stopping. `disk_fault`: why the store can write nothing; empty: it can.
    `ha_fault`: why this replica copies nothing; empty: it does. `role_fault`: why it cannot take the role
    that the controllers gave it."""

    serving: bool
    role: RoleName
    name_servers: tuple[str, ...]
    registered: tuple[str, ...]
    disk_fault: str
    ha_fault: str = ""
    role_fault: str = ""


def not_ready(standing: Standing) -> list[str]:
    """The reasons; none: it is ready."""
    if not standing.serving:
        return ["the broker is starting or stopping"]
    reasons = []
    if standing.ha_fault:
        reasons.append(f"replication is stopped: {standing.ha_fault}")
    elif standing.role_fault:
        reasons.append(standing.role_fault)
    elif standing.role == "none":
        reasons.append(
            "no role yet: the controllers have not said who is master, or a role change is under way"
        )
    if not standing.name_servers:
        reasons.append("namesrvAddr is empty: no client can find this broker")
    elif not standing.registered:
        reasons.append(f"not registered with any name server of {';'.join(standing.name_servers)}")
    if standing.disk_fault:
        reasons.append(f"the store cannot write: {standing.disk_fault}")
    return reasons
