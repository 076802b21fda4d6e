"""Suite scale, further work in slices: a name server's topics, POP, a controller's metrics.

A subject makes a table, and its work returns a coroutine each time, of which the longest turn counts.
"""

import asyncio
import random
import tempfile
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from broker.metadata.topics import TopicTable
from broker.pop.core.state import Checkpoint, Key, PopState
from broker.store.message_store import MessageStore
from broker.store.settings import NamedTopic
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.slices import in_slices
from namesrv.core.routes import RouteTable
from namesrv.core.values import RegisterBody, Registration
from namesrv.plugins.controller.core.state import BrokerSet, Replica
from namesrv.plugins.controller.core.tally import NEW_MASTER_ELECTED, OTHER, Counted
from namesrv.plugins.controller.http import metrics
from tests.support.controller_fakes import CLUSTER, Bench

Step = Callable[[], Coroutine[Any, Any, object]]

REVIVE_QUEUES = 8
ACKS_AT_ONCE = 50
CUT_MESSAGES = 16


def shuffled(topics: int) -> list[str]:
    """Names in an order that no sort takes for sorted already."""
    names = [f"topic{number}" for number in range(topics)]
    random.Random(1).shuffle(names)
    return names


def _registered(routes: RouteTable, body: RegisterBody) -> None:
    routes.register(Registration("c", "broker0", 0, "10.1.0.0:1", enable_acting_master=True, body=body))


@contextmanager
def _routes(topics: int) -> Iterator[tuple[RouteTable, RegisterBody]]:
    one = TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=8)
    body = RegisterBody(topics=dict.fromkeys(shuffled(topics), one))
    routes = RouteTable()
    _registered(routes, body)
    yield routes, body


@contextmanager
def broker_leaves(topics: int) -> Iterator[Step]:
    """A name server removes the last broker of a group, and sweeps what is left of it."""
    with _routes(topics) as (routes, body):

        async def leave() -> None:
            routes.unregister("c", "broker0", "10.1.0.0:1")
            await in_slices(_sweep(routes))

        def step() -> Coroutine[Any, Any, object]:
            _registered(routes, body)
            return leave()

        yield step


def _sweep(routes: RouteTable) -> Generator[None, None, None]:
    while routes.sweep():
        yield


@contextmanager
def topic_list(topics: int) -> Iterator[Step]:
    """206."""
    with _routes(topics) as (routes, _):
        yield lambda: in_slices(routes.topics())


@contextmanager
def topics_of_cluster(topics: int) -> Iterator[Step]:
    """224."""
    with _routes(topics) as (routes, _):
        yield lambda: in_slices(routes.topics_of_cluster("c"))


@contextmanager
def unit_topics(topics: int) -> Iterator[Step]:
    """311, of a broker without any."""
    with _routes(topics) as (routes, _):
        yield lambda: in_slices(routes.unit_topics())


@contextmanager
def permissions(topics: int) -> Iterator[Step]:
    """205 and 327."""
    with _routes(topics) as (routes, _):

        async def change() -> None:
            routes.wipe_write_perm("broker0")
            await asyncio.sleep(0)
            routes.add_write_perm("broker0")

        yield change


@contextmanager
def system_topics(topics: int) -> Iterator[Step]:
    """305 of a broker."""
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        table = TopicTable(Path(directory) / "topics.json", broker_name="b", cluster_name="c")
        table.load()
        table.rows_max = 1 << 30  # type: ignore[misc]
        one = TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=8)
        table.change({name: one.model_copy(update={"topic_name": name}) for name in shuffled(topics)})
        yield lambda: in_slices(table.system_topics())


def _popped(checkpoints: int) -> tuple[PopState, list[Key]]:
    state, keys = PopState([0] * REVIVE_QUEUES), list[Key]()
    for number in range(checkpoints):
        queue = number % REVIVE_QUEUES
        key = Key(f"group{number % 100}", "topic", queue, number, number)
        state.stored(Checkpoint(key, 60_000, (number,), number + 1, queue), number // REVIVE_QUEUES)
        keys.append(key)
    random.Random(1).shuffle(keys)
    return state, keys


def queues_cut(
    make: Callable[[int], AbstractContextManager[MessageStore]],
) -> Callable[[int], AbstractContextManager[Step]]:
    """A slave cuts CUT_MESSAGES messages off its log. make: a store with so many queues."""

    @contextmanager
    def cut(queues: int) -> Iterator[Step]:
        with make(queues) as store:

            async def begin(offset: int) -> None:
                store.cutter.begin_cut(offset, await in_slices(store.cutter.plan_cut(offset)))

            def step() -> Coroutine[Any, Any, object]:
                if store.cutter.is_cutting:
                    store.cutter.write_cut()
                    store.cutter.end_cut()
                    store.become_master()
                end = store.commit_log.max_offset
                for number in range(CUT_MESSAGES):
                    topic = NamedTopic(f"topic{number // 8}")
                    store.put(topic, number % 8, b"x", b"", 0, 0, 1, b"\x7f\0\0\1\0\0\x2a\x9f", 0, 0, 1)
                store.set_confirm_offset(store.commit_log.max_offset)
                store.become_slave()
                return begin(end)

            yield step
            store.cutter.write_cut()
            store.cutter.end_cut()

    return cut


@contextmanager
def acknowledged(checkpoints: int) -> Iterator[Step]:
    """All of the checkpoints are acknowledged before they are due, in any order."""
    tables: list[tuple[PopState, list[Key]]] = []

    async def acknowledge() -> None:
        state, keys = tables[-1]
        for number, key in enumerate(keys):
            state.end(key, key.queue_id, key.start_offset)
            if number % ACKS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def step() -> Coroutine[Any, Any, object]:
        tables[:] = [_popped(checkpoints)]  # kept, so that no turn counts the time to free it
        return acknowledge()

    yield step


@contextmanager
def overdue(checkpoints: int) -> Iterator[Step]:
    """What a scrape asks while all checkpoints are overdue."""
    state, _ = _popped(checkpoints)

    async def look() -> None:
        state.overdue_since(1 << 40)

    yield look


@contextmanager
def controller_metrics(groups: int) -> Iterator[Step]:
    """A scrape of a controller; each group had an election."""
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        bench = asyncio.run(_controller(Path(directory), groups))
        yield lambda: in_slices(metrics.scrapes(bench.plugin.metric_sources()))


async def _controller(directory: Path, groups: int) -> Bench:
    bench = Bench(directory)
    state = bench.plugin.machine.state
    for number in range(groups):
        name = f"broker{number}"
        replicas = {each: Replica(f"10.2.{number}.{each}:1", f"{each};0") for each in (1, 2, 3)}
        state = state.with_set(BrokerSet(CLUSTER, name, 4, replicas, 1, 1, frozenset({1, 2, 3}), 1))
        bench.plugin.tally.counts[Counted(CLUSTER, name, NEW_MASTER_ELECTED, OTHER)] += 1
    bench.plugin.machine.state = state
    return bench
