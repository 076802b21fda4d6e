"""ListenersConfig: the key `listeners`, for every program whose clients may be outside (docs/adr/0077)."""

from collections.abc import Mapping

from pydantic import Field, field_validator

from keelmq.remoting.address_text import ANY_ADDRESS, parse_listeners, split_address
from keelmq.runtime.config import Config


class ListenersConfig(Config):
    """Base of the configuration of brokers and name servers."""

    listeners: str = Field(
        "",
        description="further ports for clients, NAME://HOST:PORT;NAME://HOST:PORT, with the interfaces to "
        "bind; clients of each see the brokers' advertisedListeners of the same name (ours)",
    )

    @field_validator("listeners")
    @classmethod
    def _well_formed(cls, text: str) -> str:
        parse_listeners(text)
        return text

    @property
    def further_listeners(self) -> dict[str, tuple[str, int]]:
        """Name, and host and port to bind, of each listener but `internal`."""
        return {name: split_address(address) for name, address in parse_listeners(self.listeners).items()}

    def check_listener_ports(self, others: Mapping[str, tuple[str, int]]) -> None:
        """Raises ValueError if a listener has the port of another one, or one of others: key -> host and
        port, 0 for none."""
        taken = {key: at for key, at in others.items() if at[1]}
        for name, at in self.further_listeners.items():
            for key, other in taken.items():
                if at[1] == other[1] and (at[0] == other[0] or not {at[0], other[0]}.isdisjoint(ANY_ADDRESS)):
                    raise ValueError(f"listeners: {name} has port {at[1]}, which is that of {key}")
            taken[f"listener {name}"] = at
