"""Actions at a broker container: add a broker of a file, remove one."""

from typing import Final

from pydantic import Field

from keelmq.client.admin import AdminError
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
from keelmq.console.data.servers import hosts_of
from keelmq.remoting.address_text import split_address
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role
from keelmq.remoting.servers.http_answers import NotFound


class Container(Parameters):
    """container: host:port of the container's own port."""

    container: str = Field(min_length=3)


class AddBroker(Container):
    """config_path: the broker's file, on the container's host."""

    config_path: str = Field(min_length=1)


class RemoveBroker(Container):
    """broker_id: as the container's status shows it."""

    cluster: str = Field(min_length=1)
    broker_name: str = Field(min_length=1)
    broker_id: int = Field(ge=-1)


def _checked(acting: Acting, container: str) -> str:
    """Raises NotFound: it is on no machine of this cluster, so it is not contacted."""
    try:
        host = split_address(container)[0]
    except ValueError as error:
        raise NotFound(str(error)) from None
    if acting.status is None or host not in hosts_of(acting.status):
        raise NotFound(f"{host} is no machine of this cluster: use mqadmin for its first broker")
    return container


async def _preview_add(acting: Acting, request: AddBroker) -> Preview:
    server, warnings, details = _checked(acting, request.container), [], {}
    is_possible = True
    try:
        plan = await acting.admin.containers.container_plan(server, [request.config_path])
    except AdminError as error:
        warnings.append(f"the container does not say whether it would take it: {error.remark}")
    else:
        warnings = [text for each in plan.brokers for text in (*each.problems, *each.notes)]
        is_possible = not any(each.problems for each in plan.brokers)
        details = {"plan": plan.model_dump(by_alias=True, mode="json")}
    return Preview(
        what=f"The container at {server} starts the broker of {request.config_path}, a file of its machine, "
        "and starts it again after its own restarts.",
        servers=[server],
        warnings=warnings,
        command=command_line("mqadmin", "addBroker", "-c", server, "-b", request.config_path),
        is_possible=is_possible,
        details=details,
    )


async def _add(acting: Acting, request: AddBroker) -> list[ServerOutcome]:
    server = _checked(acting, request.container)

    async def add() -> str:
        broker = await acting.admin.containers.add_broker(server, request.config_path)
        return "" if broker is None else f"{broker.canonical_name} is {broker.state}"

    return [await outcome_of(server, add())]


async def _preview_remove(acting: Acting, request: RemoveBroker) -> Preview:
    server, warnings = _checked(acting, request.container), []
    explained = await explained_at(
        [server],
        lambda each: acting.admin.containers.explain_remove_broker(
            each, request.cluster, request.broker_name, request.broker_id
        ),
    )
    warnings += explained.warnings
    if any(found.role == "master" for found in explained.answers.values()):
        warnings.append("it is the master: it hands over to another replica first, if one is in sync")
    try:
        group = acting.group(request.cluster, request.broker_name)
    except NotFound:
        group = None  # its broker may be quarantined, so that no server lists it
    if group is not None and group.min_in_sync is not None:
        left = [each for each in group.sync_state_set if each != request.broker_id]
        if len(left) < group.min_in_sync:
            warnings.append(f"{len(left)} replicas stay in sync, minInSyncReplicas is {group.min_in_sync}")
    identity = f"{request.cluster}:{request.broker_name}:{request.broker_id}"
    return Preview(
        what=f"The container at {server} stops {identity}. Its files stay.",
        servers=[server],
        warnings=warnings,
        command=command_line("mqadmin", "removeBroker", "-c", server, "-b", identity),
        is_possible=explained.is_possible,
        type_to_confirm=request.broker_name,
    )


async def _remove(acting: Acting, request: RemoveBroker) -> list[ServerOutcome]:
    server = _checked(acting, request.container)
    removed = acting.admin.containers.remove_broker(
        server, request.cluster, request.broker_name, request.broker_id
    )
    return [await outcome_of(server, removed)]


ADD_BROKER: Final = Action(
    name="addBroker",
    title="add a broker to a container",
    description="Starts the broker of a configuration file on the container's host.",
    parameters=AddBroker,
    role=Role.ADMINISTER,
    code=RequestCode.ADD_BROKER,
    preview=_preview_add,
    run=_add,
    example={"container": "10.0.0.1:10811", "configPath": "/etc/keelmq/broker-b.conf"},
)
REMOVE_BROKER: Final = Action(
    name="removeBroker",
    title="remove a broker from a container",
    description="Stops a broker of a container. A master hands over first, and its files stay.",
    parameters=RemoveBroker,
    role=Role.ADMINISTER,
    code=RequestCode.REMOVE_BROKER,
    preview=_preview_remove,
    run=_remove,
    example={
        "container": "10.0.0.1:10811",
        "cluster": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 2,
    },
)
ACTIONS: Final = (ADD_BROKER, REMOVE_BROKER)
