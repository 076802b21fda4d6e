"""What counts as a difference between replicas, and whom it is told of."""

from cli.verify.core.compare import (
    common_range,
    epoch_differences,
    epochs_in,
    first_piece,
    newest_tables,
    odd_ones,
    queue_differences,
    table_differences,
)
from keelmq.remoting.operations.route import DataVersion
from keelmq.remoting.operations.store_copies import EpochStart, QueueChecksum, ReplicaDigest


def digest(
    *epochs: tuple[int, int], low: int = 0, confirmed: int = 100, end: int = 120, **tables: tuple[int, int]
) -> ReplicaDigest:
    return ReplicaDigest(
        cluster="C",
        broker_name="b",
        broker_id=1,
        is_master=False,
        min_offset=low,
        max_offset=end,
        confirm_offset=confirmed,
        dispatch_offset=confirmed,
        cut_count=0,
        epochs=[EpochStart(epoch=epoch, start_offset=start) for epoch, start in epochs],
        tables={
            name: DataVersion(state_version=state, counter=counter, timestamp=7)
            for name, (state, counter) in tables.items()
        },
    )


def test_what_all_replicas_have_confirmed_is_compared() -> None:
    assert common_range([digest(low=10, confirmed=90), digest(low=0, confirmed=80)]) == (10, 80)
    assert common_range([digest(low=90), digest(confirmed=80)]) == (90, 90), "they have nothing in common"


def test_the_minority_is_named_or_those_that_differ_from_the_master() -> None:
    assert odd_ones({"a": 1, "b": 1, "c": 1}, "a") == ()
    assert odd_ones({"a": 1, "b": 2, "c": 1}, "a") == ("b",)
    assert odd_ones({"a": 1, "b": 2, "c": 2}, "a") == ("a",), "the master may be the one that is damaged"
    assert odd_ones({"a": 1, "b": 2}, "a") == ("b",)
    assert odd_ones({"a": 1, "b": 2}, None) == ("a", "b")
    assert odd_ones({"a": 1, "b": 2, "c": 3}, "c") == ("a", "b")


def test_epochs_are_compared_where_they_have_bytes_in_the_range() -> None:
    one = digest((1, 0), (2, 50), (5, 110))
    assert epochs_in(one, 20, 100) == ((1, 20), (2, 50))
    # another epoch without bytes, and one behind what is confirmed, are no difference
    other = digest((1, 0), (2, 50), (3, 100), (7, 100))
    assert epoch_differences({"a": one, "b": other}, 20, 100, "a") == []
    # retention has dropped the first entry at one of them
    assert epoch_differences({"a": one, "b": digest((2, 50), low=50)}, 50, 100, "a") == []


def test_other_epochs_for_the_same_bytes_are_told_with_the_first_offset() -> None:
    said = {"a": digest((1, 0), (2, 50)), "b": digest((1, 0), (2, 50)), "c": digest((1, 0), (4, 60))}
    (found,) = epoch_differences(said, 0, 100, "a")
    assert (found.kind, found.brokers, found.offset) == ("epochs", ("c",), 50)
    assert "c: 1@0, 4@60" in found.text


def test_the_first_piece_that_differs() -> None:
    assert first_piece({"a": [1, 2, 3], "b": [1, 2, 3]}, "a") is None
    assert first_piece({"a": [1, 2, 3], "b": [1, 9, 8], "c": [1, 2, 8]}, "a") == (1, ("b",))


def test_queues() -> None:
    def queues(*entries: tuple[int, int, int]) -> dict[tuple[str, int], QueueChecksum]:
        return {
            ("T", number): QueueChecksum(topic="T", queue_id=number, first_offset=low, entries=count, crc=crc)
            for number, (low, count, crc) in enumerate(entries)
        }

    whole = queues((0, 5, 1), (2, 3, 9))
    assert queue_differences({"a": whole, "b": queues((0, 5, 1), (2, 3, 9))}, "a") == []
    (lacking,) = queue_differences({"a": whole, "b": queues((0, 5, 1))}, "a")
    assert lacking.brokers == ("b",) and "T 1" in lacking.text and "b: no entries" in lacking.text
    (other,) = queue_differences({"a": whole, "b": queues((0, 5, 2), (2, 3, 9))}, "a")
    assert other.brokers == ("b",) and "T 0" in other.text


def test_a_table_is_different_only_if_it_does_not_reach_what_the_master_had() -> None:
    master = digest(topics=(3, 7), groups=(3, 1))
    wanted = newest_tables({"a": master, "b": digest()}, "a")
    assert table_differences({"a": master, "b": digest(topics=(3, 8), groups=(3, 1))}, wanted) == []
    (found,) = table_differences({"a": master, "b": digest(topics=(3, 6), groups=(3, 1))}, wanted)
    assert found.brokers == ("b",) and "topics: version 3.7 is wanted; b: version 3.6" in found.text
    lacks = table_differences({"a": master, "b": digest(topics=(3, 7))}, wanted)
    assert [each.text for each in lacks] == ["groups: version 3.1 is wanted; b: none"]
    assert newest_tables({"a": master, "b": digest(topics=(4, 1))}, None)["topics"].state_version == 4
