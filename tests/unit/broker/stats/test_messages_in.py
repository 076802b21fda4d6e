"""What came in is counted once in a group: by the broker that was master then."""

from pathlib import Path

from broker.admin.metrics import scrape
from broker.message.record_bytes import FIXED_BYTES
from broker.stats.messages_in import InCount, MessagesIn
from broker.store.batched_put import BatchedPut
from broker.store.client_batch import put_batch
from broker.store.message_store import MessageStore
from broker.store.settings import NamedTopic
from keelmq.runtime.slices import at_once
from tests.support.batch_parts import item
from tests.support.laid_by_parts import trio, until
from tests.support.store_parts import BORN_HOST, open_store, put_many
from tests.unit.broker.store.test_message_store import copy_log


def begin(store: MessageStore, counted: MessagesIn) -> None:
    store.become_master()
    counted.term_begins()


def end(store: MessageStore, counted: MessagesIn) -> None:
    counted.term_ends()
    store.become_slave()


def follow(slave: MessageStore, master: MessageStore) -> None:
    """The slave has, and may show, what its master has."""
    copy_log(master, slave)
    slave.set_confirm_offset(slave.commit_log.max_offset)
    while slave.dispatcher.dispatch(100):
        pass


def test_two_brokers_take_turns(tmp_path: Path) -> None:
    stores = [open_store(tmp_path / name, master=False, commit_log_file_bytes=1 << 20) for name in "ab"]
    counters = [MessagesIn(store.queues) for store in stores]
    for turn, taken in enumerate((10, 5, 7)):
        master, slave = turn % 2, 1 - turn % 2
        begin(stores[master], counters[master])
        put_many(stores[master], taken)
        follow(stores[slave], stores[master])
        end(stores[master], counters[master])
    (a,), (b,) = (at_once(counter.counts()).values() for counter in counters)
    assert (a.messages, b.messages) == (17, 5)
    assert a.size + b.size == stores[0].commit_log.max_offset == stores[1].commit_log.max_offset
    for store in stores:
        store.close()


def test_a_term_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    store = open_store(tmp_path, master=False)
    counted = MessagesIn(store.queues)
    assert at_once(counted.counts()) == {}
    begin(store, counted)
    put_many(store, 4)
    counted.term_begins()  # the same term is confirmed
    assert at_once(counted.counts())["TopicA"].messages == 4
    end(store, counted)
    counted.term_ends()
    assert at_once(counted.counts())["TopicA"] == InCount(4, store.put_bytes)
    begin(store, counted)
    assert at_once(counted.counts())["TopicA"] == InCount(4, store.put_bytes)
    put_many(store, 1)
    assert at_once(counted.counts())["TopicA"].messages == 5
    store.close()


def test_a_term_that_ends_between_two_slices(tmp_path: Path) -> None:
    store = open_store(tmp_path, master=False)
    counted = MessagesIn(store.queues)
    begin(store, counted)
    put_many(store, 4)
    slices = counted.counts()
    next(slices)
    size = store.put_bytes
    end(store, counted)
    store.cutter.truncate(0)
    other = counted.counts()
    next(other)
    assert at_once(counted.counts()) == at_once(other) == {"TopicA": InCount(4, size)}
    assert at_once(slices) == {"TopicA": InCount(4, size)}, "neither twice nor less"
    begin(store, counted)
    put_many(store, 1)
    assert at_once(counted.counts())["TopicA"].messages == 5
    store.close()


