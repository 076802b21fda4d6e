"""mqadmin: create, change and delete subscription groups."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.command_line import NamesrvAddr
from cli.mqadmin.commands.topic_admin import named_attributes, true_or_false
from cli.mqadmin.confirmation import asks_first
from cli.mqadmin.json_rows import read_rows
from cli.mqadmin.layouts import broker as layouts_broker
from cli.mqadmin.shell import Action, DoesNotExist, Output, command, dump, per_server
from cli.mqadmin.targets import (
    Target,
    Where,
    at_brokers,
    brokers_of_cluster,
    change_at,
    changed,
    on_each,
    shown,
    with_missing,
)
from keelmq.client.admin import AdminClient, AdminError, ServerResult, changes
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.broker_admin import UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, GroupConfigs
from keelmq.remoting.operations.broker_metadata import GroupDeletion, SubscriptionGroupConfig
from keelmq.remoting.operations.pop import SET_MESSAGE_REQUEST_MODE, RequestModeBody, RequestModeRequest

Group = Annotated[str, typer.Option("-g", "--groupName", help="Consumer group")]


@command("updateSubGroup")
@at_brokers
def update_group(
    *,
    group: Group,
    where: Where,
    consume: Annotated[
        str, typer.Option("-s", "--consumeEnable", help="false: the group gets no messages")
    ] = "true",
    from_min: Annotated[str, typer.Option("-m", "--consumeFromMinEnable", help="true or false")] = "false",
    broadcast: Annotated[
        str, typer.Option("-d", "--consumeBroadcastEnable", help="true: members may consume by broadcasting")
    ] = "false",
    orderly: Annotated[
        str, typer.Option("-o", "--consumeMessageOrderly", help="true: ordered consumption")
    ] = "false",
    retry_queues: Annotated[int, typer.Option("-q", "--retryQueueNums", min=0, help="0: no retries")] = 1,
    retry_times: Annotated[
        int,
        typer.Option("-r", "--retryMaxTimes", min=-1, help="Retries before a message becomes a dead letter"),
    ] = 16,
    retry_policy: Annotated[
        str | None, typer.Option("-p", "--groupRetryPolicy", help="JSON of the delays between retries")
    ] = None,
    broker_id: Annotated[int, typer.Option("-i", "--brokerId", min=0, help="Replica to read from")] = 0,
    slow_id: Annotated[
        int,
        typer.Option(
            "-w",
            "--whichBrokerWhenConsumeSlowly",
            min=0,
            help="Id of the replica for consumers that are far behind",
        ),
    ] = 1,
    notify: Annotated[
        str,
        typer.Option(
            "-a", "--notifyConsumerIdsChanged", help="true: notify members when one joins or leaves"
        ),
    ] = "true",
    attributes: Annotated[
        str | None, typer.Option("--attributes", help="Attribute changes, +key=value,-key")
    ] = None,
) -> Action:
    """Create or change a consumer group at a master (-b), or at every master of a cluster (-c)."""
    config = SubscriptionGroupConfig(
        group_name=group,
        consume_enable=true_or_false(consume, "-s"),
        consume_from_min_enable=true_or_false(from_min, "-m"),
        consume_broadcast_enable=true_or_false(broadcast, "-d"),
        consume_message_orderly=true_or_false(orderly, "-o"),
        retry_queue_nums=retry_queues,
        retry_max_times=retry_times,
        group_retry_policy=_policy(retry_policy),
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_id,
        notify_consumer_ids_changed_enable=true_or_false(notify, "-a"),
        attributes=named_attributes(attributes),
    )
    return change_at(
        where,
        lambda admin, each: admin.groups.update_group(each, config),
        lambda each: f"create subscription group to {each} success.",
        footer=layouts_broker.group_config(config),
    )


def _policy(text: str | None) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {"type": "CUSTOMIZED"}
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"-p/--groupRetryPolicy is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter("-p/--groupRetryPolicy is not a JSON object")
    return value


@command("updateSubGroupList")
@at_brokers
def update_group_list(
    *,
    filename: Annotated[Path, typer.Option("-f", "--filename", help="JSON array of group configurations")],
    where: Where,
) -> Action:
    """Create or change many consumer groups in one go, from a file."""
    configs = read_rows(filename, SubscriptionGroupConfig, "group configurations")
    body = GroupConfigs(group_config_list=configs)
    return change_at(
        where,
        lambda admin, each: admin.ask(each, UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, Empty(), body),
        lambda each: f"submit batch of group config to {each} success, {len(configs)} groups.",
    )


@command("deleteSubGroup")
@asks_first
@at_brokers
def delete_group(
    *,
    group: Group,
    where: Where,
    remove_offset: Annotated[
        str, typer.Option("-r", "--removeOffset", help="true: delete its offsets, too")
    ] = "false",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: show what brokers have of the group")
    ] = False,
) -> Action:
    """Delete a consumer group; in a cluster (-c) with its retry and dead-letter topics."""
    cluster_name = where.cluster_name
    clean = true_or_false(remove_offset, "-r")

    async def action(admin: AdminClient) -> Output:
        async def must_exist(address: str) -> None:
            if not await _has_anything(admin, address, group, offsets=clean, topics=cluster_name is not None):
                remark = f"group {group} does not exist: nothing was deleted"
                raise DoesNotExist(
                    "deleteSubGroup", address, remark, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
                )

        async def ask(address: str) -> bool:
            await must_exist(address)
            await admin.groups.delete_group(address, group, clean_offset=clean)
            return True

        target = await where.find(admin)
        if dry_run:
            return await _would_delete(admin, target, group, must_exist, clean=clean)
        results = await on_each(admin, target, ask)
        place = f" in cluster [{cluster_name}]" if cluster_name is not None else ""

        def line(address: str) -> str:
            return f"delete subscription group [{group}] from broker [{address}]{place} success."

        output = changed(results, target, line)
        failed = [each.error for each in results if each.error is not None]
        if cluster_name is None or not all(isinstance(error, DoesNotExist) for error in failed):
            return output
        deleted = await changes.delete_group_topics(
            admin, target.addresses, str(where.namesrv_addr), cluster_name, group
        )
        problems = [str(each.error) for each in deleted if each.error is not None]
        code = 4 if problems else output.exit_code
        return Output(output.value, output.text, (*output.problems, *problems), output.notes, code)

    return action


async def _would_delete(
    admin: AdminClient,
    target: Target,
    group: str,
    must_exist: Callable[[str], Awaitable[None]],
    *,
    clean: bool,
) -> Output:
    """Returns what each broker would delete. Brokers refuse it as they would refuse the deletion."""

    async def ask(address: str) -> GroupDeletion:
        await must_exist(address)
        return await admin.groups.explain_delete_group(address, group, clean_offset=clean)

    results = await on_each(admin, target, ask)
    lines = [
        f"would delete group [{group}] at {each.address}: {each.answer.behind} messages not consumed, "
        f"topics {', '.join(each.answer.topics) or 'none'}"
        for each in results
        if each.answer is not None
    ]

    def found(each: ServerResult[GroupDeletion]) -> dict[str, Any]:
        has = each.answer
        return {} if has is None else {"known": has.is_known, "behind": has.behind, "topics": has.topics}

    return with_missing(per_server(results, "\n".join(lines), found), target)


async def _has_anything(admin: AdminClient, address: str, group: str, *, offsets: bool, topics: bool) -> bool:
    """Returns whether a broker has anything that a deletion removes: the group, its offsets, its topics."""
    if group in await admin.groups.list_groups(address):
        return True
    if offsets and (await admin.groups.consume_stats(address, group)).queues:
        return True
    return topics and not {prefix + group for prefix in changes.GROUP_TOPICS}.isdisjoint(
        await admin.brokers.topics(address)
    )


@command("setConsumeMode")
@at_brokers
def set_consume_mode(
    *,
    topic: Annotated[str, typer.Option("-t", "--topicName", help="Topic name")],
    group: Group,
    mode: Annotated[
        str,
        typer.Option("-m", "--mode", help="PULL (queues are assigned) or POP (any member reads any queue)"),
    ],
    where: Where,
    share: Annotated[
        int,
        typer.Option("-q", "--popShareQueueNum", min=-1, help="POP: queues per member; 0 or -1: all"),
    ] = 0,
) -> Action:
    """Set how the members of a group consume a topic."""
    if mode.upper() not in ("PULL", "POP"):
        raise typer.BadParameter(f"-m/--mode is PULL or POP, not {mode!r}")
    body = RequestModeBody(
        topic=topic,
        consumer_group=group,
        mode="POP" if mode.upper() == "POP" else "PULL",
        pop_share_queue_num=share,
    )

    async def ask(admin: AdminClient, address: str) -> None:
        await _check_pair(admin, address, topic, group)
        await admin.ask(address, SET_MESSAGE_REQUEST_MODE, RequestModeRequest(), body)

    footer = f"topic[{topic}] group[{group}] consume mode[{body.mode}] popShareQueueNum[{share}]"
    return change_at(where, ask, lambda each: f"set consume mode to {each} success.", footer=footer)


async def _check_pair(admin: AdminClient, address: str, topic: str, group: str) -> None:
    """Raises DoesNotExist if a broker does not have the topic, and AdminError if it has the topic, but not
    the group: the members of a group are known at every broker of its topics."""
    if topic not in await admin.brokers.topics(address):
        remark = f"topic {topic} does not exist: nothing was changed"
        raise DoesNotExist("setConsumeMode", address, remark, ResponseCode.TOPIC_NOT_EXIST)
    if group not in await admin.groups.list_groups(address):
        remark = f"group {group} does not exist: nothing was changed"
        raise AdminError("setConsumeMode", address, remark, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


@command("getConsumerConfig")
def get_consumer_config(namesrv_addr: NamesrvAddr, group: Group) -> Action:
    """The settings of a consumer group, at every broker that has it."""

    async def action(admin: AdminClient) -> Output:
        info = await admin.name_servers.cluster_info(namesrv_addr)
        value, texts = [], []
        errors: list[AdminError] = []
        for cluster in sorted(info.cluster_addr_table):
            for broker in await brokers_of_cluster(admin, cluster, namesrv_addr):
                try:
                    address = broker.broker_addrs[min(broker.broker_addrs)]
                    config = (await admin.groups.list_groups(address)).get(group)
                except AdminError as error:
                    errors.append(error)
                    continue
                if config is not None:
                    settings = dump(config)
                    value.append(
                        {"clusterName": cluster, "brokerName": broker.broker_name, "config": settings}
                    )
                    texts.append(layouts_broker.group_settings(cluster, broker.broker_name, settings))
        if not value and not errors:
            remark = f"no broker has a group {group}"
            raise AdminError(
                "getConsumerConfig", namesrv_addr, remark, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        return shown(value, "\n".join(texts), errors, found=bool(value))

    return action
