"""The progress and the members of a consumer group, over all brokers of a route."""

from typing import Final

from keelmq.client.admin.client import AdminClient
from keelmq.client.admin.groups import GroupProgress
from keelmq.client.admin.places import ask_brokers
from keelmq.client.admin.transport import AdminError, gather_some
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operations.clients import ConsumerConnectionBody
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.remoting.queue_map import QueueKey

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
NOBODY: Final = (ResponseCode.CONSUMER_NOT_ONLINE, ResponseCode.SYSTEM_ERROR)
"""Codes of a broker that has no member of the group."""
OWNERS_MAX: Final = 256
"""Members that are asked which queues they have."""


async def progress_of(
    admin: AdminClient, route: TopicRouteData, group: str, topic: str | None
) -> tuple[GroupProgress, list[AdminError]]:
    """Returns the progress of a group at all brokers of a route together, and the errors of the others."""
    answers, errors = await ask_brokers(
        admin, route, lambda each: admin.groups.consume_stats(each, group, topic)
    )
    queues = {key: row for _, progress in answers for key, row in progress.queues.items()}
    return GroupProgress(queues, sum((progress.tps for _, progress in answers), 0.0)), errors


async def members_of(
    admin: AdminClient, route: TopicRouteData, group: str
) -> tuple[str, ConsumerConnectionBody | None, list[AdminError]]:
    """Returns address, members and errors, from the first broker that has members of the group: members
    send heartbeats to every broker of their topics."""
    answers, errors = await ask_brokers(
        admin, route, lambda each: admin.groups.consumer_connections(each, group)
    )
    if answers:
        return (*answers[0], errors)
    return "", None, errors


async def owners_of(admin: AdminClient, route: TopicRouteData, group: str) -> dict[QueueKey, str]:
    """Returns queue -> the client that reports it as assigned. Clients that do not answer are left out."""
    address, body, _ = await members_of(admin, route, group)
    if body is None:
        return {}

    async def ask(client_id: str) -> list[QueueKey]:
        try:
            return list((await admin.groups.running_info(address, group, client_id))["mqTable"])
        except AdminError:
            return []

    members = sorted({each.client_id for each in body.connection_set})[:OWNERS_MAX]
    found = await gather_some([ask(member) for member in members])
    return {key: member for member, keys in zip(members, found, strict=True) for key in keys}
