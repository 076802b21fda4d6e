"""Suite scale: what a request, or a run of a periodic task, costs with tables of 1, 10 and 100 times a size.

CPU time of the thread that does it (in a broker or name server: the event loop's), without wire and disk. The
slope is the exponent of the cost: 0 where it does not depend on the table, 1 where it is proportional to it;
of both decades the steeper one. A request may not depend on a table, a periodic task may grow in proportion.
The tolerances are for caches of the processor, which larger tables miss more often. Of work in slices
(kind step) the longest slice counts, which has a limit at the largest size (docs/adr/0061).
"""

import asyncio
import gc
import math
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, cast

from broker.admin.group_metrics import add_reads
from broker.admin.metrics import TABLE
from broker.clients.core.locks import Queue, QueueLocks
from broker.clients.core.registry import Client, ClientRegistry, Consumer
from broker.core.read_counters import ReadCounters
from broker.metadata.encoded_rows import RowEncoder
from broker.metadata.groups import GroupTable
from broker.metadata.service import Metadata
from broker.metadata.topics import TopicTable
from broker.metadata.wire import decode_updates, encode_updates
from broker.naming.registration import RegisteredBroker, bodies_of, registration_of
from broker.stats.core.shared_counters import SharedCounters
from broker.stats.service import BrokerStats
from broker.store.message_store import MessageStore
from broker.store.offline import offline_store
from broker.store.settings import NamedTopic, StoreConfig
from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicConfig
from keelmq.remoting.servers.metrics import Scrape
from keelmq.runtime.slices import in_slices
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.core.routes import RouteTable
from namesrv.core.values import RegisterBody, Registration
from namesrv.plugins.controller.core.apply import apply
from namesrv.plugins.controller.core.decide import decide_read
from namesrv.plugins.controller.core.events import AlterSyncStateSet
from namesrv.plugins.controller.core.state import BrokerSet, Replica, State
from tests.bench import scale_steps
from tests.bench.report import Measurement, Results
from tests.bench.scale_offsets import (
    commit_in_row,
    commit_of,
    of_offsets,
    replicated_commit,
    table_of,
    whole_table,
)

FACTORS: Final = (1, 10, 100)
LIMITS: Final = {"request": 0.3, "period": 1.5, "step": 20_000}
"""Greatest slope: with ten times the rows a request may cost twice as much, and a period 30 times. Of a step:
the longest slice at the largest size, µs."""
SAMPLE_NS: Final = 3_000_000
ROUNDS: Final = 5
PART_TOPICS: Final = 800
HOST: Final = b"\x7f\0\0\1\0\0\x2a\x9f"
LOG_FILE_BYTES: Final = 64 << 20

Kind = Literal["request", "period", "step"]
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Subject:
    """Work by the size of a table. rows: what the table has, and how many at factor 1. make: a context whose
    work is called many times; of a step it returns a coroutine."""

    kind: Kind
    rows: str
    size: int
    make: Callable[[int], AbstractContextManager[Work]]


