"""GET /v1/console/topics, consumers, producers, users and audit. messages_api.py: messages and traces.

Imports FastAPI: see keelmq/remoting/servers/http_late.py.
"""

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from keelmq.console.data import audit, consumers, producers, topics, users
from keelmq.console.data.cluster_context import Every
from keelmq.console.data.examples import ACCESS, AUDIT, GROUP, GROUPS, PRODUCERS, RUNNING_INFO, TOPIC, TOPICS
from keelmq.console.data.producers import ProducerRow
from keelmq.console.data.recent import Recent
from keelmq.console.data.topics import TopicKind, TopicRow
from keelmq.console.data_asking import NAME_MAX, Asking, Limit, Offset, Words, asked
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_answers import NOT_HERE, as_json, shown
from keelmq.remoting.servers.http_call import needs
from keelmq.security.audit.reader import AuditFilter

TopicName = Annotated[
    str, Path(min_length=1, max_length=NAME_MAX, description="a topic", examples=["orders"])
]
GroupName = Annotated[
    str, Path(min_length=1, max_length=NAME_MAX, description="a consumer group", examples=["billing"])
]
ISO = r"^(\d{4}-\d{2}-\d{2}T[0-9:.]{5,12}Z)?$"


def data_router(asking: Asking) -> APIRouter:
    """Returns the router of topics, consumer groups, producers, users and the audit log."""
    router = APIRouter(prefix="/v1/console", tags=["console"])
    _add_topics(router, asking)
    _add_consumers(router, asking)
    _add_producers(router, asking)
    _add_access(router, asking)
    return router


def _add_topics(router: APIRouter, asking: Asking) -> None:
    recent = Recent[Every[TopicRow]]()

    @router.get(
        "/topics",
        summary="topics with their kinds, filtered and in pages",
        description="Brokers are queried at most every 5 s. `kind` may be given several times.",
        **shown(TOPICS),
    )
    @asked
    async def all_topics(
        request: Request,
        q: Words = "",
        kind: Annotated[list[TopicKind] | None, Query(max_length=8, description="only these kinds")] = None,
        offset: Offset = 0,
        limit: Limit = 100,
    ) -> Response:
        every = await asking.recent(request, recent, topics.all_topics)
        return as_json(topics.page_of(every, words=q, kinds=set(kind or ()), offset=offset, limit=limit))

    @router.get(
        "/topics/{topic}",
        summary="a topic: its settings, queues and consumer groups at each broker",
        **shown(TOPIC, NOT_HERE),
    )
    @asked
    async def one_topic(request: Request, topic: TopicName) -> Response:
        return await asking.read(request, lambda context: topics.topic(context, topic))


def _add_consumers(router: APIRouter, asking: Asking) -> None:
    recent = Recent[consumers.AllGroups]()

    @router.get(
        "/consumers",
        summary="consumer groups with their lag, filtered and in pages",
        description="Brokers are queried at most every 5 s; members only for the groups of the page.",
        **shown(GROUPS),
    )
    @asked
    async def all_groups(
        request: Request,
        q: Words = "",
        kind: Annotated[
            Literal["", "normal", "fifo", "system"], Query(description="only these; empty: all")
        ] = "",
        sort: Annotated[Literal["name", "lag"], Query(description="lag: the largest first")] = "lag",
        offset: Offset = 0,
        limit: Limit = 100,
    ) -> Response:
        every = await asking.recent(request, recent, consumers.all_groups)
        return await asking.read(
            request,
            lambda context: consumers.page_of(
                context, every, words=q, kind=kind, sort=sort, offset=offset, limit=limit
            ),
        )

    @router.get(
        "/consumers/{group}",
        summary="a consumer group: its lag in each queue, members, subscriptions and settings",
        description="`clients`: members are asked which queues they have.",
        **shown(GROUP, NOT_HERE),
    )
    @asked
    async def one_group(
        request: Request,
        group: GroupName,
        clients: Annotated[bool, Query(description="ask members for their queues")] = True,
    ) -> Response:
        return await asking.read(
            request, lambda context: consumers.group(context, group, with_clients=clients)
        )

    @router.get(
        "/consumers/{group}/client",
        summary="the running information of a member of a group",
        **shown(RUNNING_INFO, NOT_HERE),
    )
    @asked
    async def client(
        request: Request,
        group: GroupName,
        client_id: Annotated[
            str,
            Query(
                alias="id",
                min_length=1,
                max_length=NAME_MAX,
                description="the member's client id",
                examples=["10.0.0.7@1"],
            ),
        ],
        threads: Annotated[bool, Query(description="include the stacks of the member's threads")] = False,
    ) -> Response:
        return await asking.read(
            request, lambda context: consumers.running_info(context, group, client_id, threads=threads)
        )


def _add_producers(router: APIRouter, asking: Asking) -> None:
    recent = Recent[Every[ProducerRow]]()

    @router.get(
        "/producers",
        summary="connected producers by group, filtered and in pages",
        **shown(PRODUCERS),
    )
    @asked
    async def all_producers(
        request: Request, q: Words = "", offset: Offset = 0, limit: Limit = 100
    ) -> Response:
        every = await asking.recent(request, recent, producers.all_producers)
        return as_json(producers.page_of(every, words=q, offset=offset, limit=limit))


def _add_access(router: APIRouter, asking: Asking) -> None:
    @router.get(
        "/users",
        summary="users and access control lists, without passwords",
        description="Those whose names contain `q`, over the masters of all clusters.",
        responses=shown(ACCESS)["responses"],
        openapi_extra=needs(Role.ADMINISTER),
    )
    @asked
    async def access(
        request: Request,
        q: Annotated[str, Query(max_length=NAME_MAX, description="a part of the names")] = "",
    ) -> Response:
        return await asking.read(request, lambda context: users.access(context, q))

    @router.get(
        "/audit",
        summary="the newest lines of this program's audit log",
        description="A page reads 32 MiB of the files at most.",
        responses=shown(AUDIT)["responses"],
        openapi_extra=needs(Role.ADMINISTER),
    )
    @asked
    async def audit_log(
        user: Annotated[str, Query(max_length=NAME_MAX, description="requests of this user")] = "",
        operation: Annotated[
            str, Query(max_length=NAME_MAX, description="a part of the request's name")
        ] = "",
        topic: Annotated[str, Query(max_length=NAME_MAX, description="requests about this topic")] = "",
        resource: Annotated[
            str, Query(max_length=NAME_MAX, description="a part of any name in the request")
        ] = "",
        outcome: Annotated[
            list[Literal["ok", "refused", "failed", "unknown"]] | None, Query(description="only these")
        ] = None,
        since: Annotated[str, Query(pattern=ISO, description="UTC, such as 2026-03-01T12:00:00Z")] = "",
        before: Annotated[str, Query(pattern=ISO, description="`next` of the previous page")] = "",
        limit: Limit = 100,
    ) -> Response:
        audit_filter = AuditFilter(
            since=since,
            until=before,
            user=user,
            operation=operation,
            topic=topic,
            resource=resource,
            outcomes=frozenset(outcome or ()),
        )
        directory = asking.console.sources.audit_directory()
        return as_json(await asyncio.to_thread(audit.read, directory, audit_filter, limit))
