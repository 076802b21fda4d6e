"""Suite send: the handler in J, and the broker end to end against the echo yardsticks."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker.admission.pending_replies import PendingReplies
from broker.handlers.send import SendHandler
from broker.metadata.topics import TopicTable
from broker.put.handler_context import HandlerContext
from broker.put.message_writer import MessageWriter
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store
from keelmq.remoting.dispatch import Dispatcher, fast_path_key
from keelmq.remoting.operation import OperationTable
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.quick_start import settle_collector
from tests.bench.frames import BATCH_ITEMS, TOPIC, batch_body, send_header
from tests.bench.native import BenchError
from tests.bench.report import Measurement, Results, alternate
from tests.bench.servers import Server, Shape, c_echo, load, lone_broker, per_cpu_second, python_echo
from tests.bench.units import in_j
from tests.support.handler_context import handler_context, send_gate

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
def handler(
    body_bytes: int, *, keys: bool = True, index: bool = True, batch: bool = False
) -> Iterator[Callable[[], object]]:
    """MESSAGES_PER_TICK messages, each from its header bytes to its reply bytes, and the end of the tick.
    keys: with KEYS beside UNIQ_KEY. batch: BATCH_ITEMS messages to a request."""
    place = MEMORY_FILES if MEMORY_FILES.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-", dir=place) as directory:
        root = Path(directory)
        store = offline_store(
            StoreConfig(root=root / "store", commit_log_file_bytes=COMMIT_LOG_FILE_BYTES, index_enable=index)
        )
        store.load()
        store.become_master()
        topics = TopicTable(root / "topics.json", broker_name="broker-a", cluster_name="BenchCluster")
        topics.load()
        topics.update(TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4))
        gate = send_gate(is_open=True)
        pending = PendingReplies(gate)
        ticks: list[Callable[[], None]] = []

        def end_of_tick() -> None:
            store.set_confirm_offset(store.commit_log.max_offset)

        context = handler_context(store, topics, gate, pending)
        writer = MessageWriter(store, gate, pending, call_soon=ticks.append, end_of_tick=end_of_tick)
        body = batch_body(body_bytes) if batch else b"x" * body_bytes
        yield _send(context, writer, ticks, send_header(keys=keys, batch=batch), body)
        store.close()


def _send(
    context: HandlerContext,
    writer: MessageWriter,
    ticks: list[Callable[[], None]],
    header: bytes,
    body: bytes,
) -> Callable[[], object]:
    table = OperationTable()
    SendHandler(context, writer).bind(table)
    dispatcher = Dispatcher(table, name="bench")
    is_batch = header.startswith(fast_path_key(320))
    decode, send, *_ = dispatcher.fast_path[fast_path_key(320 if is_batch else 310)]
    peer = BenchPeer()
    requests = range(MESSAGES_PER_TICK // BATCH_ITEMS if is_batch else MESSAGES_PER_TICK)

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
    """With the index, unless the name says otherwise: of UNIQ_KEY and KEYS, or of UNIQ_KEY alone."""
    with ExitStack() as stack:
        subjects = {
            "handler_128": stack.enter_context(handler(128)),
            "handler_1024": stack.enter_context(handler(1024)),
            "handler_128_unique_key": stack.enter_context(handler(128, keys=False)),
            "handler_128_no_index": stack.enter_context(handler(128, index=False)),
            "batch_32_of_128": stack.enter_context(handler(128, batch=True)),
        }
        settle_collector()  # as in a broker
        j_us, costs = in_j(*subjects.values(), calls=TICKS_PER_SAMPLE)
    each = [cost / MESSAGES_PER_TICK for cost in costs]
    return {name: Measurement(cost, "J", j_us, cost) for name, cost in zip(subjects, each, strict=True)}


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
        lambda: per_cpu_second(load(subject, shape, awake=True)),
        lambda: per_cpu_second(load(yardstick, shape, awake=True)),
    )
    return Measurement(value, "msg/CPU-s", reference, value / reference)


def run() -> Results:
    return {**handlers(), **end_to_end()}
