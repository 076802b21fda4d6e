"""The address at which others reach this broker, if brokerIP1 is not set."""

import socket
from typing import Final

from keelmq.remoting.address_text import split_address

LOOPBACK: Final = "127.0.0.1"


def detect_address(bind_address: str, peers: tuple[str, ...]) -> str:
    """Returns the address at which others reach this broker: the bound one, else that of the interface to the
    first peer. A UDP connect sends nothing; it only asks the routing table."""
    if bind_address not in ("", "0.0.0.0", "::"):
        return bind_address
    for peer in (*peers, "192.0.2.1:9"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(split_address(peer))
            except (OSError, ValueError):  # also for an unknown name
                continue
            return str(probe.getsockname()[0])
    return LOOPBACK
