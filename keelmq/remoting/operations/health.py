"""What a program reports about itself: whether it can get traffic, why not, and what it knows of its parts.

/readyz shows `ready` and the short reasons to everybody; GET /v1/health shows all of it to whoever may read.
"""

from typing import Any, Final, Self

from pydantic import Field

from keelmq.remoting.operation import Wire

NO_ROOM: Final = ("the disk is full", "the log cannot grow")
"""How `notWritable` of a broker begins while its disk has no room for messages."""
CANNOT_WRITE: Final = "cannot write here"
"""How the fault of a slave begins that copies nothing because its disk failed."""


class Reason(Wire):
    """One check that failed."""

    reason: str = Field(description="what is wrong, without addresses, paths and texts of errors")
    detail: str = Field(default="", description="where, and the error itself; empty: the reason says it all")

    def __str__(self) -> str:
        """Returns both, for people who may see them."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Health(Wire):
    """The state of one program."""

    ready: bool = Field(description="whether it can get traffic, as /readyz answers")
    reasons: list[Reason] = Field(default=[], description="why it is not ready, one for each failing check")

    @classmethod
    def of(cls, reasons: list[Reason], **facts: object) -> Self:
        """Returns the health of a program that is ready unless there is a reason against it."""
        return cls.model_validate({**facts, "ready": not reasons, "reasons": reasons})


class BrokerRole(Wire):
    """Which role a broker has."""

    role: str = Field(description="master, slave or none")
    broker_name: str = Field(description="the group")
    broker_id: int = Field(description="the permanent one, with controllers")
    master_epoch: int


class BrokerHealth(BrokerRole, Health):
    """The state of one broker."""

    writable: bool = Field(description="whether producers should send here")
    not_writable: str = Field(description="why not; empty: they may")
    registered_with: list[str] = Field(description="name servers that list this broker")
    log_damage: str = Field(
        default="",
        description="records that failed their checksum and are not served, and lost journals of offsets; "
        "empty: there are none",
    )


class ProxyHealth(Health):
    """The state of one proxy. It keeps nothing, so it is ready as long as it serves."""

    address: str = Field(description="host:port for clients that do not say which address they use")
    clients: dict[str, int] = Field(description="type of client -> how many have an open stream")


class RouteCounts(Wire):
    """How much a name server knows."""

    topics: int
    groups: int
    brokers: int


class NamesrvHealth(Health):
    """The state of a name server, a controller, or both in one process."""

    routes: RouteCounts
    plugins: dict[str, dict[str, Any]] = Field(
        description="name of the plugin -> what it tells; of a controller: its log, elections and telemetry"
    )


class ContainerHealth(Health):
    """The state of a container, without its brokers' own: see the operation containerStatus."""

    brokers: dict[str, int] = Field(description="state -> how many brokers are in it")
