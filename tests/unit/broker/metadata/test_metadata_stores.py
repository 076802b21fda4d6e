"""Groups and offsets with their files: the peer's are read, ours survive crashes, damage is explained."""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import broker.metadata.offsets
from broker.metadata.core.table import MASS_DELETE_MIN, Version
from broker.metadata.groups import BUILT_IN, GroupTable, illegal_group
from broker.metadata.offsets import Clamped, ConsumerOffsetTable, DelayOffsetTable
from broker.metadata.store import data_version
from broker.metadata.wire import decode_updates, encode_updates
from broker.store.log.mapped_file import StoreError
from keelmq.remoting.operations.broker_metadata import (
    ConsumerOffsets,
    MetadataUpdate,
    SubscriptionGroupConfig,
    SubscriptionGroups,
)
from keelmq.runtime.long_work import LongWork
from tests.support.store_disk import StoreDisk

CONFIG = Path(__file__).parents[3] / "fixtures" / "store" / "config"


def groups_at(path: Path, *, auto_create: bool = True) -> GroupTable:
    table = GroupTable(path / "subscriptionGroup.json", auto_create=auto_create)
    table.load()
    return table


def offsets_at(path: Path) -> ConsumerOffsetTable:
    table = ConsumerOffsetTable(path / "consumerOffset.json")
    table.load()
    return table


# -- the peer's files ------------------------------------------------------------------------------------


def test_the_peers_files_are_read(tmp_path: Path) -> None:
    for name in ("subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"):
        shutil.copy(CONFIG / name, tmp_path / name)
    groups, offsets = groups_at(tmp_path), offsets_at(tmp_path)
    assert groups.data_version.state_version == 2
    config = groups.get("FxGroup")
    assert config is not None and config.consume_from_min_enable is False
    assert offsets.query("FxGroup", "FxNormal", 3) == 14
    assert offsets.query("FxGroup", "FxNormal", 9) == -1
    assert offsets.groups_of("FxNormal") == ["FxGroup", "FxOrderGroup"]
    delays = DelayOffsetTable(tmp_path / "delayOffset.json")
    delays.load()
    assert (delays.get(1), delays.get(16), delays.get(2)) == (3, 0, 0)


def test_what_we_write_has_the_peers_members(tmp_path: Path) -> None:
    shutil.copy(CONFIG / "subscriptionGroup.json", tmp_path / "subscriptionGroup.json")
    groups = groups_at(tmp_path)
    before = json.loads((CONFIG / "subscriptionGroup.json").read_text())
    groups.update(SubscriptionGroupConfig(group_name="New"))
    after = json.loads(groups.path.read_text())
    assert after.keys() == before.keys()
    assert after["subscriptionGroupTable"]["FxGroup"] == before["subscriptionGroupTable"]["FxGroup"]
    assert after["dataVersion"]["counter"] == before["dataVersion"]["counter"] + 1


# -- groups ----------------------------------------------------------------------------------------------


def test_groups_are_created_changed_and_deleted_for_good(tmp_path: Path) -> None:
    groups = groups_at(tmp_path)
    assert set(BUILT_IN) <= groups.table.rows.keys()
    assert groups.find("g") is not None and groups.find("bad name") is None
    groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=3))
    version = groups.table.version
    groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=3))  # unchanged
    assert groups.table.version == version
    again = groups_at(tmp_path).get("g")
    assert again is not None and again.retry_max_times == 3
    groups.delete("g")
    groups.delete("g")
    assert groups_at(tmp_path, auto_create=False).find("g") is None


def test_the_forbidden_table_stays_with_its_group(tmp_path: Path) -> None:
    groups = groups_at(tmp_path)
    groups.update(SubscriptionGroupConfig(group_name="g"))
    text = groups.path.read_text().replace('"forbiddenTable": {}', '"forbiddenTable": {"g": {"T": 1}}')
    groups.path.write_text(text)
    again = groups_at(tmp_path)
    again.update(SubscriptionGroupConfig(group_name="g", retry_max_times=1))
    assert again.forbidden() == {"g": {"T": 1}}
    replica = groups_at(tmp_path / "replica")
    update = again.updates_since(replica.data_version)
    assert update is not None and replica.accept(update) is None
    assert (replica.table.rows, replica.data_version) == (again.table.rows, again.data_version)


