"""Whether a broker is ready for traffic, and whether it accepts messages. Pure.

A slave that is in sync is ready: it serves reads, and clients that want the master ask for the role. One
that is not in sync is not ready, so that a rolling update waits for it and a disruption budget does not count
it. Clients find brokers by routes, whether they are ready or not. A master that refuses every message is not
ready, for any reason. admission/send_gate.py decides whether it refuses, for sends as well.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from keelmq.remoting.operations.health import Reason

RoleName = Literal["master", "slave", "none"]
NOT_ASKED = "no registration was sent yet"


class BrokerReadiness(msgspec.Struct, frozen=True):
    """The input of readiness; an empty text means that there is no such fault.

    `registered`: name servers that list this broker; `not_registered`: why the others do not. `serving`:
    started and not stopping. `disk_fault`: why the store cannot write. `ha_fault`: why this replica does not
    copy. `role_fault`: why it cannot take the role that the controllers gave it. `out_of_sync`: why it, a
    slave of a group with controllers, would not be a safe successor. `refusal`: why sends are
    refused. `permits_write`: of brokerPermission; without it, name servers send no producer here. `no_room`:
    why the disk accepts no messages. `log_damage`: which confirmed records are damaged, and which journals of
    offsets a start has found lost; the other records are served, so the broker is ready.
    """

    serving: bool
    role: RoleName
    name_servers: tuple[str, ...]
    registered: tuple[str, ...]
    disk_fault: str
    ha_fault: str = ""
    role_fault: str = ""
    out_of_sync: str = ""
    refusal: str = ""
    permits_write: bool = True
    not_registered: Mapping[str, str] = msgspec.field(default_factory=dict)
    log_damage: str = ""
    no_room: str = ""


def not_writable(refusal: str, *, permits_write: bool) -> str:
    """Returns why producers should not send here; empty: messages are accepted. Arguments as in
    BrokerReadiness."""
    if refusal or permits_write:
        return refusal
    return "brokerPermission is without write: routes show producers no queue of this broker"


def not_ready(readiness: BrokerReadiness) -> list[Reason]:
    """Returns the reasons why the broker is not ready; empty: it is."""
    if not readiness.serving:
        return [Reason(reason="the broker is starting or stopping")]
    reasons = []
    if readiness.ha_fault:
        reasons.append(Reason(reason="replication is stopped", detail=readiness.ha_fault))
    elif readiness.role_fault:
        reasons.append(Reason(reason="cannot take its role", detail=readiness.role_fault))
    elif readiness.role == "none":
        detail = "the controllers have not said who is master, or a role change is in progress"
        reasons.append(Reason(reason="no role yet", detail=detail))
    elif readiness.out_of_sync:
        reasons.append(Reason(reason="not in sync with the master", detail=readiness.out_of_sync))
    if not readiness.name_servers:
        reasons.append(Reason(reason="namesrvAddr is empty", detail="no client can find this broker"))
    elif not readiness.registered:
        problems = readiness.not_registered
        whys = [f"{address}: {problems.get(address, NOT_ASKED)}" for address in readiness.name_servers]
        detail = f"it is in no route; {'; '.join(whys)}"
        reasons.append(Reason(reason="not registered with any name server", detail=detail))
    if readiness.disk_fault:
        reasons.append(Reason(reason="the store cannot write", detail=readiness.disk_fault))
    elif readiness.role == "master" and readiness.refusal:
        reasons.append(Reason(reason="the master refuses messages", detail=readiness.refusal))
    return reasons
