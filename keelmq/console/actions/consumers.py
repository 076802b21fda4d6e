"""Actions on consumer groups: reset offsets, skip what is accumulated, delete."""

from typing import Final

from pydantic import Field

from keelmq.client.admin import AdminError, changes
from keelmq.client.admin.places import masters_of
from keelmq.client.admin.progress import members_of
from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    at_each,
    command_line,
    explained_at,
)
from keelmq.console.actions.masters import masters, outcomes
from keelmq.remoting.codes import MASTER_ID, RequestCode, ResponseCode
from keelmq.remoting.operation import Role
from keelmq.remoting.operations.clients import RESET_TO_END, ResetOffsetRequest, ResetRow
from keelmq.remoting.operations.route import TopicRouteData
from keelmq.remoting.queue_map import QueueKey
from keelmq.remoting.servers.http_answers import NotFound

QUEUES_SHOWN_MAX: Final = 1_000


class ResetOffset(Parameters):
    """at_ms: to the first message stored then or later, ms since 1970; -1: the end, so that everything
    accumulated is skipped. force: also forward, past messages that are not consumed yet."""

    group: str = Field(min_length=1, max_length=255)
    topic: str = Field(min_length=1, max_length=255)
    at_ms: int = Field(ge=-1, le=2**53)
    force: bool = True


class DeleteGroup(Parameters):
    """The group with its retry and dead letter topics. remove_offset: also what it has consumed."""

    cluster: str = Field(min_length=1, max_length=256)
    group: str = Field(min_length=1, max_length=255)
    remove_offset: bool = False


async def _masters_route(acting: Acting, topic: str) -> tuple[TopicRouteData, list[str]]:
    """Returns the route to masters only, and the names of brokers without one. Raises NotFound."""
    try:
        route = await acting.admin.name_servers.topic_route(acting.name_server_list, topic)
    except AdminError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NotFound(f"no name server knows topic {topic}") from None
        raise
    without = [each.broker_name for each in route.broker_datas if MASTER_ID not in each.broker_addrs]
    return masters_of(route), sorted(without)


async def _preview_reset(acting: Acting, request: ResetOffset) -> Preview:
    route, without = await _masters_route(acting, request.topic)
    wanted = ResetOffsetRequest(
        topic=request.topic, group=request.group, timestamp=request.at_ms, is_force=request.force
    )
    addresses = [each.broker_addrs[MASTER_ID] for each in route.broker_datas]
    explained = await explained_at(
        addresses, lambda each: acting.admin.groups.explain_reset_offset(each, wanted)
    )
    found = {key: row for rows in explained.answers.values() for key, row in rows.items()}
    rows = list(found.values())
    _, members, _ = await members_of(acting.admin, route, request.group)
    warnings = [f"{each} has no master: nothing is done there; repeat it later" for each in without]
    warnings += explained.warnings
    moves = [row.reset_offset - row.consumer_offset for row in rows if row.consumer_offset is not None]
    forward, back = sum(move for move in moves if move > 0), -sum(move for move in moves if move < 0)
    if forward:
        warnings.insert(0, f"about {forward} messages are skipped: {request.group} will not get them")
    if back:
        warnings.insert(0, f"about {back} messages are consumed once more")
    if rows and all(row.consumer_offset is None for row in rows):
        warnings.append(f"group {request.group} has consumed nothing of topic {request.topic} so far")
    online = 0 if members is None else len(members.connection_set)
    when = (
        "the end of every queue"
        if request.at_ms == RESET_TO_END
        else "the first message of that time or later"
    )
    return Preview(
        what=f"Group {request.group} continues topic {request.topic} at {when}. "
        + (f"{online} members are connected; they go on there." if online else "No member is connected."),
        servers=addresses,
        warnings=warnings,
        command=_reset_command(acting, request),
        is_possible=explained.is_possible,
        details={
            "queues": [_reset_row(key, row) for key, row in list(found.items())[:QUEUES_SHOWN_MAX]],
            "moreQueues": max(0, len(rows) - QUEUES_SHOWN_MAX),
        },
    )