@pytest.mark.parametrize("name", ["", "a b", "x" * 256, "a@b"])
def test_illegal_group_names(name: str) -> None:
    assert illegal_group(name) is not None


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = groups_at(tmp_path)
    groups.update(SubscriptionGroupConfig(group_name="g"))

    def full(value: object, turn: int, *, durable: bool = True) -> bool:
        raise OSError(28, "No space left on device", str(groups.path))

    monkeypatch.setattr(groups.file, "save", full)
    version = groups.table.version
    with pytest.raises(OSError, match="No space"):
        groups.update(SubscriptionGroupConfig(group_name="h"))
    assert groups.get("h") is None and groups.table.version == version


def test_a_damaged_file_is_explained(tmp_path: Path) -> None:
    groups = groups_at(tmp_path)
    groups.update(SubscriptionGroupConfig(group_name="g"))
    groups.update(SubscriptionGroupConfig(group_name="h"))
    groups.path.write_text("")
    assert groups_at(tmp_path).get("g") is not None  # of the .bak
    groups.file.backup_path.write_text('{"subscriptionGroupTable": 3}')
    with pytest.raises(StoreError, match=r"subscriptionGroup.json is damaged"):
        groups_at(tmp_path)
    groups.file.backup_path.write_text("[]")
    with pytest.raises(StoreError, match="restore it from a backup or from another replica"):
        groups_at(tmp_path)


# -- offsets ---------------------------------------------------------------------------------------------


def test_offsets_survive_a_crash_once_they_are_committed(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 6)
    first = offsets.commit_staged()
    assert offsets.commit_staged() == first  # nothing staged
    offsets.commit("g", "T", 0, 7)
    offsets.commit_staged()
    offsets.commit("g", "T", 0, 99)  # staged only: gone with the process
    again = offsets_at(tmp_path)
    assert (again.query("g", "T", 0), again.query("g", "T", 1)) == (7, 6)
    assert again.table.version == offsets.table.version
    assert not offsets.path.exists()  # all of it was in the journal


def test_the_file_takes_over_from_the_journal(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 1)
    offsets.commit_staged()
    write = offsets.snapshot()
    offsets.commit("g", "T", 0, 2)  # while a thread writes
    offsets.commit_staged()
    write()()
    assert json.loads(offsets.path.read_text())["offsetTable"] == {"T@g": {"0": 1}}
    assert offsets.journal.size > 0
    assert offsets_at(tmp_path).query("g", "T", 0) == 2
    offsets.flush()
    assert not offsets.journal.path.stat().st_size
    assert offsets_at(tmp_path).query("g", "T", 0) == 2


