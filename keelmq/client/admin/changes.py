"""Changes that take requests to several servers: ordered topics, deletions of topics and of groups'
topics. A server's failure is not raised: each server has its own result.

A deletion goes to the masters first, then to their slaves and to the name servers: a broker that keeps a
topic registers it again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from keelmq.client.admin.client import AdminClient
from keelmq.client.admin.progress import DLQ_PREFIX, RETRY_PREFIX
from keelmq.client.admin.transport import AdminError, ServerResult
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operations.route import BrokerData

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
GROUP_TOPICS: Final = (RETRY_PREFIX, DLQ_PREFIX)
"""Prefixes of the topics that belong to a group."""


async def set_order_conf(
    admin: AdminClient, namesrv_addr: str, topic: str, brokers: Sequence[BrokerData], queues: int
) -> tuple[str, list[ServerResult[None]]]:
    """Writes the queues of an ordered topic to the KV configuration of all name servers. Returns what was
    written, and the results."""
    conf = ";".join(f"{each.broker_name}:{queues}" for each in brokers if MASTER_ID in each.broker_addrs)
    return conf, await admin.each(
        namesrv_addr, lambda each: admin.name_servers.put_kv_config(each, ORDER_NAMESPACE, topic, conf)
    )


async def delete_topic(
    admin: AdminClient, namesrv_addr: str, topic: str, cluster_name: str, brokers: Sequence[BrokerData]
) -> tuple[list[ServerResult[None]], list[ServerResult[None]]]:
    """Returns the results of the brokers and of the name servers. If all masters refuse, as they do for a
    system topic, the other servers are not contacted: the topic stays, and clients need its route."""
    at_brokers: list[ServerResult[None]] = []
    for of_masters in (True, False):  # then slaves have the deletion from their master
        addresses = [
            address
            for each in brokers
            for broker_id, address in each.broker_addrs.items()
            if (broker_id == MASTER_ID) is of_masters
        ]
        if addresses:
            at_brokers += await admin.each(
                ";".join(addresses), lambda each: admin.brokers.delete_topic_in_broker(each, topic)
            )
        if at_brokers and all(_refuses(each.error) for each in at_brokers):
            return at_brokers, []
    at_servers = await admin.each(
        namesrv_addr, lambda each: admin.name_servers.delete_topic_in_namesrv(each, topic, cluster_name)
    )
    return at_brokers, at_servers


async def delete_group_topics(
    admin: AdminClient, masters: Sequence[str], namesrv_addr: str, cluster_name: str, group: str
) -> list[ServerResult[None]]:
    """Deletes the retry and the dead letter topic of a group. Returns the results of all servers."""
    results: list[ServerResult[None]] = []
    for topic in (prefix + group for prefix in GROUP_TOPICS):
        in_server = partial(
            admin.name_servers.delete_topic_in_namesrv, topic=topic, cluster_name=cluster_name
        )
        results += await admin.each(
            ";".join(masters), partial(admin.brokers.delete_topic_in_broker, topic=topic)
        )
        results += await admin.each(namesrv_addr, in_server)
    return results


def _refuses(error: AdminError | None) -> bool:
    """Returns whether a broker that can delete topics reported that it did not."""
    if error is None or error.unknown:
        return False
    return error.code not in (None, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
