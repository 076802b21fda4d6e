"""Actions on topics: create or change, delete."""

from typing import Final, Literal

from pydantic import Field

from keelmq.client.admin import AdminError, changes
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
from keelmq.console.actions.masters import Masters, masters, outcomes
from keelmq.remoting.codes import RequestCode, ResponseCode
from keelmq.remoting.operation import Role
from keelmq.remoting.operations.route import TopicConfig

NAME: Final = r"^[%|a-zA-Z0-9_-]+$"
QUEUES_MAX: Final = 16_383


class UpdateTopic(Parameters):
    """perm: 2 write, 4 read, 6 both. message_type: of a new topic; brokers of RocketMQ do not change it
    later. Empty: as it is."""

    cluster: str = Field(min_length=1, max_length=256)
    topic: str = Field(min_length=1, max_length=127, pattern=NAME)
    read_queues: int = Field(default=8, ge=1, le=QUEUES_MAX)
    write_queues: int = Field(default=8, ge=1, le=QUEUES_MAX)
    perm: Literal[2, 4, 6] = 6
    order: bool = False
    message_type: Literal["", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY"] = ""


class DeleteTopic(Parameters):
    """The topic at every broker of the cluster, and at every name server."""

    cluster: str = Field(min_length=1, max_length=256)
    topic: str = Field(min_length=1, max_length=255)


def _attributes(request: UpdateTopic) -> str | None:
    return f"+message.type={request.message_type}" if request.message_type else None


async def _preview_update(acting: Acting, request: UpdateTopic) -> Preview:
    at = await masters(acting, request.cluster)
    results = await acting.admin.each(";".join(at.addresses), acting.admin.brokers.topics)
    before = {each.address: each.answer.get(request.topic) for each in results if each.answer is not None}
    warnings = [*at.warnings, *(f"{each.address}: {each.error.remark}" for each in results if each.error)]
    new = [address for address, config in before.items() if config is None]
    for address, config in before.items():
        if config is None:
            continue
        if request.write_queues < config.write_queue_nums or request.read_queues < config.read_queue_nums:
            warnings.append(
                f"{address} has {config.read_queue_nums} read and {config.write_queue_nums} write queues: "
                "messages in queues that are no longer read stay unread. Lower the write queues first, and "
                "the read queues when these are consumed"
            )
        if config.perm != request.perm:
            warnings.append(f"{address}: perm {config.perm} becomes {request.perm}")
        if request.message_type and config.attributes.get("message.type", "NORMAL") != request.message_type:
            now = config.attributes.get("message.type", "NORMAL")
            warnings.append(f"{address}: the message type {now} becomes {request.message_type}")
    what = "is created" if len(new) == len(before) else "is changed" if not new else "is created or changed"
    return Preview(
        what=f"Topic {request.topic} {what} in cluster {request.cluster}, with {request.read_queues} read "
        f"and {request.write_queues} write queues at each master.",
        servers=at.addresses,
        warnings=warnings,
        command=command_line(
            "mqadmin", "updateTopic", "-n", acting.name_server_list, "-c", request.cluster,
            "-t", request.topic, "-r", request.read_queues, "-w", request.write_queues, "-p", request.perm,
            *(["-o", "true"] if request.order else []), "-a", _attributes(request),
        ),
        details={"newAt": new, "changedAt": [each for each in before if each not in new]},
    )  # fmt: skip


async def _update(acting: Acting, request: UpdateTopic) -> list[ServerOutcome]:
    at = await masters(acting, request.cluster)
    config = TopicConfig(
        topic_name=request.topic,
        read_queue_nums=request.read_queues,
        write_queue_nums=request.write_queues,
        perm=request.perm,
        order=request.order,
    )
    done = await at_each(
        at.addresses, lambda each: acting.admin.brokers.update_topic(each, config, _attributes(request))
    )
    if request.order and all(each.outcome == "ok" for each in done):
        _, written = await changes.set_order_conf(
            acting.admin, acting.name_server_list, request.topic, at.brokers, request.write_queues
        )
        done += [await outcomes(each) for each in written]
    return done


async def _preview_delete(acting: Acting, request: DeleteTopic) -> Preview:
    at = await masters(acting, request.cluster)
    explained = await explained_at(
        at.addresses, lambda each: acting.admin.brokers.explain_delete_topic(each, request.topic)
    )
    answers = {address: found for address, found in explained.answers.items() if found.is_known}
    warnings = [*at.warnings, *explained.warnings]
    count = sum(found.messages for found in answers.values())
    groups = sorted({group for found in answers.values() for group in found.consumer_groups})
    if count:
        warnings.insert(0, f"{count} messages can no longer be read")
    if groups:
        warnings.append(f"consumed by {', '.join(groups[:20])}{', ...' if len(groups) > 20 else ''}")
    is_nowhere = explained.is_nowhere(lambda found: found.is_known) and not await _has_route(
        acting, request.topic
    )
    if is_nowhere:
        warnings.insert(0, f"no broker of cluster {request.cluster} has topic {request.topic}")
    return Preview(
        what=f"Topic {request.topic} is deleted at every broker of cluster {request.cluster}, and at every "
        "name server.",
        servers=[*at.replicas, *acting.name_servers],
        warnings=warnings,
        command=command_line(
            "mqadmin",
            "deleteTopic",
            "-n",
            acting.name_server_list,
            "-c",
            request.cluster,
            "-t",
            request.topic,
        ),
        is_possible=explained.is_possible and not is_nowhere,
        type_to_confirm=request.topic,
        details={
            "brokers": [
                {
                    "address": address,
                    "queues": found.queues,
                    "messages": found.messages,
                    "consumerGroups": found.consumer_groups,
                }
                for address, found in sorted(answers.items())
            ]
        },
    )


async def _has_route(acting: Acting, topic: str) -> bool:
    try:
        await acting.admin.name_servers.topic_route(acting.name_server_list, topic)
    except AdminError as error:
        if error.code == ResponseCode.TOPIC_NOT_EXIST:
            return False
        raise
    return True


async def _delete(acting: Acting, request: DeleteTopic) -> list[ServerOutcome]:
    at: Masters = await masters(acting, request.cluster)
    at_brokers, at_servers = await changes.delete_topic(
        acting.admin, acting.name_server_list, request.topic, request.cluster, at.brokers
    )
    return [await outcomes(each) for each in (*at_brokers, *at_servers)]


UPDATE_TOPIC: Final = Action(
    name="updateTopic",
    title="create or change a topic",
    description="At every master of a cluster. An ordered topic's queues are written to the name servers.",
    parameters=UpdateTopic,
    role=Role.OPERATE,
    code=RequestCode.UPDATE_AND_CREATE_TOPIC,
    preview=_preview_update,
    run=_update,
    example={"cluster": "DefaultCluster", "topic": "orders", "readQueues": 8, "writeQueues": 8, "perm": 6},
)
DELETE_TOPIC: Final = Action(
    name="deleteTopic",
    title="delete a topic",
    description="At every broker of a cluster and at every name server; its messages can no longer be read.",
    parameters=DeleteTopic,
    role=Role.OPERATE,
    code=RequestCode.DELETE_TOPIC_IN_BROKER,
    preview=_preview_delete,
    run=_delete,
    example={"cluster": "DefaultCluster", "topic": "orders"},
)
ACTIONS: Final = (UPDATE_TOPIC, DELETE_TOPIC)
