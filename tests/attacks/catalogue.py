"""All attacks: importing the modules declares them."""

from tests.attacks import http_ports, log, replica, topic
from tests.attacks.model import ATTACKS, GROUPS, in_order

__all__ = ["ATTACKS", "GROUPS", "http_ports", "in_order", "log", "replica", "topic"]
