"""Action: something that an operator does from the console. It is previewed first and carried out on request.

An action's requests are signed with the credentials of the user who asked for it, so that the servers check
and audit that user. A preview queries the servers as well, and changes nothing.
"""

import shlex
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, cast

import msgspec
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from keelmq.client.admin import AdminClient, AdminError, gather_some
from keelmq.console.data.servers import find_group
from keelmq.health.status import ClusterStatus, GroupStatus
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Role, Wire
from keelmq.remoting.servers.http_answers import NotFound


class Parameters(Wire):
    """Base of the parameters of actions: an unknown field is refused, since a misspelled one could change the
    meaning of an action."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        str_strip_whitespace=True,
    )


P = TypeVar("P", bound=Parameters)
T = TypeVar("T")


class Preview(Wire):
    """What an action would do. is_possible false: it would be refused now; the warnings say why.
    type_to_confirm: a text that the page asks its user to type first; empty: a click is enough."""

    what: str = Field(description="what happens, in a sentence or two")
    servers: list[str] = Field(default_factory=list, description="the servers that are asked to change")
    warnings: list[str] = Field(default_factory=list, description="what may be lost or break")
    command: str = Field(default="", description="the line for a terminal that does the same")
    is_possible: bool = True
    type_to_confirm: str = ""
    details: dict[str, Any] = Field(default_factory=dict, description="by action, such as an explanation")


class ServerOutcome(Wire):
    """What one server answered. outcome: "ok"; "refused" (the server did nothing); "silent" (not reached, so
    nothing was done there); "unknown" (it may have been done: look, then repeat)."""

    server: str
    outcome: str
    code: int | None = None
    remark: str = ""


class Acting(msgspec.Struct, frozen=True):
    """What an action works with. `admin`: signs as the user. `status`: the newest; None: there is none yet.
    `user` "": no user is logged in."""

    admin: AdminClient
    name_servers: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    status: ClusterStatus | None = None
    user: str = ""

    def group(self, cluster: str, broker_name: str) -> GroupStatus:
        """Returns a group of the newest status. Raises NotFound, with the existing groups."""
        if self.status is None:
            raise NotFound("no group is known yet; try again in some seconds")
        return find_group(self.status, cluster, broker_name)

    @property
    def controller_list(self) -> str:
        """The controllers as an option of mqadmin. Raises NotFound: none is known."""
        if not self.controllers:
            raise NotFound("no controller is known: give them with -a, or wait until a broker tells of them")
        return ";".join(self.controllers)

    @property
    def name_server_list(self) -> str:
        """The name servers as an option of mqadmin."""
        return ";".join(self.name_servers)


class Action(msgspec.Struct, Generic[P], frozen=True):
    """`code`: RocketMQ's request code of the change, for the audit log, and `fields`: of its header, besides
    the parameters. `example`: parameters that fit."""

    name: str
    title: str
    description: str
    parameters: type[P]
    role: Role
    code: int
    preview: Callable[[Acting, P], Awaitable[Preview]]
    run: Callable[[Acting, P], Awaitable[list[ServerOutcome]]]
    example: Mapping[str, Any] = msgspec.field(default_factory=dict)
    fields: Mapping[str, str] = msgspec.field(default_factory=dict)


async def outcome_of(server: str, asked: Awaitable[object]) -> ServerOutcome:
    """Awaits a request of AdminClient and returns its outcome. A text that it returns is the remark."""
    try:
        answer = await asked
    except AdminError as error:
        kind = "unknown" if error.unknown else "silent" if error.code is None else "refused"
        code = f"{error.code_name}: " if error.code_name else ""
        return ServerOutcome(server=server, outcome=kind, code=error.code, remark=f"{code}{error.remark}")
    return ServerOutcome(
        server=server, outcome="ok", code=0, remark=answer if isinstance(answer, str) else ""
    )


class Explained(msgspec.Struct, Generic[T], frozen=True):
    """What an action would do, as servers report it. is_possible False: all of them would refuse it. A server
    that cannot say, or does not answer, may accept it."""

    answers: dict[str, T]
    warnings: list[str]
    is_possible: bool
    asked: int

    def is_nowhere(self, is_there: Callable[[T], bool]) -> bool:
        """Returns whether every server answered, and none has what the action is about: one that
        cannot say may have it."""
        answers = self.answers.values()
        return bool(answers) and len(answers) == self.asked and not any(map(is_there, answers))


async def explained_at(servers: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> Explained[T]:
    """Asks servers what an action would do; `ask`: an explain_ method of AdminClient."""

    async def one(server: str) -> tuple[str, T | None, AdminError | None]:
        try:
            return server, await ask(server), None
        except AdminError as error:
            return server, None, error

    outcomes = await gather_some(one(each) for each in servers)
    by_server = {server: answer for server, answer, error in outcomes if error is None}
    warnings, is_possible = [], bool(by_server)
    for _, _, error in outcomes:
        if error is None:
            continue
        is_known = error.code not in (None, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        warnings.append(f"{error.address}: {'it would be refused: ' if is_known else ''}{error.remark}")
        is_possible |= not is_known
    return Explained(cast(dict[str, T], by_server), warnings, is_possible, len(outcomes))


async def at_each(servers: Iterable[str], ask: Callable[[str], Awaitable[object]]) -> list[ServerOutcome]:
    """Sends a request to several servers at once."""
    return await gather_some(outcome_of(each, ask(each)) for each in servers)


def command_line(*parts: object, value: str | None = None) -> str:
    """Returns a line for a terminal; parts are quoted where that is needed, and those that are None or empty
    are left out together with the option before them. value: of the option at the end, which may be empty."""
    texts: list[str] = []
    for part in parts:
        if part is None or part == "":
            if texts and texts[-1].startswith("-"):
                texts.pop()
            continue
        texts.append(shlex.quote(str(part)))
    if value is not None:
        texts.append(shlex.quote(value))
    return " ".join(texts)
