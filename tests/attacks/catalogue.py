"""All attacks: importing the modules declares them."""

from importlib import import_module

from tests.attacks.model import ATTACKS, GROUPS, in_order

MODULES = [
    import_module(f"tests.attacks.{name}")
    for name in (
        *(
            "clients",
            "code",
            "container",
            "container_files",
            "escalate",
            "flood",
            "grpc_port",
            "guess",
            "ha_port",
            "http_ports",
        ),
        *("known", "log", "mismatch", "names", "replay", "replica", "tls", "topic"),
    )
]

__all__ = ["ATTACKS", "GROUPS", "MODULES", "in_order"]