@dataclass(frozen=True)
class Scaled(Measurement):
    """value: µs at the largest size; yardstick: at the smallest; ratio: the slope. costs_us: at FACTORS."""

    kind: str = "request"
    rows: str = ""
    costs_us: tuple[float, ...] = ()
    limit: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether it is within the limit of its kind."""
        return (self.value if self.kind == "step" else self.ratio) <= self.limit


def scaled(kind: Kind, rows: str, costs_us: Iterable[float]) -> Scaled:
    """The figure of costs at FACTORS, in µs."""
    costs = tuple(costs_us)
    return Scaled(costs[-1], "us", costs[0], slope(costs), kind, rows, costs, LIMITS[kind])


def slope(costs_us: tuple[float, ...]) -> float:
    """The steepest exponent between neighbours of FACTORS."""
    steps = zip(
        zip(FACTORS, costs_us, strict=True), zip(FACTORS[1:], costs_us[1:], strict=True), strict=False
    )
    return max(math.log(after / before) / math.log(more / less) for (less, before), (more, after) in steps)


def run(*, subjects: Mapping[str, Subject] | None = None, factors: tuple[int, ...] = FACTORS) -> Results:
    """Scaled figures by name. factors: others only in tests, which want small tables."""
    return {
        name: scaled(each.kind, each.rows, [cost_us(each, each.size * factor) for factor in factors])
        for name, each in (SUBJECTS if subjects is None else subjects).items()
    }


def faults(results: Results) -> list[str]:
    """What grows faster than it may."""
    return [
        f"{name}: the longest step with {each.rows} is {each.value:.0f} µs, limit {each.limit:.0f}"
        if each.kind == "step"
        else f"{name} ({each.kind}) grows with {each.rows} by the power {each.ratio:.2f}, limit {each.limit}"
        for name, each in results.items()
        if isinstance(each, Scaled) and not each.is_well
    ]


def show(results: Results) -> None:
    """Prints the table."""
    width = max(len(name) for name in results)
    heads = "".join(f"{'x ' + str(factor):>12}" for factor in FACTORS)
    print(f"{'µs of CPU time':{width}}  {'per':<8} {'rows of':<16}{heads} {'slope':>7}  verdict")
    for name, each in results.items():
        assert isinstance(each, Scaled)
        costs = "".join(f"{cost:>12,.2f}" for cost in each.costs_us)
        word = "good" if each.is_well else f"above {each.limit}"
        print(f"{name:{width}}  {each.kind:<8} {each.rows:<16}{costs} {each.ratio:>7.2f}  {word}")


def cost_us(subject: Subject, size: int) -> float:
    """CPU time of one call in µs: the lowest of ROUNDS samples of some ms each, after one call."""
    with subject.make(size) as work:
        if subject.kind == "step":
            return min(longest_slice_us(cast(Coroutine[Any, Any, object], work())) for _ in range(ROUNDS))
        work()
        gc.collect()
        gc.disable()
        try:
            calls, spent = 1, _spent_ns(work, 1)
            while spent < SAMPLE_NS:
                calls *= 2
                spent = _spent_ns(work, calls)
            return min(spent, *(_spent_ns(work, calls) for _ in range(ROUNDS - 1))) / calls / 1_000
        finally:
            gc.enable()


class _Timed(Coroutine[Any, Any, object]):
    """A coroutine whose longest turn is measured."""

    def __init__(self, work: Coroutine[Any, Any, object]) -> None:
        self._work, self.longest_ns = work, 0

    def send(self, value: object) -> object:
        begin = time.thread_time_ns()
        try:
            return self._work.send(value)
        finally:
            self.longest_ns = max(self.longest_ns, time.thread_time_ns() - begin)

    def throw(self, *error: Any) -> object:
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, object]:
        return self._work.__await__()


def longest_slice_us(work: Coroutine[Any, Any, object]) -> float:
    """CPU time of the longest turn of the event loop that the work takes."""
    timed = _Timed(work)

    async def run() -> None:
        await asyncio.get_running_loop().create_task(timed)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()
    return timed.longest_ns / 1_000


def _spent_ns(work: Work, calls: int) -> int:
    begin = time.thread_time_ns()
    for _ in range(calls):
        work()
    return time.thread_time_ns() - begin


# -- a broker's tables -------------------------------------------------------------------------------------


@contextmanager
def _topics(topics: int) -> Iterator[TopicTable]:
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        table = TopicTable(Path(directory) / "topics.json", broker_name="b", cluster_name="c")
        table.load()
        one = TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=8)
        table.change(
            {f"topic{each}": one.model_copy(update={"topic_name": f"topic{each}"}) for each in range(topics)}
        )
        yield table


@contextmanager
def _registration(topics: int) -> Iterator[Work]:
    broker = RegisteredBroker(
        cluster_name="c", broker_name="b", address="1.2.3.4:1", ha_address="", broker_id=0
    )
    with _topics(topics) as table:
        topics_now = asyncio.run(table.encoder.encoded())

        def register() -> None:
            for body in bodies_of(topics_now, part_topics=PART_TOPICS, splits=False):
                registration_of(broker, body)

        yield register


@contextmanager
def _find_topic(topics: int) -> Iterator[Work]:
    with _topics(topics) as table:
        yield lambda: table.get("topic7")


@contextmanager
def _find_group(groups: int) -> Iterator[Work]:
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        table = GroupTable(Path(directory) / "subscriptionGroup.json")
        table.load()
        for number in range(10):
            table.update(SubscriptionGroupConfig(group_name=f"group{number}"))
        row = table.table.rows["group1"]
        table.change({f"group{number}": row for number in range(groups)})
        yield lambda: table.find("group7")


@contextmanager
def _store(queues: int) -> Iterator[MessageStore]:
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        store = offline_store(
            StoreConfig(
                root=Path(directory),
                commit_log_file_bytes=LOG_FILE_BYTES,
                consume_queue_file_bytes=4_000,
                index_enable=False,
            )
        )
        store.load()
        store.become_master()
        for number in range(queues):
            _put(store, number)
        store.set_confirm_offset(store.commit_log.max_offset)
        store.flush()
        try:
            yield store
        finally:
            store.close()


def _put(store: MessageStore, queue: int) -> None:
    topic = NamedTopic(f"topic{queue // 8}")
    store.put(topic, queue % 8, b"x" * 128, b"", 0, 0, 1, HOST, 0, 0, 1_700_000_000_000)


@contextmanager
def _send(queues: int) -> Iterator[Work]:
    """A message to one queue, confirmed and dispatched; the files' preparation has a thread of its own."""
    with _store(queues) as store:

        def send() -> None:
            _put(store, 3)
            store.set_confirm_offset(store.commit_log.max_offset)

        yield send


