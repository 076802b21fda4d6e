"""The messages between a container's supervisor and a worker: one JSON object in each frame.

    supervisor -> worker   Request (id, deadline, command), Cancel
    worker -> supervisor   Answer (id, result), BrokerFailed, BrokerRestarted

Both ends are of the same version, since the supervisor starts the worker, so an unknown key is an error. No
message contains a secret: the worker reads the configuration itself.
"""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from broker.container.core.identity import BrokerIdentity
from keelmq.remoting.operations.container import InnerBroker, Worker

SHOWN_BYTES = 80

M = TypeVar("M")


class MessageError(Exception):
    """A frame is not a valid message of the other end."""


class Message(BaseModel):
    """Base of all messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Begin(Message):
    """The first command. number: the worker's. The rest is where the configuration comes from, beside the
    environment, which the worker inherits."""

    kind: Literal["begin"] = "begin"
    number: int
    config_path: Path | None
    overrides: dict[str, str]


class Start(Message):
    """BrokerHost.start."""

    kind: Literal["start"] = "start"
    identity: BrokerIdentity
    config_path: Path


class Stop(Message):
    """BrokerHost.stop."""

    kind: Literal["stop"] = "stop"
    identity: BrokerIdentity
    hand_over: bool


class Change(Message):
    """BrokerHost.change."""

    kind: Literal["change"] = "change"
    settings: dict[str, str]


class ListBrokers(Message):
    """BrokerHost.brokers."""

    kind: Literal["brokers"] = "brokers"


class DescribeWorker(Message):
    """BrokerHost.worker."""

    kind: Literal["worker"] = "worker"


class ReadMetrics(Message):
    """BrokerHost.metrics."""

    kind: Literal["metrics"] = "metrics"


class Ping(Message):
    """Asks whether the event loop responds."""

    kind: Literal["ping"] = "ping"


class Leave(Message):
    """BrokerHost.leave."""

    kind: Literal["leave"] = "leave"


class Close(Message):
    """BrokerHost.close; then the worker exits."""

    kind: Literal["close"] = "close"


Command = Begin | Change | Start | Stop | ListBrokers | DescribeWorker | ReadMetrics | Ping | Leave | Close


class Request(Message):
    """deadline_ms: after which the worker abandons and refuses the command."""

    kind: Literal["request"] = "request"
    id: int
    deadline_ms: int = Field(gt=0)
    command: Command = Field(discriminator="kind")


class Cancel(Message):
    """The caller no longer waits for the answer: the worker abandons the command and does not answer."""

    kind: Literal["cancel"] = "cancel"
    id: int


class Done(Message):
    """A command without a result was carried out."""

    kind: Literal["done"] = "done"


class Refused(Message):
    """The command was not carried out. text: BrokerRefused's, for the operator."""

    kind: Literal["refused"] = "refused"
    text: str


class Brokers(Message):
    """The result of ListBrokers."""

    kind: Literal["brokers"] = "brokers"
    brokers: list[InnerBroker]


class WorkerState(Message):
    """The result of DescribeWorker."""

    kind: Literal["worker"] = "worker"
    worker: Worker


class MetricsText(Message):
    """The result of ReadMetrics: Prometheus text. As JSON numbers it would lose infinity and NaN."""

    kind: Literal["metrics"] = "metrics"
    text: str


Result = Done | Refused | Brokers | WorkerState | MetricsText


class Answer(Message):
    """id: the request's."""

    kind: Literal["answer"] = "answer"
    id: int
    result: Result = Field(discriminator="kind")


class BrokerFailed(Message):
    """HostObserver.broker_failed."""

    kind: Literal["broker_failed"] = "broker_failed"
    identity: BrokerIdentity
    reason: str


class BrokerRestarted(Message):
    """HostObserver.broker_restarted."""

    kind: Literal["broker_restarted"] = "broker_restarted"
    identity: BrokerIdentity


FromSupervisor = Request | Cancel
FromWorker = Answer | BrokerFailed | BrokerRestarted
ORDERS = (Begin, Start, Stop, Leave, Close)
"""Commands that were requested; the others are repeated automatically."""

_FROM_SUPERVISOR: TypeAdapter[FromSupervisor] = TypeAdapter(
    Annotated[FromSupervisor, Field(discriminator="kind")]
)
_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(Annotated[FromWorker, Field(discriminator="kind")])


def from_supervisor(payload: bytes) -> FromSupervisor:
    """Returns the message. Raises MessageError."""
    return _parsed(_FROM_SUPERVISOR, payload)


def from_worker(payload: bytes) -> FromWorker:
    """Returns the message. Raises MessageError."""
    return _parsed(_FROM_WORKER, payload)


def _parsed(adapter: TypeAdapter[M], payload: bytes) -> M:
    try:
        return adapter.validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        shown = payload[:SHOWN_BYTES]
        raise MessageError(f"{first['msg']} at {place or 'its start'}: {shown!r}") from None
