"""Actions at the name servers: take the write permission of a group's topics away, and give it back."""

from typing import Final

from pydantic import Field

from keelmq.client.admin import AdminError, gather_some
from keelmq.console.actions.action import (
    Acting,
    Action,
    Parameters,
    Preview,
    ServerOutcome,
    at_each,
    command_line,
)
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Role

PERM_WRITE: Final = 2
TOPICS_SHOWN: Final = 20
TOPICS_ASKED_MAX: Final = 10_000
"""Topics whose routes a preview asks for; of more it says so."""


class BrokerName(Parameters):
    """broker_name: of the group."""

    broker_name: str = Field(min_length=1)


async def _preview_wipe(acting: Acting, asked: BrokerName) -> Preview:
    warnings, details = [], {}
    try:
        alone, not_asked = await _only_writable_here(acting, asked.broker_name)
    except AdminError as error:
        warnings.append(f"the name servers do not tell which topics are only here: {error.remark}")
    else:
        if alone:
            names = ", ".join(alone[:TOPICS_SHOWN]) + (", ..." if len(alone) > TOPICS_SHOWN else "")
            warnings.append(f"{len(alone)} topics have no other writable broker: {names}")
            details["topics"] = alone
        if not_asked:
            warnings.append(f"{not_asked} more topics were not looked at")
    return Preview(
        what=f"Producers stop sending to {asked.broker_name} within their route poll (30 s); consumers go "
        "on. It lasts until the permission is given back, or the broker registers changed topics.",
        servers=list(acting.name_servers),
        warnings=warnings,
        command=_command(acting, "wipeWritePerm", asked),
        type_to_confirm=asked.broker_name if warnings else "",
        details=details,
    )


def _command(acting: Acting, name: str, asked: BrokerName) -> str:
    return command_line("mqadmin", name, "-n", acting.name_server_list, "-b", asked.broker_name)


async def _only_writable_here(acting: Acting, broker_name: str) -> tuple[list[str], int]:
    """Returns topics that no other group has writable queues of, and how many topics were not looked at."""
    server = acting.name_servers[0]

    async def writable_at(topic: str) -> set[str]:
        try:
            route = await acting.admin.name_servers.topic_route(server, topic)
        except AdminError as error:
            if error.code is None:
                raise
            return set()
        return {each.broker_name for each in route.queue_datas if each.perm & PERM_WRITE}

    topics = [
        topic for topic in await acting.admin.name_servers.topic_list(server) if not topic.startswith("%")
    ]
    asked = topics[:TOPICS_ASKED_MAX]
    writable = await gather_some(writable_at(topic) for topic in asked)
    alone = [topic for topic, brokers in zip(asked, writable, strict=True) if brokers == {broker_name}]
    return alone, len(topics) - len(asked)


async def _wipe(acting: Acting, asked: BrokerName) -> list[ServerOutcome]:
    async def one(server: str) -> str:
        return f"{await acting.admin.name_servers.wipe_write_perm(server, asked.broker_name)} topics changed"

    return await at_each(acting.name_servers, one)


async def _preview_add(acting: Acting, asked: BrokerName) -> Preview:
    return Preview(
        what=f"All topics of {asked.broker_name} get read and write permission.",
        servers=list(acting.name_servers),
        command=_command(acting, "addWritePerm", asked),
    )


async def _add(acting: Acting, asked: BrokerName) -> list[ServerOutcome]:
    async def one(server: str) -> str:
        return f"{await acting.admin.name_servers.add_write_perm(server, asked.broker_name)} topics changed"

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
