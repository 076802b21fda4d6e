"""All attacks: importing the modules declares them."""

from tests.attacks import (
    clients,
    code,
    container,
    container_files,
    escalate,
    flood,
    guess,
    ha_port,
    http_ports,
    known,
    log,
    mismatch,
    names,
    replay,
    replica,
    tls,
    topic,
)
from tests.attacks.model import ATTACKS, GROUPS, in_order

MODULES = (
    clients,
    code,
    container,
    container_files,
    escalate,
    flood,
    guess,
    ha_port,
    http_ports,
    known,
    log,
    mismatch,
    names,
    replay,
    replica,
    tls,
    topic,
)

__all__ = ["ATTACKS", "GROUPS", "MODULES", "in_order"]
