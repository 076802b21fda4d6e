"""Operation: the definition of one request code, read by every server, client and command line.

Knows no socket and no server. A handler gets a typed request and a Call, and returns a Reply or raises
CommandError; servers/tcp.py turns both into bytes, servers/http.py into HTTP.
"""

import copy
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any, Final, Generic, NamedTuple, Protocol

import msgspec
import pydantic.main
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema
from typing_extensions import TypeVar

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.turn_requests import Frames, ReadRequests, TurnRequests

BUILDS_UNDER_A_LOCK: Final = hasattr(pydantic.main, "_rebuild_lock")  # since 2.14
"""Two threads may use a model for the first time at once, as blocking clients do. With an older pydantic, all
validators are built at the import."""


_COLLECTIONS: Final = ("dict", "frozenset", "list", "set", "tuple")
_NOT_SCHEMAS: Final = ("default", "metadata", "serialization")


def first_error_only(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Lets lists and maps of a type end at their first wrong item (a hook of pydantic's, for each model and
    each type around models). All errors of a body as large as a frame would take gigabytes and a minute."""
    schema = handler(source)
    nodes: list[Any] = [handler.resolve_ref_schema(schema)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            if node.get("type") in _COLLECTIONS:
                node["fail_fast"] = True
            nodes += [part for name, part in node.items() if name not in _NOT_SCHEMAS]
        elif isinstance(node, (list, tuple)):
            nodes += node
    return schema


class Wire(BaseModel):
    """Base of all models on the wire: snake_case here, camelCase there; unknown fields are ignored, known
    ones checked, and "7" is accepted for 7. The validator of a direct subclass is built when it is first
    used, if BUILDS_UNDER_A_LOCK: a program uses a few of the 250 models, and all of them together take a
    tenth of its start."""

    model_config = ConfigDict(
        alias_generator=cache(to_camel),  # the models have a thousand fields, and few names
        populate_by_name=True,
        frozen=True,
        extra="ignore",
        defer_build=BUILDS_UNDER_A_LOCK,
        # A body may have a password in it, and an error's text may be logged.
        hide_input_in_errors=True,
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return first_error_only(source, handler)

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Ends defer_build where it has done its work: FastAPI takes it for its own validators, too, and then
        it has no schema."""
        cls.model_config["defer_build"] = False


def build_validators(*models: type[Wire]) -> None:
    """Builds what would be built at the first use, 1 ms for a large model: for a use that must not wait."""
    for model in models:
        model.model_rebuild()


class Empty(Wire):
    """A header without fields."""


Req = TypeVar("Req", bound=Wire, default=Empty)
Resp = TypeVar("Resp", bound=Wire, default=Empty)


class Operation(msgspec.Struct, Generic[Req, Resp], frozen=True):
    """One request code. `request` and `response` are the header models (extFields); `request_body` and
    `response_body` are JSON body models, bytes for a raw body, None for no body."""

    code: int
    name: str
    request: type[Req] = Empty  # type: ignore[assignment]
    response: type[Resp] = Empty  # type: ignore[assignment]
    request_body: Any = None
    response_body: Any = None
    oneway: bool = False
    body_is_json: bool = False
    """The raw response body is JSON in fastjson's notation (queue_map.py): over HTTP it is standard JSON."""


class CommandError(Exception):
    """The request was understood and refused. It becomes a response with this code; the connection stays
    open."""

    def __init__(self, code: int, remark: str, header: Wire | None = None, body: object = None) -> None:
        super().__init__(f"{code}: {remark}")
        self.code, self.remark, self.header, self.body = int(code), remark, header, body


class UnknownOutcome(CommandError):
    """The request may or may not have been carried out, and is safe to repeat. Over TCP an error response,
    over HTTP a 504."""


class RemoteProtocolError(Exception):
    """The peer violates the protocol: its connection is closed with one log line."""


class LocalProtocolError(Exception):
    """Our own code violates the protocol: a bug."""


class FrameTooLarge(LocalProtocolError):
    """The command does not fit into a frame."""

    def __init__(self, frame_bytes: int, bytes_max: int) -> None:
        super().__init__(f"frame of {frame_bytes} bytes; {bytes_max} is the limit")


class Peer(Protocol):
    """The other end of a connection, as handlers see it."""

    @property
    def connection_id(self) -> int:
        """Returns a number that is unique in this process and never reused; 0 for HTTP requests."""

    @property
    def address(self) -> str:
        """Returns "host:port" as seen on the socket."""

    @property
    def is_tls(self) -> bool:
        """Returns whether the connection is encrypted."""

    @property
    def certificate_names(self) -> tuple[str, ...]:
        """Returns the DNS names, URIs and CN of the peer's certificate; () unless one was verified."""

    def is_closing(self) -> bool:
        """Returns whether nothing can be sent any more."""

    def send(self, frame: bytes) -> bool:
        """Queues an encoded frame (a pushed request or late reply). False: closing, nothing was sent."""


class RememberingPeer(Peer, Protocol):
    """A Peer that keeps what an Access remembers of its requests, for as long as it is connected."""

    known_requests: Any

    @property
    def is_admitted(self) -> bool:
        """Returns whether the access check has let a request pass, or whether there is no check."""


class Role(IntEnum):
    """What kind of request it is; a higher one includes the lower ones."""

    READ = 1
    OPERATE = 2
    """Changes messages, topics, groups or offsets."""
    ADMINISTER = 3
    """Changes members, users, configuration or what is kept at all."""


Changes = dict[str, tuple[object, object]]
"""What a request has changed: name -> (old value, new value). No secrets."""


class Caller:
    """Who sends a request, as far as the server checks it. This base class: nothing was checked, everything
    is allowed."""

    user: str = ""
    """Name of the user or of the certificate; "": nothing was checked."""
    is_member: bool = False
    """Whether it is a member of this cluster: a broker, a name server or a controller."""

    checks_topics: bool = False
    """Whether check_topic() may refuse anything: handlers find the topic first then."""

    def check_topic(self, topic: str) -> None:
        """Called by handlers of requests that do not name their topic (code 37, views by offset), before
        they act or answer. Raises CommandError if the caller has no right to it."""

    def may_publish(self, topic: str) -> bool:
        """Whether the caller may send to this topic now."""
        return True


ANYBODY = Caller()


class Request(Protocol):
    """What a check reads of a request, before it is decoded any further."""

    @property
    def code(self) -> int: ...

    @property
    def version(self) -> int: ...

    @property
    def ext_fields(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> bytes: ...


class Access(Protocol):
    """Who may send a request. A server without one serves all requests. keelmq/security implements it; here
    are only interfaces, so that remoting knows no user, signature or ACL."""

    def admit(self, request: Request, peer: Peer) -> Caller:
        """Returns who sends the request; called before its header is parsed. Raises CommandError if they may
        not, or are not who they claim to be."""
        ...

    def is_open(self, code: int) -> bool:
        """Whether requests of the data path with this code need no check, now and later."""
        return False

    def remember(self, request: Request, peer: RememberingPeer, caller: Caller) -> None:
        """Called with a request of the data path that admit() has just admitted."""

    def admit_again(self, code: int, header: bytes, body: bytes, peer: RememberingPeer) -> bool:
        """Whether a request of the data path is like one that was admitted on this connection. header: JSON.
        False: not known, so admit() decides. Has no effect, since it may be followed by admit()."""
        return False

    def admit_first(self, code: int, frames: Frames, peer: RememberingPeer) -> int:
        """How many requests of one read, from the first one on, admit_again() admits. frames: as
        whole_frames() returns them, with JSON headers."""
        return 0


OUTCOME_UNKNOWN = -1
"""The code that an audit gets for a request whose outcome is unknown."""


class Audit(Protocol):
    """Records administrative requests, with their outcome."""

    def wants(self, code: int) -> bool:
        """Whether requests of this code are recorded. Those that are answered NO_PERMISSION are recorded
        without this question."""
        ...

    def record(
        self, request: Request, peer: Peer, caller: Caller, *, code: int, remark: str, changes: Changes
    ) -> None:
        """Records a request that was answered with this code and remark; never blocks, never raises."""
        ...

    def refused(self, what: str, *, address: str, is_tls: bool, remark: str) -> None:
        """Records a refusal of something without a request code, such as an HTTP page; never blocks, never
        raises."""
        ...


class Call(msgspec.Struct, frozen=True):
    """The parts of a request that a handler may need besides its typed header."""

    peer: Peer
    body: Any = None  # decoded per Operation.request_body
    version: int = 0  # sender's release ordinal
    ext_fields: Mapping[str, str] = msgspec.field(default_factory=dict)
    raw_body: bytes = b""
    opaque: int = 0
    is_oneway: bool = False  # the caller expects no response
    language: str = "JAVA"  # sender's, by the name in codes.LanguageCode
    caller: Caller = ANYBODY
    # handlers of administrative requests fill it, for Audit
    changes: Changes = msgspec.field(default_factory=dict)

    def for_later(self) -> "Call":
        """Returns what a handler keeps of a request that waits. Thousands may wait, and the body and the ext
        fields of each may be as large as a frame."""
        return Call(self.peer, opaque=self.opaque)


class Reply(msgspec.Struct, frozen=True):
    """Response header, body and code. `body`: bytes unchanged, a model or a JSON value, or None."""

    header: Wire | None = None
    body: object = None
    code: int = ResponseCode.SUCCESS
    remark: str | None = None


Handler = Callable[[Any, Call], Awaitable[Reply | Wire | None]]
"""Coroutine handler. None: no response at all (oneway, or answered later through call.peer.send)."""

FastPathHandler = Callable[[Any, bytes, Peer], bytes | None]
"""Data-path handler, called synchronously inside the read: (decoded command, body, connection) -> a whole
response frame, or None if it responds later through connection.send()."""


FAST_PATH_CODE_MAX: Final = 999


class Batched(NamedTuple):
    """How requests of one read are served together. serve: (these requests, connection) -> how many it has
    served, from the first one on, and their responses in one piece. FastPathHandler gets the others. `turn`:
    for those of many connections."""

    read: ReadRequests
    serve: Callable[[list[Any], Peer], tuple[int, bytes]]
    turn: TurnRequests | None = None


class FastPath(msgspec.Struct, frozen=True):
    """A fast-path binding. A typed decoder decodes a JSON header to `command_type` in one step; `lenient`
    makes the same object from (code, opaque, flag, extFields) for headers that the typed decoder refuses.
    `batched`: for reads with many requests."""

    command_type: Any
    lenient: Callable[[int, int, int, Mapping[str, str]], Any]
    handler: FastPathHandler
    batched: Batched | None = None


class OperationTable:
    """The handler of each Operation. Servers read it; bind everything before a server starts."""

    def __init__(self) -> None:
        self.handlers: dict[int, tuple[Operation[Any, Any], Handler]] = {}
        self.fast_path: dict[int, FastPath] = {}
        self.access: Access | None = None
        """None: all requests are served. Set before a server is made of the table."""
        self.audit: Audit | None = None
        self.unsupported: dict[int, str] = {}
        """Code -> the remark of its response, with code 3. Codes that are neither bound nor listed here are
        unknown."""

    def with_access(self, access: Access | None) -> "OperationTable":
        """Returns the same operations, and those that are bound later, with another check."""
        table = copy.copy(self)
        table.access = access
        return table

    def bind(self, operation: Operation[Any, Any], handler: Handler) -> None:
        """Binds a coroutine handler. LocalProtocolError: the code is bound already."""
        if operation.code in self.handlers or operation.code in self.fast_path:
            raise LocalProtocolError(f"code {operation.code} is bound twice")
        self.handlers[operation.code] = (operation, handler)

    def bind_fast_path(self, code: int, fast_path: FastPath) -> None:
        """Binds a data-path handler. LocalProtocolError: the code is bound already, or has more than 3
        digits: the first bytes of a header, which select the handler, would be those of other codes, too."""
        if code > FAST_PATH_CODE_MAX:
            raise LocalProtocolError(f"code {code} is above {FAST_PATH_CODE_MAX}: no fast path")
        if code in self.handlers or code in self.fast_path:
            raise LocalProtocolError(f"code {code} is bound twice")
        self.fast_path[code] = fast_path


@dataclass(frozen=True, slots=True)
class Ok(Generic[Resp]):
    """The response has code 0 (or a code that the caller listed as good)."""

    header: Resp
    body: Any = None
    code: int = 0
    remark: str = field(default="", compare=False)  # for people, not for programs


class Failed(msgspec.Struct, frozen=True):
    """Surely not carried out: refused by the peer, or never sent (code RPC_SEND_TO_CHANNEL_FAILED)."""

    code: int
    remark: str
    header: Any = None
    body: Any = None


class Unknown(msgspec.Struct, frozen=True):
    """May or may not have been carried out: a timeout, or the connection was lost after the request was
    sent."""

    remark: str


Outcome = Ok[Resp] | Failed | Unknown


def in_short(outcome: Failed | Unknown) -> str:
    """Returns the outcome as one log line."""
    if isinstance(outcome, Unknown) or outcome.code == ResponseCode.RPC_SEND_TO_CHANNEL_FAILED:
        return outcome.remark
    wrong_server = outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return f"{outcome.remark.strip()} (code {outcome.code}){'; is the port right?' if wrong_server else ''}"
