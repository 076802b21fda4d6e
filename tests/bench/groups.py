"""The broker groups of the control plane's benchmarks: 3,000 groups with 10,000 brokers, or fewer."""

from dataclasses import dataclass

from keelmq.remoting.command import encode, request_command
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest

CLUSTER = "BenchCluster"
HEARTBEAT_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Group:
    broker_name: str
    addresses: dict[int, str]  # by broker id, from 1
    cluster_name: str = CLUSTER


def groups_of(groups: int, brokers: int) -> list[Group]:
    """As even as it goes: 10,000 brokers in 3,000 groups are 1,000 groups of four and 2,000 of three."""
    every, more = divmod(brokers, groups)
    return [
        Group(
            f"bench-{at:04d}",
            {each: f"10.{at >> 8}.{at & 255}.{each}:10911" for each in range(1, every + 1 + (at < more))},
        )
        for at in range(groups)
    ]


def heartbeat(group: Group, broker_id: int) -> bytes:
    """904 as broker.controller_mode.service sends it: every field, oneway."""
    header = BrokerHeartbeatRequest(
        cluster_name=group.cluster_name,
        broker_name=group.broker_name,
        broker_addr=group.addresses[broker_id],
        broker_id=broker_id,
        epoch=1,
        max_offset=123_456_789,
        confirm_offset=123_456_000,
        heartbeat_timeout_mills=HEARTBEAT_TIMEOUT_MS,
        min_in_sync_replicas=1,
    )
    return encode(request_command(BROKER_HEARTBEAT, header, oneway=True))
