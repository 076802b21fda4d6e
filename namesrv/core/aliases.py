"""Alias entries of a route: further broker names that lead to the same queues through another replica. Pure.

A stock client reads the route every 30 s, and retries a failed message at once at *another broker name*. If
only one group has the topic, there is no other name: until the next poll every retry goes to the dead master.
So the answer to 105 lists, besides broker-a, the name broker-a%alias1 with one write queue, no permission to
read, and the address of a live slave as master. The slave forwards to the master (docs/adr/0041).

An alias's queue 0 is queue 0 of the group, and the number of aliases depends on settings and on the topic's
queues, not on who is alive: a producer that chooses a queue by key finds the same list after a fail-over.
"""

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from keelmq.remoting.codes import MASTER_ID, PERM_WRITE
from keelmq.remoting.operations.route import BrokerData, QueueData

ALIAS_QUEUES = 1
"""Write queues of an alias. Its readQueueNums is the same: a client that creates a topic reads the number of
its queues there."""
PERCENT_MAX = 50
REPLY_SUFFIX = "_REPLY_TOPIC"
WITHOUT_PREFIXES = (
    "%RETRY%",
    "%DLQ%",
    "rmq_sys_",
    "RMQ_SYS_TRANS_",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SCHEDULE_TOPIC_",
)
"""Topics that brokers and consumers write. RocketMQ's tools add up the figures of all brokers of a %RETRY%
topic."""


class AliasLimits(msgspec.Struct, frozen=True):
    """per_group: entries of a group, 0: none. percent_max: of a topic's write queues, aliases included; this
    share of the messages takes the second hop."""

    per_group: int = 0
    percent_max: int = 34

    def count(self, write_queues: int) -> int:
        """Returns how many aliases a topic with this many write queues gets."""
        percent = min(self.percent_max, PERCENT_MAX)
        return min(self.per_group, write_queues * percent // (100 * ALIAS_QUEUES - percent))


NO_ALIASES = AliasLimits()


def alias_name(broker_name: str, number: int) -> str:
    """Returns the broker name of a group's alias; numbers start at 1."""
    return f"{broker_name}%alias{number}"


def may_have_aliases(topic: str, names: Collection[str]) -> bool:
    """Returns whether clients send to a topic of this name. `names`: those of clusters and broker groups,
    which are topics too."""
    if topic in names or topic.startswith(WITHOUT_PREFIXES):
        return False
    # A reply goes to the requester over the connection of its heartbeats, which is one to the master.
    return topic.removesuffix(REPLY_SUFFIX) == topic or topic.removesuffix(REPLY_SUFFIX) not in names


def only_writable(queues: Sequence[QueueData]) -> int | None:
    """Returns the index of the only group that accepts messages; None: no group does, or several do."""
    writable = [at for at, queue in enumerate(queues) if queue.perm & PERM_WRITE]
    return writable[0] if len(writable) == 1 else None


def alias_addresses(group: BrokerData, forwarders: Collection[str], *, keeps: bool) -> list[str]:
    """Returns the slaves that forward, by id. `keeps`: if no slave forwards, the aliases lead to the master,
    so that the list of queues does not change."""
    slaves = [addr for each, addr in group.broker_addrs.items() if each != MASTER_ID and addr in forwarders]
    master = group.broker_addrs.get(MASTER_ID)
    return slaves or ([master] if keeps and master is not None else [])


def alias_entries(
    group: BrokerData,
    queue: QueueData,
    addresses: Sequence[str],
    limits: AliasLimits,
    taken: AbstractSet[str],
) -> tuple[list[BrokerData], list[QueueData]]:
    """Returns the aliases of a group for one topic, and their queues.

    `addresses`: of the replicas that forward, in a fixed order; none: no alias. `taken`: names of registered
    groups, which no alias may have.
    """
    brokers: list[BrokerData] = []
    queues: list[QueueData] = []
    if not addresses or not queue.perm & PERM_WRITE:
        return brokers, queues
    for number in range(1, limits.count(queue.write_queue_nums) + 1):
        name = alias_name(group.broker_name, number)
        if name in taken:
            continue
        addrs = {MASTER_ID: addresses[(number - 1) % len(addresses)]}
        brokers.append(group.model_copy(update={"broker_name": name, "broker_addrs": addrs}))
        queues.append(
            QueueData(
                broker_name=name,
                read_queue_nums=ALIAS_QUEUES,
                write_queue_nums=ALIAS_QUEUES,
                perm=PERM_WRITE,
                topic_sys_flag=queue.topic_sys_flag,
            )
        )
    return brokers, queues
