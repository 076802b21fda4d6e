"""The public names of KeelMQ's clients: `from keelmq import Producer, Consumer, Message`.

The names of keelmq.client, and `keelmq.blocking`, which has the same clients without asyncio. Each is
imported at its first use, so brokers and name servers, which import other parts of this package, never load a
client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keelmq import blocking as blocking
    from keelmq.client import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use (PEP 562). Raises AttributeError."""
    if name == "blocking":
        return import_module("keelmq.blocking")
    if name == "__all__":
        return [*import_module("keelmq.client").__all__, "blocking"]
    if name[:1].isupper() and name in (client := import_module("keelmq.client")).__all__:
        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
