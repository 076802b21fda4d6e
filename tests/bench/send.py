"""Suite send: the handler in J, and the broker end to end against the echo yardsticks."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker.handlers.parts import BrokerParts
from broker.handlers.send import SendHandler
from broker.pending import PendingReplies, SendGate
from broker.store.message_store import MessageStore, StoreConfig
from broker.topics import TopicTable
from remoting.dispatch import Dispatcher, hot_key
from remoting.operation import OperationTable
from remoting.operations.route import TopicConfig
from tests.bench.frames import TOPIC, send_header
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, c_echo, load, lone_broker, per_cpu_second, python_echo
from tests.bench.units import in_j

MESSAGES_PER_TICK = 64
"""As with 64 requests in flight: confirmOffset and dispatch move once for so many messages."""
TICKS_PER_SAMPLE = 200
MEMORY_FILES = Path("/dev/shm")
"""Where the handler's log lies, if there is such a place: the disk's part is measured end to end."""
COMMIT_LOG_FILE_BYTES = 256 << 20


class BenchPeer:
    """Stands for a connection; nothing is written."""

    connection_id, address, address_bytes, in_flight = 1, "127.0.0.1:1", b"\x7f\0\0\1\0\0\0\1", 0

    def is_closing(self) -> bool:
        return False

    def is_paused(self) -> bool:
        return False

    def send(self, frame: bytes) -> bool:
        raise BenchError("the handler answers later: replication is on")

    def write_parts(self, parts: list[bytes | memoryview]) -> bool:
        raise BenchError("the handler answers later: replication is on")


@contextmanager
def handler(body_bytes: int) -> Iterator[Callable[[], object]]:
    """MESSAGES_PER_TICK messages, each from its header bytes to its reply bytes, and the end of the tick."""
    place = MEMORY_FILES if MEMORY_FILES.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-", dir=place) as directory:
        root = Path(directory)
        store = MessageStore(StoreConfig(root=root / "store", commit_log_file_bytes=COMMIT_LOG_FILE_BYTES))
        store.load()
        store.become_master()
        topics = TopicTable(root / "topics.json", broker_name="broker-a", cluster_name="BenchCluster")
        topics.load()
        topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
        gate = SendGate()
        gate.writable, gate.wait, gate.in_sync, gate.min_in_sync = True, False, 1, 1
        ticks: list[Callable[[], None]] = []

        def end_of_tick() -> None:
            store.set_confirm_offset(store.commit_log.max_offset)

        parts = BrokerParts(
            store=store,
            topics=topics,
            gate=gate,
            pending=PendingReplies(),
            call_soon=ticks.append,
            end_of_tick=end_of_tick,
        )
        yield _send(parts, ticks, b"x" * body_bytes)
        store.close()


def _send(parts: BrokerParts, ticks: list[Callable[[], None]], body: bytes) -> Callable[[], object]:
    table = OperationTable()
    SendHandler(parts).bind(table)
    dispatcher = Dispatcher(table, name="bench")
    decode, send = dispatcher.hot[hot_key(310)]
    header, peer = send_header(), BenchPeer()
    requests = range(MESSAGES_PER_TICK)

    def one_tick() -> None:
        for _ in requests:
            reply = send(decode(header), body, peer)
        if reply is None or b'"code":0' not in reply:
            raise BenchError(f"refused: {reply!r}")
        for tick in ticks:
            tick()
        ticks.clear()

    return one_tick


def handlers() -> Results:
    with handler(128) as small, handler(1024) as large:
        j_us, costs = in_j(small, large, calls=TICKS_PER_SAMPLE)
    cost_128, cost_1024 = (cost / MESSAGES_PER_TICK for cost in costs)
    return {
        "handler_128": Measurement(cost_128, "J", j_us, cost_128),
        "handler_1024": Measurement(cost_1024, "J", j_us, cost_1024),
    }


def end_to_end() -> Results:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keelmq-bench-")))
        broker = stack.enter_context(lone_broker(directory))
        python, native = stack.enter_context(python_echo()), stack.enter_context(c_echo())
        return {
            "e2e_1x1": _against(broker, python, Shape(1, 1)),
            "e2e_1x64": _against(broker, python, Shape(1, 64)),
            "e2e_64x1": _against(broker, native, Shape(64, 1)),
        }


def _against(subject: Server, yardstick: Server, shape: Shape) -> Measurement:
    value, reference = alternate(
        lambda: per_cpu_second(load(subject, shape)), lambda: per_cpu_second(load(yardstick, shape))
    )
    return Measurement(value, "msg/CPU-s", reference, value / reference)


def run() -> Results:
    return {**handlers(), **end_to_end()}
