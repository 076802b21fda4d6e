"""keelmq repair: what it shows, that it changes nothing unasked, and that a replica goes on after it."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import cli.repair
from broker.admin.repair import inspect_store
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, encode_epochs
from broker.ha.epoch_wal import wal_of
from broker.store.damage import FILE_NAME
from cli.keelmq import app
from tests.support.slices import first
from tests.support.store_disk import After, StoreDisk, Torn
from tests.support.store_parts import FILE_BYTES, bodies, crash, open_store, put
from tests.unit.broker.ha.test_ha_service import Broker, group, same, until
from tests.unit.broker.store.test_unread_numbers import confirm, gap_without_room, receive


@pytest.fixture(autouse=True)
def _a_master_has_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the group says is tested in test_repair_lost.py."""

    async def group(*_: object) -> None:
        return None

    async def told(*_: object) -> str:
        return "master m:1 (id 2) has the log 0..9"

    monkeypatch.setattr(cli.repair, "group_of", group)
    monkeypatch.setattr(cli.repair, "check_whole_copy", told)


def filled(root: Path) -> dict[int, int]:
    """Epochs 1, 2 and 3 with five messages each; where each begins."""
    store = open_store(root)
    starts = {}
    for epoch in (1, 2, 3):
        starts[epoch] = store.commit_log.max_offset
        for index in range(5):
            put(store, b"epoch %d message %d " % (epoch, index) * 20)
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    EpochFile(root / "epochFileCheckpoint").save(Epochs.of(list(starts.items())[:2]))
    EpochFile(root / "epochFileCheckpoint").save(Epochs.of(starts.items()))
    return starts


def repair(root: Path, *flags: str) -> Result:
    return CliRunner().invoke(app, ["repair", "--store", str(root), *flags])


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_it_shows_the_ways_on_and_changes_nothing(tmp_path: Path) -> None:
    starts = filled(tmp_path)
    before = content(tmp_path)
    for flags in ([], ["--wipe-after", "2"], ["--resync"], ["--yes"]):
        shown = repair(tmp_path, *flags)
        assert shown.exit_code == 0, shown.output
        assert "Nothing was changed" in shown.output
        assert content(tmp_path) == before
    shown = repair(tmp_path)
    assert f"epochs  1@0, 2@{starts[2]}, 3@{starts[3]}" in shown.output
    assert f"--wipe-after 2  ends the log at {starts[3]}: 5 messages" in shown.output
    assert f"--wipe-after 1  ends the log at {starts[2]}: 10 messages" in shown.output
    assert "--resync" in shown.output


def test_wipe_after(tmp_path: Path) -> None:
    starts = filled(tmp_path)
    before = (tmp_path / "epochFileCheckpoint").read_bytes()
    done = repair(tmp_path, "--wipe-after", "1", "--yes")
    assert done.exit_code == 0, done.output
    assert f"The log ends at {starts[2]} now: 10 messages" in done.output
    (kept,) = tmp_path.glob("epochFileCheckpoint.before-repair-*")
    assert kept.read_bytes() == before
    assert EpochFile(tmp_path / "epochFileCheckpoint").load() == Epochs.of([(1, 0)])
    store = open_store(tmp_path, master=False)
    assert store.commit_log.max_offset == starts[2]
    assert len(bodies(store)) == 5
    crash(store)


def test_wipe_after_a_term_that_has_left_out_queue_offsets(tmp_path: Path) -> None:
    """The store is recovered with its epochs, so the record behind the gap is not taken for damaged."""
    store, term, (data,), _ = gap_without_room(tmp_path)
    confirm(store)
    store.close()
    store = open_store(store.root, master=False)
    receive(store, data)
    end = store.commit_log.max_offset
    EpochFile(store.root / "epochFileCheckpoint").save(Epochs.of([(1, 0), (2, term), (3, end)]))
    crash(store)
    done = repair(store.root, "--wipe-after", "2", "--yes")
    assert done.exit_code == 0, done.output
    assert inspect_store(store.root).max_offset == end
    assert not (store.root / FILE_NAME).exists()


