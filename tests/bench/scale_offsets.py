"""Work of `keelmq bench scale` on consumer offsets, by the rows of the table and by the queues of one row."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from broker.metadata.offsets import ConsumerOffsetTable
from broker.metadata.wire import decode_updates, encode_update, encode_updates

Work = Callable[[], object]


@contextmanager
def table_of(rows: int) -> Iterator[ConsumerOffsetTable]:
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        table = ConsumerOffsetTable(Path(directory) / "consumerOffset.json")
        table.load()
        for number in range(rows):
            for queue_id in range(8):
                table.commit(f"group{number % 100}", f"topic{number // 100}", queue_id, number)
        table.commit_staged()
        yield table


def of_offsets(work: Callable[[ConsumerOffsetTable], Work]) -> Callable[[int], AbstractContextManager[Work]]:
    @contextmanager
    def make(rows: int) -> Iterator[Work]:
        with table_of(rows) as table:
            yield work(table)

    return make


def commit_of(table: ConsumerOffsetTable) -> Work:
    moved = iter(range(1, 1 << 40))

    def commit() -> None:
        table.commit("group1", "topic0", 3, next(moved))
        table.commit_staged()

    return commit


@contextmanager
def one_row(queues: int, *, name: str = "consumerOffset.json") -> Iterator[ConsumerOffsetTable]:
    """A table with one group that has committed in so many queues of one topic."""
    with tempfile.TemporaryDirectory(prefix="keelmq-scale-") as directory:
        table = ConsumerOffsetTable(Path(directory) / name)
        table.load()
        for queue_id in range(queues):
            table.commit("group1", "topic0", queue_id, queue_id)
        table.commit_staged()
        yield table


@contextmanager
def commit_in_row(queues: int) -> Iterator[Work]:
    with one_row(queues) as table:
        yield commit_of(table)


@contextmanager
def replicated_commit(queues: int) -> Iterator[Work]:
    """A commit at a master, the update on the wire, and what a replica does with it."""
    with one_row(queues) as table, one_row(queues) as replica:
        whole = table.updates_since(None)
        assert whole is not None and replica.accept(whole) is None
        commit = commit_of(table)

        def work() -> None:
            before = table.data_version
            commit()
            change = table.changes_since(before, takes_parts=True)
            assert change is not None
            (received,) = decode_updates(encode_updates([table.to_wire(change)]))
            refusal = replica.accept(received)
            assert refusal is None, refusal

        yield work


def whole_table(table: ConsumerOffsetTable) -> Work:
    def whole() -> None:
        update = table.updates_since(None)
        assert update is not None
        encode_update(update)

    return whole