async def test_a_sum_over_a_group_is_the_truth(tmp_path: Path) -> None:
    async with trio(tmp_path, autoCreateTopicEnable=True) as group:
        brokers = list(group._stops)

        async def total(name: str) -> list[float]:
            return [
                sample.value
                for broker in brokers
                for family in await scrape(broker.metric_sources())
                for sample in family.samples
                if sample.name == name and sample.labels["topic"] == "T"
            ]

        def everywhere(count: int) -> bool:
            return all(broker.store.max_queue_offset("T", 0) == count for broker in brokers)

        for _ in range(5):
            await group.send("T", b"x")
        group.master.metadata.offsets.commit("g", "T", 0, 2)
        await until(lambda: everywhere(5), "all replicas show all messages")
        await until(
            lambda: all("T@g" in broker.metadata.offsets.table.rows for broker in brokers),
            "offsets everywhere",
        )
        assert await total("rocketmq_messages_in_total") == [5]
        assert await total("rocketmq_throughput_in_total") == [group.master.store.put_bytes]
        assert await total("rocketmq_message_size_bytes_count") == [5]
        assert await total("rocketmq_message_size_bytes_sum") == [group.master.store.put_bytes]
        assert await total("rocketmq_consumer_lag_messages") == [3]
        brokers.remove(group.master)
        await group.lose_master()
        await group.send("T", b"x")
        await until(lambda: everywhere(6), "all replicas show all messages")
        assert await total("rocketmq_messages_in_total") == [1]
        assert await total("rocketmq_message_size_bytes_count") == [1]
        assert await total("rocketmq_consumer_lag_messages") == [4]


SIZES = (1_023, 1_024, 1_025, 4_096, 4_097, 524_288, 524_289)
IN_BUCKETS = [2, 2, 2, 1, 0, 0, 0]


def put_sized(store: MessageStore, size: int) -> None:
    topic = NamedTopic("T")
    body = b"x" * (size - FIXED_BYTES - len(topic.topic_raw))
    offset, end, _ = store.put(topic, 0, body, b"", 0, 0, 0, BORN_HOST, 0, 0)
    assert end - offset == size


def test_sizes_by_buckets(tmp_path: Path) -> None:
    """The bounds are exact, and the numbers go on where the last term ended."""
    store = open_store(tmp_path, master=False, commit_log_file_bytes=4 << 20)
    counted = MessagesIn(store.queues)
    for _ in range(2):
        begin(store, counted)
        for size in SIZES:
            put_sized(store, size)
        store.set_confirm_offset(store.commit_log.max_offset)
        end(store, counted)
    messages, size = at_once(counted.counts())["T"]
    assert (messages, size) == (2 * len(SIZES), 2 * sum(SIZES))
    assert counted.sizes("T", messages) == [2 * count for count in IN_BUCKETS]
    store.close()


def test_sizes_of_what_a_slave_receives_are_its_masters(tmp_path: Path) -> None:
    master, slave = (
        open_store(tmp_path / name, master=False, commit_log_file_bytes=4 << 20) for name in ("a", "b")
    )
    counted = MessagesIn(slave.queues)
    begin(master, MessagesIn(master.queues))
    for size in SIZES:
        put_sized(master, size)
    follow(slave, master)
    assert slave.max_queue_offset("T", 0) == len(SIZES)
    assert counted.sizes("T", 0) == [0] * 7
    begin(slave, counted)
    put_sized(slave, 5_000)
    assert counted.sizes("T", at_once(counted.counts())["T"].messages) == [0, 0, 1, 0, 0, 0, 0]
    put_sized(slave, 500)
    assert counted.sizes("T", at_once(counted.counts())["T"].messages) == [1, 0, 1, 0, 0, 0, 0]
    for store in (master, slave):
        store.close()


def test_sizes_of_several_messages_at_once(tmp_path: Path) -> None:
    """Those of one read, and a client's batch: each message counts with its own size."""
    store = open_store(tmp_path, commit_log_file_bytes=4 << 20)
    counted = MessagesIn(store.queues)
    counted.term_begins()
    put_sized(store, 600)
    batched, bodies = BatchedPut(store), [b"x" * length for length in (10, 2_000, 2_000, 5_000, 10)]
    cursors = [batched.cursor(NamedTopic("T"), queue_id) for queue_id in (0, 1)]
    messages = [
        (cursors[n % 2], 0, 0, 0, BORN_HOST, 0, body, b"", 0, b"", b"") for n, body in enumerate(bodies)
    ]
    assert batched.put(messages, 1) is not None  # type: ignore[arg-type]
    items = b"".join(item(body) for body in bodies)
    put_batch(store, NamedTopic("T"), 0, items, b"", 0, 0, BORN_HOST, 0, 1)
    found = at_once(counted.counts())["T"].messages
    assert found == 11 and counted.sizes("T", found) == [5, 4, 2, 0, 0, 0, 0]
    store.close()