def _reset_row(queue: QueueKey, row: ResetRow) -> dict[str, object]:
    return {
        "brokerName": queue.broker_name,
        "queueId": queue.queue_id,
        "brokerOffset": row.broker_offset,
        "from": row.consumer_offset,
        "to": row.reset_offset,
    }


def _reset_command(acting: Acting, request: ResetOffset) -> str:
    force = [] if request.force else ["-f", "false"]
    if request.at_ms == RESET_TO_END:
        return command_line(
            "mqadmin", "skipAccumulatedMessage", "-n", acting.name_server_list, "-g", request.group,
            "-t", request.topic, *force,
        )  # fmt: skip
    return command_line(
        "mqadmin", "resetOffsetByTime", "-n", acting.name_server_list, "-g", request.group,
        "-t", request.topic, "-s", request.at_ms, *force,
    )  # fmt: skip


async def _reset(acting: Acting, request: ResetOffset) -> list[ServerOutcome]:
    route, _ = await _masters_route(acting, request.topic)

    async def ask(address: str) -> str:
        offsets = await acting.admin.groups.reset_offset(
            address, request.group, request.topic, timestamp=request.at_ms, force=request.force
        )
        return f"{len(offsets)} queues"

    return await at_each([each.broker_addrs[MASTER_ID] for each in route.broker_datas], ask)


async def _preview_delete(acting: Acting, request: DeleteGroup) -> Preview:
    at = await masters(acting, request.cluster)
    explained = await explained_at(
        at.addresses,
        lambda each: acting.admin.groups.explain_delete_group(
            each, request.group, clean_offset=request.remove_offset
        ),
    )
    answers = explained.answers.values()
    warnings = [*at.warnings, *explained.warnings]
    lag, connected = sum(each.behind for each in answers), max((each.members for each in answers), default=0)
    is_nowhere = explained.is_nowhere(lambda found: found.is_known or bool(found.topics))
    if connected:
        warnings.insert(0, f"{connected} members are connected: they make the group again, or fail")
    if lag:
        warnings.append(f"{lag} messages are not consumed yet")
    if is_nowhere:
        warnings.insert(0, f"no master of cluster {request.cluster} has a group {request.group}")
    kept = "" if request.remove_offset else " Its offsets stay: a group of this name goes on where it was."
    return Preview(
        what=f"Consumer group {request.group} is deleted in cluster {request.cluster}, with its retry topic "
        f"and its dead letters.{kept}",
        servers=[*at.addresses, *acting.name_servers],
        warnings=warnings,
        command=command_line(
            "mqadmin", "deleteSubGroup", "-n", acting.name_server_list, "-c", request.cluster,
            "-g", request.group, *(["-r", "true"] if request.remove_offset else []),
        ),
        is_possible=explained.is_possible and not is_nowhere,
        type_to_confirm=request.group,
    )  # fmt: skip


async def _delete(acting: Acting, request: DeleteGroup) -> list[ServerOutcome]:
    at = await masters(acting, request.cluster)
    done = await at_each(
        at.addresses,
        lambda each: acting.admin.groups.delete_group(
            each, request.group, clean_offset=request.remove_offset
        ),
    )
    if any(each.outcome != "ok" for each in done):
        return done  # its topics are still needed
    topics = await changes.delete_group_topics(
        acting.admin, at.addresses, acting.name_server_list, request.cluster, request.group
    )
    return done + [await outcomes(each) for each in topics]


RESET_OFFSET: Final = Action(
    name="resetOffset",
    title="reset a group's offsets, or skip what is accumulated",
    description="To a time, at every master of the topic. The preview shows each queue.",
    parameters=ResetOffset,
    role=Role.OPERATE,
    code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    preview=_preview_reset,
    run=_reset,
    example={"group": "billing", "topic": "orders", "atMs": 1_767_225_600_000},
)
DELETE_GROUP: Final = Action(
    name="deleteGroup",
    title="delete a consumer group",
    description="With its retry and dead letter topics, at every master of a cluster.",
    parameters=DeleteGroup,
    role=Role.OPERATE,
    code=RequestCode.DELETE_SUBSCRIPTIONGROUP,
    preview=_preview_delete,
    run=_delete,
    example={"cluster": "DefaultCluster", "group": "billing"},
)
ACTIONS: Final = (RESET_OFFSET, DELETE_GROUP)
