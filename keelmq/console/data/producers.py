"""Producers that are connected to the brokers, by group."""

from typing import Any

from pydantic import Field

from keelmq.console.data.place import Asked, Place, ServerProblem, ask_each, brokers_in
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


class ProducersView(Wire):
    """A page of producers. total: of all; found: that match the filter."""

    taken_ms: int
    total: int
    found: int
    producers: list[ProducerRow]
    problems: list[ServerProblem] = Field(default_factory=list)
    not_asked: int = 0


async def all_producers(place: Place) -> ProducersView:
    """Returns every producer. AdminError: no name server answers."""
    asked = Asked()
    info = await place.admin.name_servers.cluster_info(place.name_servers)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for broker, table in await ask_each(asked, brokers_in(info), place.admin.groups.producers):
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
    return ProducersView(
        taken_ms=wall_ms(),
        total=len(rows),
        found=len(rows),
        producers=rows,
        problems=asked.listed,
        not_asked=asked.not_asked,
    )


def page_of(every: ProducersView, *, words: str, offset: int, limit: int) -> ProducersView:
    """Returns a page of the producers whose group, id or address has every word."""
    wanted = words.lower().split()
    found = [
        row
        for row in every.producers
        if all(word in f"{row.group} {row.client_id} {row.address}".lower() for word in wanted)
    ]
    return every.model_copy(update={"found": len(found), "producers": found[offset : offset + limit]})
