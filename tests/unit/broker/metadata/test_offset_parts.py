"""Commits cost what changes: the journal and the replicas get the changed offsets of a row, not the row."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from broker.metadata.core.table import HISTORY_MAX
from broker.metadata.offsets import ConsumerOffsetTable
from broker.metadata.wire import decode_updates, encode_updates, update_of_line
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operations.broker_metadata import MetadataUpdate

QUEUES = 2_000


def opened(root: Path) -> ConsumerOffsetTable:
    table = ConsumerOffsetTable(root / "consumerOffset.json")
    table.load()
    return table


@pytest.fixture
def table(tmp_path: Path) -> ConsumerOffsetTable:
    made = opened(tmp_path)
    for queue_id in range(QUEUES):
        made.commit("G", "T", queue_id, 5)
    made.commit_staged()
    return made


def lines(table: ConsumerOffsetTable) -> list[bytes]:
    return table.journal.path.read_bytes().splitlines(keepends=True)


def value_of(line: bytes) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(line.rpartition(b" #")[0])
    return found


def test_a_commit_writes_the_offset_that_changed(table: ConsumerOffsetTable) -> None:
    table.commit("G", "T", 7, 99)
    table.commit("G", "T", 8, 98)
    table.commit_staged()
    last = lines(table)[-1]
    assert len(last) < 300 < QUEUES < len(lines(table)[0])
    update = value_of(last)["update"]
    assert isinstance(update, dict)
    assert (update["parts"], update["rows"]) == ({"T@G": {"7": 99, "8": 98}}, {})


def test_a_crash_loses_nothing(table: ConsumerOffsetTable, tmp_path: Path) -> None:
    for number in range(20):
        table.commit("G", "T", number, 100 + number)
        table.commit("H", f"T{number}", 0, number)
        table.commit_staged()
    table.remove_topic("T3")
    table.commit("G", "T", QUEUES, 1)
    table.commit_staged()
    again = opened(tmp_path)
    assert again.table.rows == table.table.rows and again.table.version == table.table.version
    assert again.query("G", "T", 19) == 119 and again.query("G", "T", QUEUES) == 1


@pytest.mark.parametrize("cut", [1, 10, 60, 100])
def test_a_torn_line_is_cut_off_and_the_lines_before_it_count(
    table: ConsumerOffsetTable, tmp_path: Path, cut: int
) -> None:
    for number in (1, 2):
        table.commit("G", "T", 0, number)
        table.commit_staged()
    path, whole = table.journal.path, table.journal.path.read_bytes()
    path.write_bytes(whole[:-cut])
    again = opened(tmp_path)
    assert again.query("G", "T", 0) == 1
    again.commit("G", "T", 1, 77)
    again.commit_staged()
    third = opened(tmp_path)
    assert (third.query("G", "T", 0), third.query("G", "T", 1)) == (1, 77)


def test_a_journal_of_an_earlier_release_is_read_and_continued(tmp_path: Path) -> None:
    version = {"stateVersion": 0, "timestamp": 7, "counter": 1}
    base = {"stateVersion": 0, "timestamp": 0, "counter": 0}
    line = {
        "store": "consumerOffsets",
        "version": version,
        "base": base,
        "gone": {},
        "rows": {"T@G": {"0": 5, "1": 6}},
    }
    (tmp_path / "consumerOffset.json.journal").write_text(json.dumps(line) + "\n")
    table = opened(tmp_path)
    table.commit("G", "T", 1, 60)
    table.commit_staged()
    assert opened(tmp_path).row("G", "T") == {0: 5, 1: 60}


def test_an_earlier_release_refuses_the_line_and_does_not_pass_it_over(table: ConsumerOffsetTable) -> None:
    table.commit("G", "T", 7, 99)
    table.commit_staged()
    value = value_of(lines(table)[-1])
    with pytest.raises(ValidationError):
        MetadataUpdate.model_validate(value)  # what it did with each line
    assert update_of_line(value).parts == {"T@G": {"7": 99}}


def test_a_line_of_a_later_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "consumerOffset.json.journal").write_text('{"format":3,"update":{}}\n')
    with pytest.raises(StoreError, match="format 3 is of a later release"):
        opened(tmp_path)


def test_a_replica_that_knows_no_parts_gets_the_row(table: ConsumerOffsetTable) -> None:
    before = table.data_version
    table.commit("G", "T", 7, 99)
    table.commit_staged()
    old, new = table.changes_since(before), table.changes_since(before, takes_parts=True)
    assert old is not None and len(old.rows["T@G"]) == QUEUES and not old.parts
    assert new is not None and new.parts == {"T@G": {7: 99}} and not new.rows
    assert len(encode_updates([table.to_wire(new)])) < 300


def test_a_row_that_is_changed_and_has_no_version_yet_is_sent_whole(table: ConsumerOffsetTable) -> None:
    before = table.data_version
    table.commit("G", "T", 7, 99)
    table.commit_staged()
    table.stage("T@G", {3: 1})  # it has no version yet
    change = table.changes_since(before, takes_parts=True)
    assert change is not None and change.rows == {"T@G": {3: 1}} and not change.parts
    table.remove_group("G")
    change = table.changes_since(before, takes_parts=True)
    assert change is not None and change.gone == {"T@G": 0} and not change.parts


STEP = st.tuples(
    st.sampled_from(["commit", "version", "drop", "pull", "crash"]),
    st.sampled_from(["G", "H"]),
    st.sampled_from(["T", "U"]),
    st.integers(0, 3),
    st.integers(0, 9),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=40), st.booleans())
def test_replicas_and_journals_have_what_the_master_has(
    steps: list[tuple[str, str, str, int, int]], takes_parts: bool
) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as two:
        master, replica = opened(Path(one)), opened(Path(two))
        for what, group, topic, queue_id, offset in [
            *steps,
            ("version", "", "", 0, 0),
            ("pull", "", "", 0, 0),
        ]:
            if what == "commit":
                master.commit(group, topic, queue_id, offset)
            elif what == "drop":
                master.remove_group(group)
            elif what == "version":
                master.commit_staged()
            elif what == "crash":
                master.commit_staged()
                before = dict(master.table.rows)
                master.journal.close()
                master = opened(Path(one))
                assert master.table.rows == before
            elif not master.is_staged:
                change = master.changes_since(replica.data_version, takes_parts=takes_parts)
                if change is not None:
                    (received,) = decode_updates(encode_updates([master.to_wire(change)]))
                    assert replica.accept(received) is None
                assert replica.table.rows == master.table.rows
        assert opened(Path(two)).table.rows == master.table.rows
        for table in (master, replica):
            table.journal.close()


def test_the_history_is_bounded(table: ConsumerOffsetTable) -> None:
    before = table.data_version
    for number in range(HISTORY_MAX + 1):
        table.commit("G", "T", number % QUEUES, 1_000 + number)
        table.commit_staged()
    change = table.changes_since(before, takes_parts=True)
    assert change is not None and change.whole
