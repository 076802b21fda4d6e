"""Producers that are connected to the brokers, by group."""

from typing import Any

from keelmq.console.data.cluster_context import (
    ClusterContext,
    Every,
    Page,
    ServerProblems,
    ask_each,
    brokers_in,
)
from keelmq.remoting.operation import Wire
from keelmq.runtime.clock import wall_ms


class ProducerRow(Wire):
    """A client of a producer group, and the broker names that it is connected to."""

    group: str
    client_id: str
    address: str
    language: str
    version: int | None
    brokers: list[str]


class ProducersView(Page):
    """A page of producers."""

    producers: list[ProducerRow]


async def all_producers(context: ClusterContext) -> Every[ProducerRow]:
    """Returns every producer. AdminError: no name server answers."""
    server_problems = ServerProblems()
    info = await context.admin.name_servers.cluster_info(context.name_servers)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for broker, table in await ask_each(server_problems, brokers_in(info), context.admin.groups.producers):
        for group, clients in table.items():
            for client in clients:
                key = (str(group), str(client.get("clientId") or ""))
                row = found.setdefault(key, {**client, "brokers": set()})
                row["brokers"].add(broker.name)
    rows = [
        ProducerRow(
            group=group,
            client_id=client_id,
            address=str(row.get("remoteIP") or row.get("remoteAddr") or ""),
            language=str(row.get("language") or ""),
            version=row["version"] if isinstance(row.get("version"), int) else None,
            brokers=sorted(row["brokers"]),
        )
        for (group, client_id), row in sorted(found.items())
    ]
    return Every(
        taken_ms=wall_ms(), rows=rows, problems=server_problems.listed, not_asked=server_problems.not_asked
    )


def page_of(every: Every[ProducerRow], *, words: str, offset: int, limit: int) -> ProducersView:
    """Returns a page of the producers whose group, id or address has every word."""
    found = every.found(words, lambda row: f"{row.group} {row.client_id} {row.address}")
    return ProducersView(**every.page(len(found)), producers=found[offset : offset + limit])