def test_the_loop_converts_no_row_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does, of the rows as they were; in order, and as json.dumps would."""
    offsets, converted = offsets_at(tmp_path), list[object]()
    dice = Random(1)
    for number in range(5_000):
        offsets.commit(f"g{dice.randrange(900)}", f'T"{dice.randrange(9)}', dice.randrange(12), number)
    offsets.stage("empty@g", {})
    offsets.commit_staged()
    plain = json.loads(asyncio.run(offsets.body(1 << 30)))
    plain["offsetTable"] = dict(sorted(plain["offsetTable"].items()))
    expected = json.dumps(plain, indent="\t")
    text_of = broker.metadata.offsets.text_of_row
    monkeypatch.setattr(
        broker.metadata.offsets, "text_of_row", lambda row: converted.append(row) or text_of(row)
    )
    write = offsets.snapshot()
    assert not converted
    for key in list(offsets.table.rows):
        topic, _, group = key.partition("@")
        offsets.commit(group, topic, 0, 1 << 40)  # while the thread writes
    write()
    assert offsets.path.read_text() == expected and len(converted) == len(offsets.table.rows)


def test_a_crash_between_file_and_journal_applies_nothing_twice(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    for offset in (1, 2, 3):
        offsets.commit("g", "T", 0, offset)
        offsets.commit_staged()
    offsets.snapshot()()  # written, and the journal not dropped yet
    again = offsets_at(tmp_path)
    assert again.query("g", "T", 0) == 3 and again.table.version == offsets.table.version


def test_half_a_line_is_what_a_crash_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 1)
    offsets.commit_staged()
    whole = offsets.journal.path.read_bytes()
    offsets.commit("g", "T", 0, 2)
    offsets.commit_staged()
    torn = offsets.journal.path.read_bytes()
    for size in range(len(whole), len(torn)):
        offsets.journal.path.write_bytes(torn[:size])
        again = offsets_at(tmp_path)
        assert again.query("g", "T", 0) == 1
        again.commit("g", "T", 0, 3)
        again.commit_staged()
        assert offsets_at(tmp_path).query("g", "T", 0) == 3
    assert "of a partial line" in caplog.text


def test_terms_and_journal_hang_together(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 1)
    offsets.commit_staged()
    offsets.begin_term(4)
    assert offsets_at(tmp_path).query("g", "T", 0) == 1  # a term alone writes nothing
    offsets.commit("g", "T", 0, 2)
    offsets.commit_staged()
    write = offsets.snapshot()
    offsets.begin_term(5)
    offsets.commit("g", "T", 0, 3)
    offsets.commit_staged()
    write()()
    again = offsets_at(tmp_path)
    assert again.query("g", "T", 0) == 3 and again.table.version.state_version == 5


def test_a_file_of_a_term_without_a_line_is_continued(tmp_path: Path) -> None:
    """Seed 77084: a thread wrote the file of one term while the next one began; the journal's line for the
    terms begins before that file, and the commits behind it were lost at the next start."""
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 1)
    offsets.commit_staged()
    offsets.begin_term(4)
    write = offsets.snapshot()
    offsets.begin_term(5)
    offsets.commit("g", "T", 0, 3)
    offsets.commit_staged()
    write()()
    again = offsets_at(tmp_path)
    assert again.query("g", "T", 0) == 3 and again.table.version == offsets.table.version
    assert not again.journal.is_lost


def test_a_line_that_continues_nothing_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    offsets = offsets_at(tmp_path)
    for offset in (1, 2, 3):
        offsets.commit("g", "T", 0, offset)
        offsets.commit_staged()
    first, _, third = offsets.journal.path.read_bytes().splitlines(keepends=True)
    offsets.journal.path.write_bytes(first + third)
    again = offsets_at(tmp_path)
    assert again.query("g", "T", 0) == 1 and again.journal.is_lost
    assert "does not continue version" in caplog.text and "electMaster" in caplog.text


def test_a_whole_table_replaces_file_and_journal(tmp_path: Path) -> None:
    master, replica = offsets_at(tmp_path / "m"), offsets_at(tmp_path / "r")
    replica.commit("old", "T", 0, 9)
    replica.commit_staged()
    write = replica.snapshot()  # an old thread, late
    master.begin_term(2)
    master.commit("g", "T", 0, 4)
    master.commit_staged()
    update = master.updates_since(replica.data_version)
    assert update is not None and update.base is None
    assert replica.accept(update) is None
    write()()
    again = offsets_at(tmp_path / "r")
    assert again.table.rows == {"T@g": {0: 4}} and again.table.version == master.table.version
    replica.begin_term(3)
    replica.commit("g", "T", 0, 5)
    replica.commit_staged()
    assert offsets_at(tmp_path / "r").query("g", "T", 0) == 5


def test_a_crash_between_a_whole_table_and_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the master's already, the journal still ours: its lines lead nowhere."""
    master, replica = offsets_at(tmp_path / "m"), offsets_at(tmp_path / "r")
    replica.commit("old", "T", 0, 9)
    replica.commit_staged()
    master.begin_term(2)
    update = master.updates_since(None)
    assert update is not None
    with monkeypatch.context() as patch:
        patch.setattr(replica.journal, "drop", lambda size: None)
        replica.accept(update)
    assert offsets_at(tmp_path / "r").table.rows == {}
    replica.accept(update)
    assert replica.journal.size == 0 == replica.journal.path.stat().st_size


