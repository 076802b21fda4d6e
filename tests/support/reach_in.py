"""What tests do to objects behind their public names, in one place, because nobody but a test may do it.

To hang (a link that reads no more, a disk that never syncs), to vanish without a word (a consumer, a member
of the raft group), and to step the raft library by hand instead of by its thread: programs have no use for
that, so these are no methods. Everything else is tested through public names (tests/test_house.py).
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from broker.app.broker import Broker
from broker.container.app import ContainerServer
from broker.container.local_host import LocalHost
from broker.ha.service import HaService
from broker.store.log.group_commit import GroupCommit
from broker.store.message_store import MessageStore
from keelmq.blocking import BlockingPushConsumer
from keelmq.client.cluster.heartbeats import Membership
from keelmq.client.cluster.queue_reader import QueueReader
from keelmq.client.consumer.group import GroupMember
from keelmq.client.consumer.lite_pull_consumer import LitePullConsumer as Consumer
from keelmq.client.consumer.pull_consumer import PullConsumer
from keelmq.client.consumer.push_consumer import PushConsumer
from keelmq.client.producer.producer import Producer
from keelmq.remoting.connection import Connection
from namesrv.plugins.controller.raft.replica import Replica
from namesrv.plugins.controller.raft.storage.journal import Journal


def link_of(slave: HaService) -> asyncio.Transport:
    """The transport of the slave's link to its master; pause_reading() makes it a slave that hangs."""
    assert slave.client is not None and slave.client.protocol is not None
    transport = slave.client.protocol._transport
    assert transport is not None
    return transport


def socket_of(connection: Connection) -> socket.socket:
    """For what is set on the socket and seen nowhere else."""
    transport = connection._transport
    assert transport is not None
    found: socket.socket = transport.get_extra_info("socket")
    return found


def sync_by(commit: GroupCommit, sync: Callable[[], int]) -> None:
    """Makes a running broker's group commit sync in this way: a disk that hangs."""
    commit._sync = sync


def membership_of(producer: Producer) -> Membership:
    """Which brokers know the producer, by its heartbeats."""
    return producer._membership


def member_of(consumer: PushConsumer | BlockingPushConsumer | Consumer) -> GroupMember:
    """What of the consumer is a member of its group: for the queues that it has, and how far it is."""
    client = consumer._open_client if isinstance(consumer, BlockingPushConsumer) else consumer
    return client._member


def no_topic_since_ms(consumer: PushConsumer) -> int | None:
    """Since when the consumer has had no topic but its retry topic, which it warns of later."""
    return member_of(consumer)._unassigned._no_topic_since_ms


def pulls_everywhere(consumer: PushConsumer) -> bool:
    """Whether a pull of each of the consumer's queues waits at a broker."""
    return all(each._pulling is not None for each in member_of(consumer).process_queues.values())


def tasks_that_wait(consumer: Consumer) -> int:
    """How many tasks wait for messages of the consumer."""
    return consumer._waits


def reader_of(consumer: PullConsumer) -> QueueReader:
    """What asks the brokers, with a timeout for each question."""
    return consumer._reader


async def vanish(consumer: PushConsumer) -> None:
    """As if its process were gone: no more heartbeats, no farewell."""
    member = consumer._member
    await member._tasks.stop()
    await member._upkeep.stop()
    for process_queue in member.process_queues.values():
        process_queue.dropped = True
    await member.client.close()


def waiting_jobs(consumer: PushConsumer) -> int:
    """Messages that wait for a free task of the listener, and those that a task works on."""
    sink: Any = consumer._sink
    return sink._jobs.qsize() + len(sink._busy)


def raft_core(replica: Replica) -> Any:
    """The raft library inside; None unless the member runs."""
    return replica._core


def open_core(replica: Replica) -> Any:
    """Opens the files and the library without its thread: the caller calls doTick()."""
    replica._core = replica._open()
    return replica._core


def library_part(core: Any, name: str) -> Any:
    """An attribute that PySyncObj keeps to itself by name mangling."""
    return core._private(name)


def forget_file(journal: Journal) -> None:
    """The process is gone: close() writes nothing any more."""
    journal._file = -1


def inner_broker(server: ContainerServer, name: str) -> Broker:
    """The broker of this brokerName in a container, to break it."""
    (host,) = server.hosts
    assert isinstance(host, LocalHost)
    return next(each.broker for identity, each in host._running.items() if identity.name == name)


def hang_in_stop(broker: Broker, wait: Callable[[], Awaitable[Any]]) -> None:
    """Its stop waits for this, in one of its first steps."""
    broker._drain = wait  # type: ignore[method-assign,assignment]


def read_from(store: MessageStore, offset: int) -> None:
    """A start has neither scanned nor dispatched the log from this record on."""
    store.dispatcher.dispatch_offset = offset
    store.dispatcher.scan_again()
