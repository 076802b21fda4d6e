"""Actions at the name servers: take the write permission of a group's topics away, and give it back."""

from typing import Final

from pydantic import Field

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
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role

TOPICS_SHOWN: Final = 20


class BrokerName(Parameters):
    """broker_name: of the group."""

    broker_name: str = Field(min_length=1)


async def _preview_wipe(acting: Acting, request: BrokerName) -> Preview:
    explained = await explained_at(
        acting.name_servers, lambda each: acting.admin.name_servers.explain_wipe(each, request.broker_name)
    )
    warnings, details = list(explained.warnings), {}
    alone = sorted({topic for _, found in explained.answers.values() for topic in found.nowhere_else})
    shown = [topic for topic in alone if not topic.startswith("%")]
    if shown:
        names = ", ".join(shown[:TOPICS_SHOWN]) + (", ..." if len(shown) > TOPICS_SHOWN else "")
        warnings.append(f"{len(shown)} topics have no other writable broker: {names}")
        details["topics"] = shown
    is_nowhere = explained.is_nowhere(lambda found: found[0] > 0)
    if is_nowhere:
        warnings.append(f"no topic has a broker {request.broker_name}")
    return Preview(
        what=f"Producers stop sending to {request.broker_name} within their route poll (30 s); consumers go "
        "on. It lasts until the permission is given back, or the broker registers changed topics.",
        servers=list(acting.name_servers),
        warnings=warnings,
        command=_command(acting, "wipeWritePerm", request),
        is_possible=explained.is_possible and not is_nowhere,
        type_to_confirm=request.broker_name if warnings else "",
        details=details,
    )


def _command(acting: Acting, name: str, request: BrokerName) -> str:
    return command_line("mqadmin", name, "-n", acting.name_server_list, "-b", request.broker_name)


async def _wipe(acting: Acting, request: BrokerName) -> list[ServerOutcome]:
    async def one(server: str) -> str:
        return (
            f"{await acting.admin.name_servers.wipe_write_perm(server, request.broker_name)} topics changed"
        )

    return await at_each(acting.name_servers, one)


async def _preview_add(acting: Acting, request: BrokerName) -> Preview:
    return Preview(
        what=f"All topics of {request.broker_name} get read and write permission.",
        servers=list(acting.name_servers),
        command=_command(acting, "addWritePerm", request),
    )


async def _add(acting: Acting, request: BrokerName) -> list[ServerOutcome]:
    async def one(server: str) -> str:
        return f"{await acting.admin.name_servers.add_write_perm(server, request.broker_name)} topics changed"

    return await at_each(acting.name_servers, one)


WIPE_WRITE_PERM: Final = Action(
    name="wipeWritePerm",
    title="stop new messages to a group",
    description="Removes the write permission from all topics of a group, at every name server.",
    parameters=BrokerName,
    role=Role.ADMINISTER,
    code=RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    preview=_preview_wipe,
    run=_wipe,
    example={"brokerName": "broker-a"},
)
ADD_WRITE_PERM: Final = Action(
    name="addWritePerm",
    title="allow new messages to a group again",
    description="Gives all topics of a group read and write permission, at every name server.",
    parameters=BrokerName,
    role=Role.ADMINISTER,
    code=RequestCode.ADD_WRITE_PERM_OF_BROKER,
    preview=_preview_add,
    run=_add,
    example={"brokerName": "broker-a"},
)
ACTIONS: Final = (WIPE_WRITE_PERM, ADD_WRITE_PERM)