def test_a_late_writer_drops_nothing_of_a_newer_journal(tmp_path: Path) -> None:
    master, replica = offsets_at(tmp_path / "m"), offsets_at(tmp_path / "r")
    replica.commit("old", "T", 0, 9)
    replica.commit_staged()
    written = replica.snapshot()()  # in its thread; not yet back in the loop
    master.begin_term(2)
    update = master.updates_since(None)
    assert update is not None and replica.accept(update) is None
    replica.commit("g", "T", 0, 4)
    replica.commit_staged()
    written()
    assert offsets_at(tmp_path / "r").table.rows == {"T@g": {0: 4}}


def test_a_full_disk_keeps_offsets_staged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(offsets.journal, "append", _full)
        with pytest.raises(OSError):
            offsets.commit_staged()
    assert offsets.is_staged and offsets.table.version == Version()
    offsets.commit_staged()
    assert offsets_at(tmp_path).query("g", "T", 0) == 1


def _full(line: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_offsets_of_a_deleted_group_or_topic_are_found_by_the_whole_name(tmp_path: Path) -> None:
    """broker-ops pitfall 10."""
    offsets = offsets_at(tmp_path)
    for group, topic in (("g", "T"), ("gg", "T"), ("g", "TT"), ("xg", "T")):
        offsets.commit(group, topic, 0, 1)
    offsets.remove_group("g")
    offsets.remove_topic("TT")
    offsets.commit_staged()
    assert sorted(offsets_at(tmp_path).table.rows) == ["T@gg", "T@xg"]


def test_offsets_that_make_no_sense_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = offsets_at(tmp_path)
    assert not offsets.commit("g", "T", 0, -1) and not offsets.commit("g", "T", -1, 0)
    monkeypatch.setattr(ConsumerOffsetTable, "rows_max", 1)
    assert offsets.commit("g", "T", 0, 0) and not offsets.commit("h", "T", 0, 0)
    assert offsets.commit("g", "T", 0, 1)


def test_offsets_beyond_the_log_are_named_and_set_back(tmp_path: Path) -> None:
    """broker-ha pitfall 61."""
    offsets = offsets_at(tmp_path)
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 1, 3)
    offsets.commit("h", "T", 0, 4)
    beyond = offsets.beyond(lambda topic, queue_id: 4)
    assert beyond == [Clamped("g", "T", 0, 10, 4)]
    offsets.clamp(beyond)
    assert offsets.query("g", "T", 0) == 4 and offsets.query("h", "T", 0) == 4


# -- from a master ---------------------------------------------------------------------------------------


def test_a_mass_deletion_leaves_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """user-pain 39."""
    replica, master = groups_at(tmp_path / "r"), groups_at(tmp_path / "m")
    for n in range(MASS_DELETE_MIN):
        replica.update(SubscriptionGroupConfig(group_name=f"g{n}"))
    kept = replica.path.read_text()
    master.begin_term(7)
    update = master.updates_since(replica.data_version)
    assert update is not None and replica.accept(update) is None
    assert replica.get("g0") is None and set(BUILT_IN) <= replica.table.rows.keys()
    copy = replica.path.with_name("subscriptionGroup.json.before-7")
    assert copy.read_text() == kept and str(copy) in caplog.text


