"""What counts as a difference between replicas, and whom it is told of."""

from cli.verify.core.compare import (
    common_range,
    differing_runs,
    epoch_at,
    epoch_difference,
    epoch_verdict,
    epochs_in,
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


def test_the_minority_is_named_and_without_one_all_whoever_the_master_is() -> None:
    assert odd_ones({"a": 1, "b": 1, "c": 1}) == ((), True)
    assert odd_ones({"a": 1, "b": 2, "c": 1}) == (("b",), True)
    assert odd_ones({"a": 1, "b": 2, "c": 2}) == (("a",), True)
    assert odd_ones({"a": 1, "b": 2}) == (("a", "b"), False)
    assert odd_ones({"a": 1, "b": 2, "c": 3}) == (("a", "b", "c"), False)
    assert odd_ones({"a": 1, "b": 1, "c": 2, "d": 2})[1] is False


def test_epochs_are_compared_where_they_have_bytes_in_the_range() -> None:
    one = digest((1, 0), (2, 50), (5, 110))
    assert epochs_in(one, 20, 100) == ((1, 20), (2, 50))
    # another epoch without bytes, and one behind what is confirmed, are no difference
    other = digest((1, 0), (2, 50), (3, 100), (7, 100))
    assert epoch_verdict({"a": one, "b": other}, 20, 100) is None
    # retention has dropped the first entry at one of them
    assert epoch_verdict({"a": one, "b": digest((2, 50), low=50)}, 50, 100) is None


def test_other_epochs_for_the_same_bytes_are_told_with_the_first_offset() -> None:
    said = {"a": digest((1, 0), (2, 50)), "b": digest((1, 0), (2, 50)), "c": digest((1, 0), (4, 60))}
    verdict = epoch_verdict(said, 0, 100)
    assert verdict is not None and (verdict.wrong, verdict.right) == (("c",), ("a", "b"))
    found = epoch_difference(verdict, said, 0)
    assert (found.kind, found.brokers, found.offset) == ("epochs", ("c",), 50)
    assert "c: 1@0, 4@60" in found.text
    two = {"a": said["a"], "c": said["c"]}
    unknown = epoch_verdict(two, 0, 100)
    assert unknown is not None and unknown.wrong == unknown.right == ()
    told = epoch_difference(unknown, two, 0)
    assert told.brokers == ("a", "c") and not told.is_decided


def test_which_epoch_a_byte_has() -> None:
    one = digest((1, 0), (2, 50))
    assert [epoch_at(one, each) for each in (0, 49, 50, 99)] == [1, 1, 2, 2]
    assert epoch_at(digest((2, 50)), 10) is None and epoch_at(digest(), 10) is None


def test_pieces_in_a_row_that_differ() -> None:
    assert list(differing_runs({"a": [1, 2, 3], "b": [1, 2, 3]})) == []
    assert list(differing_runs({"a": [1, 2, 3, 4, 5], "b": [1, 9, 8, 4, 5], "c": [1, 2, 8, 4, 6]})) == [
        (1, 3),
        (4, 5),
    ]


def test_queues() -> None:
    def queues(*entries: tuple[int, int, int]) -> dict[tuple[str, int], QueueChecksum]:
        return {
            ("T", number): QueueChecksum(topic="T", queue_id=number, first_offset=low, entries=count, crc=crc)
            for number, (low, count, crc) in enumerate(entries)
        }

    whole = queues((0, 5, 1), (2, 3, 9))
    assert queue_differences({"a": whole, "b": queues((0, 5, 1), (2, 3, 9))}) == []
    (lacking,) = queue_differences({"a": whole, "b": queues((0, 5, 1)), "c": whole})
    assert lacking.brokers == ("b",) and "T 1" in lacking.text and "b: no entries" in lacking.text
    (other,) = queue_differences({"a": whole, "b": queues((0, 5, 2), (2, 3, 9))})
    assert other.brokers == ("a", "b") and not other.is_decided and "T 0" in other.text


def test_a_table_is_different_only_if_it_does_not_reach_the_newest() -> None:
    master = digest(topics=(3, 7), groups=(3, 1))
    wanted = newest_tables({"a": master, "b": digest()}, "a")
    assert table_differences({"a": master, "b": digest(topics=(3, 8), groups=(3, 1))}, wanted) == []
    (found,) = table_differences({"a": master, "b": digest(topics=(3, 6), groups=(3, 1))}, wanted)
    assert found.brokers == ("b",) and "topics: version 3.7 is wanted; b: version 3.6" in found.text
    lacks = table_differences({"a": master, "b": digest(topics=(3, 7))}, wanted)
    assert [each.text for each in lacks] == ["groups: version 3.1 is wanted; b: none"]
    assert newest_tables({"a": master, "b": digest(topics=(4, 1))}, None)["topics"].state_version == 4


def test_the_newest_table_counts_and_not_the_masters() -> None:
    """Without controllers slaves poll their master: its tables are what they shall have."""
    behind, newer = digest((3, 0), topics=(3, 7)), digest((3, 0), topics=(3, 9))
    said = {"master": behind, "slave": newer}
    (found,) = table_differences(said, newest_tables(said, "master"))
    assert found.brokers == ("master",) and found.is_decided
    plain = {"master": digest(topics=(0, 7)), "slave": digest(topics=(0, 9))}
    assert table_differences(plain, newest_tables(plain, "master")) == []


def test_of_one_version_with_two_times_nobody_is_right() -> None:
    one, other = digest((3, 0), topics=(3, 7)), digest((3, 0), topics=(3, 7))
    other.tables["topics"] = DataVersion(state_version=3, counter=7, timestamp=8)
    said = {"a": one, "b": other}
    (found,) = table_differences(said, newest_tables(said, "a"))
    assert found.brokers == ("a", "b") and not found.is_decided