def test_a_damaged_epoch_file_is_cut_below_what_the_backup_can_tell(tmp_path: Path) -> None:
    """The .bak knows epochs 1 and 2; what it takes for epoch 2 may be another's."""
    starts = filled(tmp_path)
    (tmp_path / "epochFileCheckpoint").write_bytes(b"")
    shown = repair(tmp_path)
    assert "DAMAGED" in shown.output
    assert "--wipe-after 1 " in shown.output
    assert "--wipe-after 2 " not in shown.output
    refused = repair(tmp_path, "--wipe-after", "2", "--yes")
    assert refused.exit_code == 1
    assert "cannot be cut after epoch 2: 1 can be chosen" in refused.output
    assert repair(tmp_path, "--wipe-after", "1", "--yes").exit_code == 0
    assert EpochFile(tmp_path / "epochFileCheckpoint").load() == Epochs.of([(1, 0)])
    assert inspect_store(tmp_path).max_offset == starts[2]


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_repair_uses_what_a_killed_broker_has_written_ahead(tmp_path: Path, is_finished: bool) -> None:
    """Epoch 3 is in the write-ahead file only: the .bak has epoch 1, the epoch file 1 and 2."""
    starts = filled(tmp_path)
    path = tmp_path / "epochFileCheckpoint"
    written_ahead(path, starts)
    newest = encode_epochs(Epochs.of(starts.items()))
    if is_finished:
        EpochFile(path).finish()
    assert f"epochs  1@0, 2@{starts[2]}, 3@{starts[3]}" in repair(tmp_path).output
    assert (path.read_bytes() == newest) == is_finished, "to look changes nothing"
    done = repair(tmp_path, "--wipe-after", "2", "--yes")
    assert done.exit_code == 0, done.output
    (kept,) = tmp_path.glob("epochFileCheckpoint.before-repair-*")
    assert kept.read_bytes() == newest
    assert EpochFile(path).load().pairs == ((1, 0), (2, starts[2]))
    assert inspect_store(tmp_path).max_offset == starts[3]


def written_ahead(path: Path, starts: dict[int, int]) -> None:
    file = EpochFile(path)
    file.save(Epochs.of(list(starts.items())[:1]))
    file.save(Epochs.of(list(starts.items())[:2]))
    file.prepare()
    file.save_ahead(Epochs.of(starts.items()))


def test_a_damaged_epoch_file_is_cut_below_what_the_write_ahead_file_can_tell(tmp_path: Path) -> None:
    """It knows epochs 1, 2 and 3, the .bak 1 only. Nothing tells whether there was a later one."""
    starts = filled(tmp_path)
    written_ahead(tmp_path / "epochFileCheckpoint", starts)
    (tmp_path / "epochFileCheckpoint").write_bytes(b"")
    shown = repair(tmp_path)
    assert "DAMAGED" in shown.output
    assert "--wipe-after 2 " in shown.output
    assert repair(tmp_path, "--wipe-after", "2", "--yes").exit_code == 0
    assert EpochFile(tmp_path / "epochFileCheckpoint").load().pairs == ((1, 0), (2, starts[2]))


def test_resync_moves_everything_aside_and_deletes_nothing(tmp_path: Path) -> None:
    written_ahead(tmp_path / "epochFileCheckpoint", filled(tmp_path))
    (tmp_path / "brokerIdentity").write_text("C#b#2")
    before = content(tmp_path)
    done = repair(tmp_path, "--resync", "--yes")
    assert done.exit_code == 0, done.output
    (aside,) = tmp_path.glob("before-resync-*")
    assert str(aside) in done.output
    after = {name.removeprefix(aside.name + "/"): data for name, data in content(tmp_path).items()}
    assert after == before
    assert (tmp_path / "brokerIdentity").exists(), "it is the same replica"
    assert not list(tmp_path.glob("epochFileCheckpoint*"))
    store = open_store(tmp_path, master=False)
    assert store.commit_log.max_offset == 0
    crash(store)