def test_an_update_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    offsets = offsets_at(tmp_path)
    offsets.begin_term(3)
    version = data_version(Version(3, 9, 9))
    for rows in ({"T@g": {"x": 1}}, {"T@g": 7}, {"T@g": {"0": "many"}}):
        assert offsets.accept(MetadataUpdate(store="consumerOffsets", version=version, rows=rows)) is not None
    older = MetadataUpdate(store="consumerOffsets", version=data_version(Version(2, 9, 9)), rows={})
    refusal = offsets.accept(older)
    assert refusal is not None and "epoch 2 is below epoch 3" in refusal


def test_a_rocketmq_masters_tables_are_adopted(tmp_path: Path) -> None:
    """Its groups as a whole; its offsets merged; both stand for the epoch of the master that was asked."""
    groups, offsets = groups_at(tmp_path), offsets_at(tmp_path)
    groups.begin_term(2)
    groups.update(SubscriptionGroupConfig(group_name="mine"))
    body = SubscriptionGroups(subscription_group_table={"g": SubscriptionGroupConfig(group_name="g")})
    assert groups.adopt(body, 1) is not None and groups.get("mine") is not None
    assert groups.adopt(body, 3) is None
    assert groups.get("mine") is None and groups.get("g") is not None
    version = groups.table.version
    assert groups.adopt(body, 3) is None and groups.table.version == version
    offsets.commit("g", "T", 0, 5)
    offsets.commit_staged()
    offsets.begin_term(2)
    assert offsets.adopt(ConsumerOffsets(offset_table={"T@g": {1: 8}}), 1) is not None
    assert offsets.adopt(ConsumerOffsets(offset_table={"T@g": {1: 8}, "U@g": {0: 1}}), 3) is None
    again = offsets_at(tmp_path)
    assert again.table.rows == {"T@g": {0: 5, 1: 8}, "U@g": {0: 1}} and again.table.version.state_version == 3


def test_large_answers_are_deflated_and_checked() -> None:
    update = MetadataUpdate(
        store="topics",
        version=data_version(Version(1, 2, 3)),
        rows={f"t{n}": {"perm": 6} for n in range(9_000)},
    )
    raw = encode_updates([update])
    assert len(raw) < 100_000 and decode_updates(raw) == [update]
    assert decode_updates(encode_updates([])) == []
    for bad in (raw[:-5], b"\x01" + raw, b"{", b'{"updates":[{}]}', b'{"updates":[\n'):
        with pytest.raises(ValueError):
            decode_updates(bad)


def test_earlier_versions_read_the_lines_and_are_read(tmp_path: Path) -> None:
    """During a rolling upgrade they are in one group."""
    offsets = offsets_at(tmp_path)
    for number in range(200):
        offsets.commit(f"g{number}", 'T"\n,}}', number % 3, number)
    offsets.commit_staged()
    whole = offsets.updates_since(None)
    change = MetadataUpdate(
        store="topics",
        version=data_version(Version(1, 2, 3)),
        base=data_version(Version(1, 1, 3)),
        rows={"t": {"perm": 6}},
        gone={"u": 7},
    )
    empty = MetadataUpdate(store="groups", version=data_version(Version()))
    assert whole is not None
    raw = encode_updates([whole, change, empty])
    read = json.loads(raw)["updates"]
    assert read[0]["rows"] == {key: offsets.json_of(row) for key, row in offsets.table.rows.items()}
    assert read[1] == change.model_dump(by_alias=True, exclude={"parts"}) and "base" not in read[2]
    decoded = decode_updates(raw)
    assert decoded[1:] == [change, empty] and decoded[0].rows == read[0]["rows"]
    assert decode_updates(json.dumps(json.loads(raw)).encode()) == decoded
    lines = raw.split(b"\n")
    for missing in range(1, len(lines)):
        if lines[missing] == b"," or lines[missing].startswith(b'"'):
            continue  # the JSON is whole without it; the transport lost no line
        with pytest.raises(ValueError):
            decode_updates(b"\n".join(lines[:missing] + lines[missing + 1 :]))


