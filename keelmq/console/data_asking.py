"""How the routes of the console's data ask the cluster: as the visitor, with errors as statuses.

A read is signed with the visitor's credentials, so the brokers' own permissions apply: a user who may not
read a topic's messages with a client does not see them here.

Imports FastAPI: see keelmq/remoting/servers/http_late.py.
"""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, ParamSpec, TypeVar

from fastapi import Query, Request, Response

from keelmq.client.admin import AdminError
from keelmq.console.access import ConsoleAccess
from keelmq.console.console import Console
from keelmq.console.data.cluster_context import TIMEOUT_MS, ClusterContext, Missing
from keelmq.console.data.recent import Recent
from keelmq.console.data.times import BadCursor
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import BadRequest
from keelmq.remoting.operation import CommandError, Wire
from keelmq.remoting.servers.http_answers import NotFound, NotYet, as_json, problem, refused_as_statuses

P = ParamSpec("P")
T = TypeVar("T")
NAME_MAX = 255
NOT_FOUND = frozenset(
    (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.QUERY_NOT_FOUND)
)

Words = Annotated[str, Query(max_length=NAME_MAX, description="words that the name contains, in any order")]
Offset = Annotated[int, Query(ge=0, le=1_000_000, description="number of results to skip")]
Limit = Annotated[int, Query(ge=1, le=500, description="largest number of results")]


class Asking:
    """Makes the ClusterContext of a request."""

    def __init__(self, console: Console, access: ConsoleAccess) -> None:
        self.console, self.access = console, access

    @asynccontextmanager
    async def context(self, request: Request) -> AsyncIterator[ClusterContext]:
        """Yields the ClusterContext of a read, for the duration of the request."""
        self.console.look()
        name_servers = ";".join(self.console.sources.name_servers())
        if not name_servers:
            raise NotYet("no name server is known yet; try again in some seconds")
        async with self.access.admin_of(request, timeout_ms=TIMEOUT_MS) as admin:
            yield ClusterContext(admin, name_servers)

    async def read(self, request: Request, ask: Callable[[ClusterContext], Awaitable[Wire]]) -> Response:
        """Returns the response with what `ask` returns."""
        async with self.context(request) as context:
            return as_json(await ask(context))

    async def recent(
        self, request: Request, kept: Recent[T], ask: Callable[[ClusterContext], Awaitable[T]]
    ) -> T:
        """Returns an answer of the last seconds to a user with the same password, if no action was carried
        out since; else asks."""

        async def fresh() -> T:
            async with self.context(request) as context:
                return await ask(context)

        credentials = self.access.visitor(request).credentials
        who = None if credentials is None else (credentials.access_key, credentials.secret_key)
        return await kept.get((who, self.console.changes), fresh)


def asked(endpoint: Callable[P, Awaitable[Response]]) -> Callable[P, Awaitable[Response]]:
    """Wraps a GET route: errors of the cluster become responses, besides those of refused_as_statuses()."""

    @functools.wraps(endpoint)
    async def answered(*args: P.args, **kwargs: P.kwargs) -> Response:
        try:
            return await endpoint(*args, **kwargs)
        except Missing as error:
            raise NotFound(str(error)) from None
        except BadCursor as error:
            raise BadRequest(str(error)) from None
        except AdminError as error:
            if error.code is None:
                return problem(504, f"{error.address} does not answer: {error.remark}")
            if error.code in NOT_FOUND:
                raise NotFound(f"{error.address}: {error.remark}") from None
            raise CommandError(error.code, str(error)) from None

    return refused_as_statuses(answered)