@contextmanager
def _queue_end(queues: int) -> Iterator[Work]:
    with _store(queues) as store:
        yield lambda: store.queues.max_offset("topic0", 3)


@contextmanager
def _flush(queues: int) -> Iterator[Work]:
    """The flush after one message. A broker runs it in a thread that shares the interpreter with the loop."""
    with _store(queues) as store:

        def flush() -> None:
            _put(store, 3)
            store.set_confirm_offset(store.commit_log.max_offset)
            store.flush()

        yield flush


# -- a broker's connections --------------------------------------------------------------------------------


def _client(number: int) -> Client:
    return Client(number, f"client{number}", f"10.0.{number // 250}.{number % 250}:1", "JAVA", 1)


def _consumer(group: int) -> Consumer:
    return Consumer(f"group{group}", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", ())


def _clients(connections: int) -> ClientRegistry:
    """Ten clients to a group, one producer group to a client."""
    registry = ClientRegistry()
    for number in range(connections):
        registry.heartbeat(_client(number), [_consumer(number // 10)], [f"producers{number // 10}"], now_ms=0)
    return registry


@contextmanager
def _client_heartbeat(connections: int) -> Iterator[Work]:
    registry = _clients(connections)
    yield lambda: registry.heartbeat(_client(3), [_consumer(0)], ["producers0"], now_ms=1)


@contextmanager
def _client_returns(connections: int) -> Iterator[Work]:
    registry = _clients(connections)

    def returns() -> None:
        registry.closed(3)
        registry.heartbeat(_client(3), [_consumer(0)], ["producers0"], now_ms=1)

    yield returns


@contextmanager
def _client_scan(connections: int) -> Iterator[Work]:
    registry = _clients(connections)
    yield lambda: registry.expire(now_ms=1, timeout_ms=120_000)


@contextmanager
def _lock(groups: int) -> Iterator[Work]:
    locks = QueueLocks(locks_max=1 << 30)
    queues = [Queue("topic", number) for number in range(8)]
    for number in range(groups):
        locks.lock(f"group{number}", "client", queues, now_ms=0)
    yield lambda: locks.lock("group3", "client", queues, now_ms=1)


# -- a name server and a controller ------------------------------------------------------------------------


def _body(topics: int) -> RegisterBody:
    one = TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=8)
    return RegisterBody(topics={f"topic{number}": one for number in range(topics)})


def _of_broker(number: int, body: RegisterBody) -> Registration:
    return Registration("c", f"broker{number}", 0, f"10.1.{number // 250}.{number % 250}:1", body=body)


def _routes(brokers: int, topics: int) -> RouteTable:
    routes, body = RouteTable(), _body(topics)
    for number in range(brokers):
        routes.register(_of_broker(number, body if number < 3 else RegisterBody()))
    return routes


@contextmanager
def _route_by_topics(topics: int) -> Iterator[Work]:
    routes = _routes(3, topics)
    yield lambda: routes.pick_up_route("topic7")


@contextmanager
def _route_by_brokers(brokers: int) -> Iterator[Work]:
    routes = _routes(brokers, 10)
    yield lambda: routes.pick_up_route("topic7")


@contextmanager
def _register_by_brokers(brokers: int) -> Iterator[Work]:
    routes, again = _routes(brokers, 10), _of_broker(1, _body(10))
    yield lambda: routes.register(again)


@contextmanager
def _register_by_topics(topics: int) -> Iterator[Work]:
    routes, again = _routes(3, topics), _of_broker(1, _body(topics))
    yield lambda: routes.register(again)


def _heartbeats(brokers: int) -> HeartbeatTable:
    table = HeartbeatTable()
    for number in range(brokers):
        _heartbeat(table, number, 0)
    return table


def _heartbeat(table: HeartbeatTable, number: int, now_ms: int) -> None:
    table.record_heartbeat(
        BrokerKey("c", f"broker{number}", 1),
        connection_id=number + 1,
        incarnation="i",
        timeout_ms=10_000,
        now_ms=now_ms,
        info=None,
    )


@contextmanager
def _broker_heartbeat(brokers: int) -> Iterator[Work]:
    table = _heartbeats(brokers)
    yield lambda: _heartbeat(table, 3, 1)


@contextmanager
def _heartbeat_scan(brokers: int) -> Iterator[Work]:
    table = _heartbeats(brokers)
    yield lambda: table.scan_not_active(1)


def _state(groups: int) -> State:
    state = State()
    for number in range(groups):
        replicas = {each: Replica(f"10.2.{number}.{each}:1", f"{each};0") for each in (1, 2, 3)}
        state = state.with_set(BrokerSet("c", f"broker{number}", 4, replicas, 1, 1, frozenset({1, 2, 3}), 1))
    return state


@contextmanager
def _alter(groups: int) -> Iterator[Work]:
    state = _state(groups)
    event = AlterSyncStateSet(
        broker_name="broker3",
        master_broker_id=1,
        new_sync_state_set=(1, 2),
        expected_master_epoch=1,
        expected_sync_state_set_epoch=1,
    )
    assert apply(state, event).refused is None
    yield lambda: apply(state, event)


@contextmanager
def _replica_info(groups: int) -> Iterator[Work]:
    state = _state(groups)
    yield lambda: decide_read(state, broker_name="broker3")


# -- work in slices ----------------------------------------------------------------------------------------


@contextmanager
def _first_registration(topics: int) -> Iterator[Work]:
    with _topics(topics) as table:
        yield lambda: RowEncoder(
            table.table.rows,
            lambda: table.data_version,
            lambda: table.revision,
            lambda row, _: body_bytes(row),
        ).encoded()


@contextmanager
def _topics_of_master(topics: int) -> Iterator[Work]:
    with _topics(topics) as table, _topics(0) as replica:
        update = table.updates_since(None)
        assert update is not None
        received = decode_updates(encode_updates([update]))[0]

        async def accept() -> None:
            replica.write_in_background()
            assert await replica.accept_large(received) is None
            await replica.saved()

        yield accept


@contextmanager
def _offsets_body(rows: int) -> Iterator[Work]:
    with table_of(rows) as table:
        yield lambda: table.body(1 << 40)


@contextmanager
def _messages_in(topics: int) -> Iterator[Work]:
    """The counters of a scrape that share one series."""
    counts = {f"topic{number}": (number, number) for number in range(topics)}
    yield lambda: in_slices(SharedCounters().split(counts, 1_000))


@contextmanager
def _reads(pairs: int) -> Iterator[Work]:
    reads, known = ReadCounters(), {f"group{number}": None for number in range(100)}
    for number in range(pairs):
        reads.count_read(f"topic{number // 100}", f"group{number % 100}", 0, 1, 1, 100)
    with _topics(max(pairs // 100, 1)) as topics, _store(8) as store:
        stats = BrokerStats(store, reads, "c", timer_counts=lambda: (0, 0))
        metadata = cast(
            Metadata,
            SimpleNamespace(topics=topics, groups=SimpleNamespace(table=SimpleNamespace(rows=known))),
        )
        yield lambda: in_slices(
            add_reads(Scrape(TABLE, ("c", "broker", "b", "b", "1"), 1_000), stats, metadata)
        )


STEPS: Final[Mapping[str, Subject]] = {
    "first_registration": Subject("step", "topics", 1_000, _first_registration),
    "topics_of_a_master": Subject("step", "topics", 500, _topics_of_master),
    "offsets_body": Subject("step", "offsets", 1_000, _offsets_body),
    "metrics_shared": Subject("step", "topics", 1_000, _messages_in),
    "metrics_of_reads": Subject("step", "pairs", 1_000, _reads),
    "broker_leaves": Subject("step", "topics", 1_000, scale_steps.broker_leaves),
    "topic_list": Subject("step", "topics", 1_000, scale_steps.topic_list),
    "topics_of_cluster": Subject("step", "topics", 1_000, scale_steps.topics_of_cluster),
    "unit_topics": Subject("step", "topics", 1_000, scale_steps.unit_topics),
    "write_permissions": Subject("step", "topics", 1_000, scale_steps.permissions),
    "system_topics": Subject("step", "topics", 1_000, scale_steps.system_topics),
    "pop_acknowledged": Subject("step", "checkpoints", 2_000, scale_steps.acknowledged),
    "pop_overdue": Subject("step", "checkpoints", 2_000, scale_steps.overdue),
    "controller_metrics": Subject("step", "groups", 100, scale_steps.controller_metrics),
    "queues_cut": Subject("step", "queues", 40, scale_steps.queues_cut(_store)),
}


SUBJECTS: Final[Mapping[str, Subject]] = {
    "send_one": Subject("request", "queues", 40, _send),
    "queue_end": Subject("request", "queues", 40, _queue_end),
    "flush_one": Subject("request", "queues", 40, _flush),
    "topic_of_a_send": Subject("request", "topics", 200, _find_topic),
    "group_of_a_pull": Subject("request", "groups", 100, _find_group),
    "offset_query": Subject(
        "request", "offsets", 1_000, of_offsets(lambda table: lambda: table.query("group1", "topic0", 3))
    ),
    "offset_commit": Subject("request", "offsets", 1_000, of_offsets(commit_of)),
    "offset_commit_in_row": Subject("request", "queues", 20, commit_in_row),
    "offset_replicated_in_row": Subject("request", "queues", 20, replicated_commit),
    "offsets_snapshot": Subject("period", "offsets", 1_000, of_offsets(lambda table: table.snapshot)),
    "offsets_beyond": Subject(
        "period",
        "offsets",
        1_000,
        of_offsets(lambda table: lambda: table.beyond(lambda topic, queue: 1 << 40)),
    ),
    "offsets_to_replica": Subject("period", "offsets", 1_000, of_offsets(whole_table)),
    "registration": Subject("period", "topics", 200, _registration),
    **STEPS,
    "client_heartbeat": Subject("request", "connections", 100, _client_heartbeat),
    "client_reconnect": Subject("request", "connections", 100, _client_returns),
    "client_scan": Subject("period", "connections", 100, _client_scan),
    "queue_lock": Subject("request", "groups", 100, _lock),
    "route_by_topics": Subject("request", "topics", 200, _route_by_topics),
    "route_by_brokers": Subject("request", "brokers", 30, _route_by_brokers),
    "register_by_brokers": Subject("request", "brokers", 30, _register_by_brokers),
    "register_by_topics": Subject("period", "topics", 200, _register_by_topics),
    "broker_heartbeat": Subject("request", "brokers", 30, _broker_heartbeat),
    "broker_scan": Subject("period", "brokers", 30, _heartbeat_scan),
    "alter_sync_state_set": Subject("request", "groups", 30, _alter),
    "replica_info": Subject("request", "groups", 30, _replica_info),
}