@pytest.mark.parametrize("flags", [["--wipe-after", "2"], ["--resync"]])
def test_a_running_broker_is_left_alone(tmp_path: Path, flags: list[str]) -> None:
    filled(tmp_path)
    store = open_store(tmp_path, master=False)
    assert "a broker works in it" in repair(tmp_path).output
    refused = repair(tmp_path, *flags, "--yes")
    assert refused.exit_code == 1
    assert "stop it first" in refused.output
    assert store.commit_log.max_offset > 0
    crash(store)
    assert not list(tmp_path.glob("*before-re*"))


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("is_allocated", [False, True])
def test_files_that_were_created_ahead_are_no_part_of_the_log(
    tmp_path: Path, ahead: int, is_allocated: bool
) -> None:
    """As RocketMQ's broker leaves them."""
    filled(tmp_path)
    end = inspect_store(tmp_path).max_offset
    last = sorted((tmp_path / "commitlog").iterdir())[-1]
    for number in range(1, ahead + 1):
        name = f"{int(last.name) + number * FILE_BYTES:020}"
        (last.parent / name).write_bytes(bytes(FILE_BYTES if is_allocated else 0))
    assert inspect_store(tmp_path).max_offset == end
    checked = CliRunner().invoke(app, ["verify", "--from-dir", str(tmp_path)])
    assert checked.exit_code == 0, checked.output


def test_what_is_no_store_is_said_so(tmp_path: Path) -> None:
    refused = repair(tmp_path)
    assert refused.exit_code == 1
    assert "not a broker's store" in refused.output
    assert repair(tmp_path, "--wipe-after", "1", "--resync").exit_code == 2


@pytest.mark.parametrize("state", ["", "damaged", "written ahead", "lost ahead"])
@pytest.mark.parametrize("flags", first(1, [["--resync"], ["--wipe-after", "1"]]))
def test_a_repair_that_broke_off_is_done_by_the_next_one(
    tmp_path: Path, flags: list[str], state: str
) -> None:
    operations, done = 0, False
    while not done:
        root, left = tmp_path / str(operations), tmp_path / f"{operations}-left"
        starts = filled(root)
        if state.endswith("ahead"):
            written_ahead(root / "epochFileCheckpoint", starts)
        if state == "lost ahead":
            wal_of(root / "epochFileCheckpoint").unlink()
        if state == "damaged":
            (root / "epochFileCheckpoint").write_bytes(b"x")
        disk = StoreDisk(root)
        with disk.watched(After(operations)):
            try:
                done = repair(root, *flags, "--yes").exit_code == 0
            except Torn:
                done = False
        disk.survivors_of_a_kill(left)
        if not done:
            again = repair(left, *flags, "--yes")
            was_done = "not a broker's store", "no epoch can be chosen"
            assert again.exit_code == 0 or any(text in again.output for text in was_done)
        store = open_store(left, master=False)
        assert store.commit_log.max_offset == (0 if flags == ["--resync"] else starts[2])
        epochs = EpochFile(left / "epochFileCheckpoint").load()
        assert epochs == (Epochs() if flags == ["--resync"] else Epochs.of([(1, 0)]))
        crash(store)
        operations += 1
    assert operations > 3


async def test_a_replica_without_a_common_epoch_goes_on_after_a_resync(tmp_path: Path) -> None:
    async with group(tmp_path, 2) as (one, two):
        await one.lead(1)
        one.put(b"right", 30)
        await two.lead(2)
        two.put(b"wrong", 20)
        await one.lead(3)
        await two.follow(one, 3)
        await until(lambda: two.service.fault is not None, "fault")
        assert "keelmq repair" in str(two.service.fault)
        await two.service.stop()
        two.store.close()
        done = await asyncio.to_thread(repair, tmp_path / "2", "--resync", "--yes")
        assert done.exit_code == 0
        again = Broker(tmp_path / "2", two.controller, 2, two.settings)
        two.store, two.service = again.store, again.service
        await two.service.start()
        await two.follow(one, 3)
        await until(lambda: same(one, two), "copy")
