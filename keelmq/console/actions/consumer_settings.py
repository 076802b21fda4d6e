"""Action on the settings of a consumer group: create the group, or change it."""

import json
from typing import Any, Final

from pydantic import Field

from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    at_each,
    command_line,
)
from keelmq.console.actions.masters import masters
from keelmq.console.actions.topics import NAME
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig

CHANGED: Final = (
    "consume_enable", "consume_broadcast_enable", "consume_message_orderly", "retry_queue_nums",
    "retry_max_times",
)  # fmt: skip
"""The settings that the parameters have, by their names in SubscriptionGroupConfig."""


class UpdateGroup(Parameters):
    """consume_enable false: the group gets no messages. retry_max_times: before a message is a dead letter;
    -1: the members' own number counts. Settings that are not here stay as they are."""

    cluster: str = Field(min_length=1, max_length=256)
    group: str = Field(min_length=1, max_length=120, pattern=NAME)
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = Field(default=1, ge=0, le=1_024)
    retry_max_times: int = Field(default=16, ge=-1, le=10_000)


def _wanted(request: UpdateGroup, before: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
    """Returns the settings to send. Attributes are sent as changes, so there are none."""
    kept = before or SubscriptionGroupConfig(group_name=request.group)
    changes: dict[str, Any] = {name: getattr(request, name) for name in CHANGED}
    return kept.model_copy(update={**changes, "attributes": {}})


def _differences(address: str, before: SubscriptionGroupConfig, request: UpdateGroup) -> list[str]:
    fields = SubscriptionGroupConfig.model_fields
    return [
        f"{address}: {fields[name].alias} {getattr(before, name)} becomes {getattr(request, name)}"
        for name in CHANGED
        if getattr(before, name) != getattr(request, name)
    ]


async def _preview(acting: Acting, request: UpdateGroup) -> Preview:
    at = await masters(acting, request.cluster)
    results = await acting.admin.each(";".join(at.addresses), acting.admin.groups.list_groups)
    before = {each.address: each.answer.get(request.group) for each in results if each.answer is not None}
    new = [address for address, config in before.items() if config is None]
    warnings = [*at.warnings, *(f"{each.address}: {each.error.remark}" for each in results if each.error)]
    for address, config in before.items():
        if config is not None:
            warnings += _differences(address, config, request)
    if not request.consume_enable:
        warnings.insert(0, f"{request.group} gets no messages until consumeEnable is true again")
    what = "is created" if len(new) == len(before) else "is changed" if not new else "is created or changed"
    first = next((config for config in before.values() if config is not None), None)
    return Preview(
        what=f"Consumer group {request.group} {what} at every master of cluster {request.cluster}.",
        servers=at.addresses,
        warnings=warnings,
        command=_command(acting, request, _wanted(request, first)),
        details={"newAt": new, "changedAt": [each for each in before if each not in new]},
    )


def _command(acting: Acting, request: UpdateGroup, wanted: SubscriptionGroupConfig) -> str:
    """Returns mqadmin's line: it has every setting, because mqadmin sends its own default for one that is
    not given."""
    policy = wanted.group_retry_policy
    return command_line(
        "mqadmin", "updateSubGroup", "-n", acting.name_server_list, "-c", request.cluster,
        "-g", request.group, "-s", _word(wanted.consume_enable), "-m", _word(wanted.consume_from_min_enable),
        "-d", _word(wanted.consume_broadcast_enable), "-o", _word(wanted.consume_message_orderly),
        "-q", wanted.retry_queue_nums, "-r", wanted.retry_max_times, "-i", wanted.broker_id,
        "-w", wanted.which_broker_when_consume_slowly, "-a", _word(wanted.notify_consumer_ids_changed_enable),
        "-p", json.dumps(policy) if policy != {"type": "CUSTOMIZED"} else None,
    )  # fmt: skip


def _word(value: bool) -> str:
    return "true" if value else "false"


async def _run(acting: Acting, request: UpdateGroup) -> list[ServerOutcome]:
    at = await masters(acting, request.cluster)

    async def ask(address: str) -> None:
        before = (await acting.admin.groups.list_groups(address)).get(request.group)
        await acting.admin.groups.update_group(address, _wanted(request, before))

    return await at_each(at.addresses, ask)


UPDATE_GROUP: Final = Action(
    name="updateSubGroup",
    title="create or change a consumer group",
    description="At every master of a cluster. Settings that the parameters lack stay as they are.",
    parameters=UpdateGroup,
    role=Role.OPERATE,
    code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    preview=_preview,
    run=_run,
    example={"cluster": "DefaultCluster", "group": "billing", "retryMaxTimes": 16},
)
ACTIONS: Final = (UPDATE_GROUP,)
