"""Actions on a broker group at its controllers: elect a master, forget replicas."""

from typing import Final

from pydantic import Field

from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    command_line,
    explained_at,
    outcome_of,
)
from keelmq.health.status import GroupStatus
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role


class Group(Parameters):
    """Names a group."""

    cluster: str = Field(min_length=1)
    broker_name: str = Field(min_length=1)


class Elect(Group):
    """broker_id: the replica that becomes the master."""

    broker_id: int = Field(ge=1)


class Clean(Group):
    """broker_ids: empty forgets the whole group. living: also replicas that are alive."""

    broker_ids: list[int] = Field(default_factory=list)
    living: bool = False


async def _preview_elect(acting: Acting, request: Elect) -> Preview:
    group = acting.group(request.cluster, request.broker_name)
    address = next((each.address for each in group.replicas if each.broker_id == request.broker_id), "")
    was = f"instead of broker {group.master_id}" if group.master_id else "; it has no master now"
    who = f"Broker {request.broker_id}{f' at {address}' if address else ''}"
    explained = await explained_at(
        [acting.controller_list],
        lambda each: acting.admin.controllers.explain_election(
            each, cluster_name=request.cluster, broker_name=request.broker_name, broker_id=request.broker_id
        ),
    )
    warnings, is_possible, details = list(explained.warnings), explained.is_possible, {}
    if is_possible and not explained.answers:
        warnings += _loss_warnings(group, request.broker_id)
    for answer in explained.answers.values():
        details["explanation"] = answer.model_dump(by_alias=True, exclude_none=True, mode="json")
        is_possible = not answer.code
        if answer.code:
            warnings = [f"it would be refused: {answer.remark or answer.verdict}"]
        elif answer.unclean:
            warnings = ["this election is unclean: acknowledged messages may be lost"]
    return Preview(
        what=f"{who} becomes the master of {request.broker_name} {was}.".replace(" ;", ";"),
        servers=list(acting.controllers[:1]),
        warnings=warnings,
        command=_elect_command(acting, request),
        is_possible=is_possible,
        details=details,
    )


def _loss_warnings(group: GroupStatus, broker_id: int) -> list[str]:
    """Returns what the status shows against this election: for controllers that cannot explain it."""
    replica = next((each for each in group.replicas if each.broker_id == broker_id), None)
    if replica is None:
        return [f"broker {broker_id} is not known in {group.broker_name}"]
    found = []
    if group.sync_state_set and broker_id not in group.sync_state_set:
        behind = "" if replica.lag_bytes is None else f" ({replica.lag_bytes} bytes behind)"
        found.append(
            f"broker {broker_id} is not in the SyncStateSet{behind}: messages that it lacks would be lost"
        )
    if not replica.is_alive:
        found.append(f"broker {broker_id} does not answer")
    return found


async def _elect(acting: Acting, request: Elect) -> list[ServerOutcome]:
    async def elect() -> str:
        master, _ = await acting.admin.controllers.elect_master(
            acting.controller_list,
            cluster_name=request.cluster,
            broker_name=request.broker_name,
            broker_id=request.broker_id,
        )
        return f"broker {master.master_broker_id} is the master, masterEpoch {master.master_epoch}"

    return [await outcome_of(acting.controller_list, elect())]


def _elect_command(acting: Acting, request: Elect) -> str:
    return command_line(
        "mqadmin", "electMaster", "-a", acting.controller_list,
        "-c", request.cluster, "-bn", request.broker_name, "-b", request.broker_id,
    )  # fmt: skip


async def _preview_clean(acting: Acting, request: Clean) -> Preview:
    group = acting.group(request.cluster, request.broker_name)
    explained = await explained_at(
        [acting.controller_list],
        lambda each: acting.admin.controllers.explain_clean_broker_data(
            each,
            cluster_name=request.cluster,
            broker_name=request.broker_name,
            broker_ids=_ids(request.broker_ids),
            clean_living=request.living,
        ),
    )
    warnings = list(explained.warnings)
    for found, remark in explained.answers.values():
        living = [each.broker_id for each in found.replicas if each.alive]
        if not found.replicas:
            warnings.append(remark)
        if living:
            warnings.append(f"alive: {_ids(living)}; they must be restarted to be known again")
        if found.master_broker_id is not None:
            warnings.append(
                f"broker {found.master_broker_id} is the master: the group is without one afterwards"
            )
    which = (
        f"brokers {_ids(request.broker_ids)}" if request.broker_ids else "all replicas, and the group itself"
    )
    return Preview(
        what=f"The controllers forget {which} of {group.broker_name}. Ids are not assigned again; files and "
        "messages of the brokers stay.",
        servers=list(acting.controllers[:1]),
        warnings=warnings,
        command=command_line(
            "mqadmin", "cleanBrokerMetadata", "-a", acting.controller_list, "-c", request.cluster,
            "-bn", request.broker_name, "-b", _ids(request.broker_ids), *(["-l"] if request.living else []),
        ),
        is_possible=explained.is_possible,
        type_to_confirm=group.broker_name,
    )  # fmt: skip


async def _clean(acting: Acting, request: Clean) -> list[ServerOutcome]:
    cleaned = acting.admin.controllers.clean_broker_data(
        acting.controller_list,
        cluster_name=request.cluster,
        broker_name=request.broker_name,
        broker_ids=_ids(request.broker_ids),
        clean_living=request.living,
    )
    return [await outcome_of(acting.controller_list, cleaned)]


def _ids(broker_ids: list[int]) -> str:
    return ";".join(str(each) for each in broker_ids)


ELECT_MASTER: Final = Action(
    name="electMaster",
    title="elect a master",
    description="Makes a replica of a group its master. It must be alive, and in the SyncStateSet unless the "
    "controllers allow otherwise.",
    parameters=Elect,
    role=Role.ADMINISTER,
    code=RequestCode.CONTROLLER_ELECT_MASTER,
    preview=_preview_elect,
    run=_elect,
    example={"cluster": "DefaultCluster", "brokerName": "broker-a", "brokerId": 2},
    fields={"designateElect": "true"},
)
CLEAN_BROKER_METADATA: Final = Action(
    name="cleanBrokerMetadata",
    title="forget replicas that will not return",
    description="Removes replicas from the controllers' state.",
    parameters=Clean,
    role=Role.ADMINISTER,
    code=RequestCode.CLEAN_BROKER_DATA,
    preview=_preview_clean,
    run=_clean,
    example={"cluster": "DefaultCluster", "brokerName": "broker-a", "brokerIds": [3]},
)
ACTIONS: Final = (ELECT_MASTER, CLEAN_BROKER_METADATA)
