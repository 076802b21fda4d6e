"""Selects brokers of a topic or a cluster: functions over routes, and requests to all of them."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from keelmq.client.admin.transport import AdminError, AdminTransport
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.route import TopicRouteData

T = TypeVar("T")


def readable_addresses(route: TopicRouteData) -> list[tuple[str, str]]:
    """Returns (broker name, address) of each broker of a topic: its master, or else another replica."""
    return [
        (broker.broker_name, broker.broker_addrs[min(broker.broker_addrs)])
        for broker in route.broker_datas
        if broker.broker_addrs
    ]


def masters_of(route: TopicRouteData) -> TopicRouteData:
    """Returns the route with masters only: slaves refuse to change offsets."""
    brokers = [
        each.model_copy(update={"broker_addrs": {MASTER_ID: each.broker_addrs[MASTER_ID]}})
        for each in route.broker_datas
        if MASTER_ID in each.broker_addrs
    ]
    return route.model_copy(update={"broker_datas": brokers})


async def ask_brokers(
    admin: AdminTransport, route: TopicRouteData, ask: Callable[[str], Awaitable[T]]
) -> tuple[list[tuple[str, T]], list[AdminError]]:
    """Returns (address, answer) of each broker of a topic that answered, and the errors of the others."""
    addresses = [address for _, address in readable_addresses(route)]
    results = await admin.each(";".join(addresses), ask) if addresses else []
    errors = [each.error for each in results if each.error is not None]
    return [(each.address, each.answer) for each in results if each.answer is not None], errors
