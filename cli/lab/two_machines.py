"""Two machines, each a container with a replica of every group, under traffic: the operations of the demo and
the bench of containers."""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from cli.lab.ack_log import AckLog, Report
from cli.lab.cluster import ClusterError
from cli.lab.container_cluster import ContainerCluster, ContainerProgram
from cli.lab.observer import Picture, Watcher
from cli.lab.traffic import Traffic, read_back
from keelmq.client.admin import AdminClient
from keelmq.client.cluster.routes import DEFAULT_TOPIC
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.runtime.clock import now_ms
from keelmq.runtime.stop_steps import StopSteps, stop_after

MACHINES: Final = 2
QUEUES: Final = 4
START_TIMEOUT_S: Final = 30.0
GAP_TIMEOUT_S: Final = 15.0
REJOIN_TIMEOUT_S: Final = 60.0


class TwoMachines:
    """Each group has its own topic, producer and ack log, so that its gaps are measured separately."""

    def __init__(self, cluster: ContainerCluster, groups: Sequence[str], *, rate: int) -> None:
        """rate: messages per second, to each group."""
        self.cluster, self.groups = cluster, tuple(groups)
        self.logs = {name: AckLog() for name in groups}
        self._watchers = {name: Watcher(cluster.group(name)) for name in groups}
        self._traffic = {
            name: Traffic(cluster.namesrv_addr, topic_of(name), log, rate=rate)
            for name, log in self.logs.items()
        }
        self._client = RemotingClient()
        self._admin = AdminClient(self._client)

    async def close(self) -> None:
        """Ends the traffic and closes all connections; the programs belong to the caller."""
        steps = StopSteps("two machines")
        for traffic in self._traffic.values():
            steps.add("a producer", traffic.close)
        for watcher in self._watchers.values():
            steps.add("a watcher", watcher.close)
        steps.add("connections", self._client.close)
        await stop_after(steps.run, sys.exc_info()[1])

    async def start(self, masters: Mapping[str, int]) -> None:
        """Starts everything; returns when each group acknowledges messages. masters: as for place()."""
        self.cluster.start()
        await self.all_in_sync("after the start", START_TIMEOUT_S)
        for name in self.groups:
            await self.cluster.until(
                f"the topic of {name}", partial(self._make_topic, name), timeout_s=START_TIMEOUT_S
            )
        await self.place(masters)
        for name, traffic in self._traffic.items():
            traffic.start()
            await self._until(f"the first message to {name}", partial(_is_acked, self.logs[name]))

    async def place(self, masters: Mapping[str, int]) -> list[str]:
        """Makes the replicas on these machines masters: {group: number of the machine}. Returns the names of
        those that were not."""
        moved = []
        for name, index in masters.items():
            wanted = self.cluster.group(name).brokers[index].name
            picture = await self._watchers[name].look()
            replica = next(each for each in picture.replicas if each.name == wanted)
            if picture.master == wanted or replica.broker_id is None:
                continue
            leader = await self._watchers[name].controller_leader()
            if leader is None:
                raise ClusterError("no controller leads")
            await self._admin.controllers.elect_master(
                leader,
                cluster_name=self.cluster.cluster_name,
                broker_name=name,
                broker_id=replica.broker_id,
            )
            await self.cluster.until(
                f"{wanted} is master of {name}",
                partial(self._is_master, name, wanted),
                timeout_s=GAP_TIMEOUT_S,
            )
            moved.append(wanted)
        return moved

    async def kill(self, machine: ContainerProgram) -> list[str]:
        """Kills a machine with SIGKILL; returns the groups whose master was there. See gaps()."""
        pictures = await self.all_in_sync("before the kill", REJOIN_TIMEOUT_S)
        index = self.cluster.containers.index(machine)
        there = {self.cluster.group(name).brokers[index].name for name in self.groups}
        killed_ms = now_ms()
        await self.cluster.kill_and_wait(machine)
        for log in self.logs.values():
            log.killed(killed_ms)
        return [name for name, picture in pictures.items() if picture.master in there]

    async def gaps(self) -> dict[str, int]:
        """Returns {group: ms from the kill to the first acknowledged message that was sent after it}."""
        for name in self.groups:
            await self._until(
                f"a message to {name} that is acknowledged again", partial(_is_served, self.logs[name])
            )
        return {name: log.gaps_ms[-1] for name, log in self.logs.items()}

    async def all_in_sync(self, what: str, timeout_s: float = REJOIN_TIMEOUT_S) -> dict[str, Picture]:
        """Returns when every replica of every group is in its SyncStateSet."""

        async def pictures() -> dict[str, Picture] | None:
            found = {name: await watcher.look() for name, watcher in self._watchers.items()}
            return found if all(each.all_in_sync(MACHINES) for each in found.values()) else None

        return await self.cluster.until(f"all replicas in sync {what}", pictures, timeout_s=timeout_s)

    def check(self) -> None:
        """Raises the exception that ended a producer, or ClusterError if a program ended that was not
        killed."""
        for traffic in self._traffic.values():
            traffic.check()
        self.cluster.check()

    def failed_sends(self) -> int:
        """Returns how many sends ended in an error so far."""
        return sum(log.unacknowledged for log in self.logs.values())

    async def end(self) -> dict[str, Report]:
        """Stops the traffic, reads everything back, and returns a report for each group."""
        for traffic in self._traffic.values():
            await traffic.stop()
        await self.all_in_sync("at the end")
        for name, log in self.logs.items():
            await read_back(self.cluster.namesrv_addr, topic_of(name), log)
        return {name: log.report() for name, log in self.logs.items()}

    async def _make_topic(self, name: str) -> bool:
        picture = await self._watchers[name].look()
        master = next((each for each in picture.replicas if each.role == "master"), None)
        header = CreateTopicRequest(
            topic=topic_of(name),
            default_topic=DEFAULT_TOPIC,
            read_queue_nums=QUEUES,
            write_queue_nums=QUEUES,
            perm=6,
        )
        return master is not None and isinstance(
            await self._client.call(master.address, UPDATE_AND_CREATE_TOPIC, header), Ok
        )

    async def _is_master(self, name: str, wanted: str) -> bool:
        found = await self._watchers[name].look()
        return found.master == wanted and found.all_in_sync(MACHINES)

    async def _until(self, what: str, condition: Callable[[], bool]) -> None:
        async def asked() -> bool:
            for traffic in self._traffic.values():
                traffic.check()
            return condition()

        await self.cluster.until(what, asked, timeout_s=GAP_TIMEOUT_S)


def topic_of(group: str) -> str:
    """Returns the topic that only this group has."""
    return f"Demo-{group}"


def _is_acked(log: AckLog) -> bool:
    return log.acked > 0


def _is_served(log: AckLog) -> bool:
    return not log.is_waiting