def test_a_replica_that_lacks_many_rows_gets_the_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.metadata.core.table.CHANGES_MAX", 5)
    offsets = offsets_at(tmp_path)
    first = offsets.commit_staged()
    for number in range(6):
        offsets.commit(f"g{number}", "T", 0, 1)
        offsets.commit_staged()
        change = offsets.table.since(first)
        assert change is not None and change.whole is (number == 5)


def whole_table(
    tmp_path: Path,
) -> tuple[ConsumerOffsetTable, ConsumerOffsetTable, MetadataUpdate]:
    """Returns a master, a replica with another row, and the master's update for it."""
    master, replica = offsets_at(tmp_path / "m"), offsets_at(tmp_path / "r")
    replica.commit("old", "T", 0, 9)
    replica.commit_staged()
    master.begin_term(2)
    master.commit("g", "T", 0, 4)
    master.commit_staged()
    update = master.updates_since(None)
    assert update is not None
    return master, replica, update


async def test_a_large_table_is_written_by_a_thread_and_in_force_when_it_is_on_disk(tmp_path: Path) -> None:
    master, replica, update = whole_table(tmp_path)
    with _held(replica) as (entered, go_on):
        accepting = asyncio.create_task(replica.accept_large(update))
        await asyncio.to_thread(entered.wait)
        assert replica.query("old", "T", 0) == 9 and not replica.is_behind, (
            "no thread may write the old table"
        )
        settled = asyncio.create_task(replica.settled())
        await asyncio.sleep(0)
        assert not settled.done(), "a term may not begin"
        go_on.set()
        assert await accepting is None
        await settled
    assert replica.table.rows == {"T@g": {0: 4}} and replica.journal.size == 0
    again = offsets_at(tmp_path / "r")
    assert again.table.rows == {"T@g": {0: 4}} and again.table.version == master.table.version


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_large_table_whose_replica_changes_its_role(tmp_path: Path, is_late: bool) -> None:
    """Memory and disk have it, or neither: what is journaled afterwards continues what the file has."""
    _, replica, update = whole_table(tmp_path)
    with _held(replica, after=is_late) as (entered, go_on):
        accepting = asyncio.create_task(replica.accept_large(update))
        await asyncio.to_thread(entered.wait)
        accepting.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await accepting
    await replica.settled()
    replica.begin_term(3)
    replica.commit("new", "T", 0, 5)
    replica.commit_staged()
    expected = {"T@g": {0: 4}, "T@new": {0: 5}} if is_late else {"T@old": {0: 9}, "T@new": {0: 5}}
    assert replica.table.rows == offsets_at(tmp_path / "r").table.rows == expected


@contextlib.contextmanager
def _held(
    table: ConsumerOffsetTable, *, after: bool = False
) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Inside, a thread that writes the file waits for the second event, before or after it writes."""
    entered, go_on, save = threading.Event(), threading.Event(), table.file.save

    def slow(value: Mapping[str, Any], turn: int, work: LongWork | None = None) -> bool:
        if after:
            assert save(value, turn, work)
        entered.set()
        assert go_on.wait(10)
        return after or save(value, turn, work)

    with patch.object(table.file, "save", slow):
        yield entered, go_on


def test_whole_tables_of_offsets_survive_a_power_cut(tmp_path: Path) -> None:
    """Renamed before it was on disk, the file and its .bak could both be empty: the broker did not start.
    Found by the whole-group simulator."""
    for seed in range(20):
        root = tmp_path / f"before-{seed}"
        root.mkdir()
        disk = StoreDisk(root)
        with disk.watched(lambda operation, path: None):
            replica = offsets_at(root)
            for offset in (1, 2):
                master = offsets_at(tmp_path / f"master-{seed}-{offset}")
                master.begin_term(offset)
                assert master.commit("G", "T", 0, offset)
                master.commit_staged()
                whole = master.updates_since(None)
                assert whole is not None
                assert replica.accept(whole) is None
        left = disk.survivors_of_a_power_cut(tmp_path / f"after-{seed}", Random(seed))
        assert offsets_at(left).query("G", "T", 0) == 2
