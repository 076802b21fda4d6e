"""All attacks: importing the modules declares them."""

from tests.attacks import code, http_ports, log, replay, replica, tls, topic
from tests.attacks.model import ATTACKS, GROUPS, in_order

__all__ = ["ATTACKS", "GROUPS", "code", "http_ports", "in_order", "log", "replay", "replica", "tls", "topic"]
