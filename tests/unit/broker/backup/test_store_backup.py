"""A backup of a store, stopped or serving, and the store that a restore makes of it."""

import asyncio
import os
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.app.broker import Broker
from broker.backup.manifest import MANIFEST_NAME, BackupError, read_manifest
from broker.backup.offline import backup_stopped
from broker.backup.restore import check_backup, restore_store
from broker.backup.writer import BackupWriter
from broker.controller_mode.broker_meta_file import META_NAME, BrokerMeta, encode_meta
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from broker.store.log.mapped_file import lock_directory
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.store_copies import StoreBackup
from keelmq.runtime.disk_room import DiskRoom
from tests.support.raft_group import until
from tests.support.store_parts import FILE_BYTES, bodies, open_store, put_many
from tests.unit.broker.app.test_broker_app import config, max_offset, send

COUNT = 100  # messages, in three files of the log


def filled(root: Path) -> int:
    """The store of a stopped broker. Returns the end of its log."""
    store = open_store(root)
    put_many(store, COUNT)
    end = store.commit_log.max_offset
    assert end > 2 * FILE_BYTES
    store.close()
    EpochFile(root / "epochFileCheckpoint").save(Epochs.of([(1, 0), (4, 2_000)]))
    (root / META_NAME).write_bytes(encode_meta(BrokerMeta("C", "b", 2, "h:1;5")))
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    (root / "config" / "topics.json.bak").write_text("old")
    (root / "config" / "consumerOffset.json.journal").write_text("{}\n")
    (root / "config" / "users.json").write_text("{}")
    return end


def backed_up(root: Path, target: Path) -> Path:
    steps = list(backup_stopped(root, target, program="test"))
    assert steps[-1][0] == steps[-1][1] > 0
    return target


def restored(backup: Path, root: Path, *, with_identity: bool = False) -> Path:
    steps = list(restore_store(backup, root, with_identity=with_identity))
    assert steps[-1][0] == steps[-1][1]
    return root


# -- of a stopped broker -----------------------------------------------------------------------------------


def test_a_restored_store_has_every_message(tmp_path: Path) -> None:
    end = filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    manifest = read_manifest(backup)
    assert (manifest.cluster_name, manifest.broker_name, manifest.broker_id) == ("C", "b", 2)
    assert (manifest.min_offset, manifest.end_offset, manifest.confirm_offset) == (0, end, end)
    shutil.rmtree(tmp_path / "store")
    root = restored(backup, tmp_path / "new")
    assert not (root / META_NAME).exists(), "a new identity, unless it is asked for"
    assert EpochFile(root / "epochFileCheckpoint").load().pairs == ((1, 0), (4, 2_000))
    assert {each.name for each in (root / "config").iterdir()} == {
        "topics.json", "consumerOffset.json.journal", "users.json",
    }  # fmt: skip
    assert (root / "config" / "users.json").stat().st_mode & 0o777 == 0o600
    store = open_store(root)
    assert store.commit_log.max_offset == end
    for queue_id in (0, 1):
        wanted = [b"message %d" % index for index in range(queue_id, COUNT, 2)]
        assert bodies(store, queue_id) == wanted
    put_many(store, 2)  # and it goes on
    assert len(bodies(store)) == COUNT // 2 + 1
    store.close()


def test_the_identity_on_request(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    root = restored(backup, tmp_path / "new", with_identity=True)
    assert (root / META_NAME).read_bytes() == (tmp_path / "store" / META_NAME).read_bytes()
    assert not [each for each in root.iterdir() if each.name.endswith(".restoring")]


def test_a_log_that_begins_in_the_middle_of_a_file(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    store.become_slave()
    store.cutter.reset_to(FILE_BYTES + 500)
    store.become_master()
    put_many(store, COUNT)
    store.close()
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    assert read_manifest(backup).min_offset == FILE_BYTES + 500
    store = open_store(restored(backup, tmp_path / "new"))
    assert store.commit_log.min_offset == FILE_BYTES + 500
    assert bodies(store, 1) == [b"message %d" % index for index in range(1, COUNT, 2)]
    store.close()


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    lock = lock_directory(tmp_path / "store")
    with pytest.raises(BackupError, match="a broker uses"):
        backed_up(tmp_path / "store", tmp_path / "backup")
    os.close(lock)
    with pytest.raises(BackupError, match="it is not a broker's store"):
        backed_up(tmp_path / "nothing", tmp_path / "backup")


def test_nothing_is_replaced(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    with pytest.raises(BackupError, match="exists: choose another name"):
        backed_up(tmp_path / "store", backup)
    with pytest.raises(BackupError, match="is not empty"):
        restored(backup, tmp_path / "store")


def test_a_restore_without_room_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    needed = read_manifest(backup).byte_count
    disk = SimpleNamespace(free=needed)
    monkeypatch.setattr("broker.store.store_check.shutil.disk_usage", lambda path: disk)
    with pytest.raises(BackupError, match=f"its disk has {needed} bytes free"):
        restored(backup, tmp_path / "new" / "store")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_leaves_no_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "store")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("broker.backup.writer.os.write", full)
    with pytest.raises(OSError, match="No space"):
        backed_up(tmp_path / "store", tmp_path / "backup")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_what_a_killed_backup_left_is_no_backup(tmp_path: Path) -> None:
    filled(tmp_path / "store")
    steps = backup_stopped(tmp_path / "store", tmp_path / "backup", program="test")
    next(steps)
    partial = tmp_path / "backup.partial"
    shutil.copytree(partial, tmp_path / "kept.partial")
    steps.close()
    assert not partial.exists()
    (tmp_path / "kept.partial").rename(partial)
    with pytest.raises(BackupError, match="was not finished"):
        restored(partial, tmp_path / "new")
    backed_up(tmp_path / "store", tmp_path / "backup")  # in its place


def test_two_brokers_do_not_write_one_backup(tmp_path: Path) -> None:
    """Of one container, with one backupPath."""
    filled(tmp_path / "store")
    filled(tmp_path / "other")
    first = backup_stopped(tmp_path / "store", tmp_path / "backup", program="test")
    next(first)
    with pytest.raises(BackupError, match="is being written by another"):
        backed_up(tmp_path / "other", tmp_path / "backup")
    list(first)
    assert list(check_backup(tmp_path / "backup"))


# -- damage ------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(data=st.data())
def test_any_damage_is_noticed(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "backup").exists():
        filled(tmp_path / "store")
        backed_up(tmp_path / "store", tmp_path / "backup")
    for name in ("damaged", "new"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    shutil.copytree(tmp_path / "backup", tmp_path / "damaged")
    files = sorted(
        path for path in (tmp_path / "damaged").rglob("*") if path.is_file() and path.stat().st_size
    )
    path = data.draw(st.sampled_from(files))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "delete", "append"]))
    if how == "flip":
        content[position] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del content[position:]
    elif how == "append":
        content += b"\0"
    path.write_bytes(content)
    if how == "delete":
        path.unlink()
    with pytest.raises(BackupError):
        list(check_backup(tmp_path / "damaged"))
    with pytest.raises(BackupError):
        restored(tmp_path / "damaged", tmp_path / "new")
    assert not (tmp_path / "new" / "commitlog").exists(), "a broker would start with a part of the log"
    assert not (tmp_path / "new" / META_NAME).exists()


@pytest.mark.parametrize("name", ["log/../../x", "/x", "x", "log", "x/log/y", ""])
def test_a_path_that_leads_out_of_the_backup_is_refused(tmp_path: Path, name: str) -> None:
    filled(tmp_path / "store")
    backup = backed_up(tmp_path / "store", tmp_path / "backup")
    manifest = read_manifest(backup)
    (backup / MANIFEST_NAME).unlink()
    writer = BackupWriter(tmp_path / "evil")
    writer.begin()
    writer.entries.append(type(manifest.files[0])(name, 1, "0"))
    writer.finish(type(manifest)(**{
        name: getattr(manifest, name) for name in manifest.__struct_fields__ if name != "files"
    }, files=tuple(writer.entries)))  # fmt: skip
    with pytest.raises(BackupError, match="which no backup has"):
        read_manifest(tmp_path / "evil")


# -- of a broker that serves -------------------------------------------------------------------------------


@asynccontextmanager
async def serving(tmp_path: Path) -> AsyncIterator[tuple[RemotingClient, AdminClient, Broker]]:
    client = RemotingClient()
    async with (
        AdminClient(client) as admin,
        Broker(config(tmp_path, backup_path=tmp_path / "backups")) as broker,
    ):
        yield client, admin, broker
    await client.close()


async def finished(admin: AdminClient, broker: Broker) -> StoreBackup:
    await until(lambda: broker.backups.progress.state != "copying", "the end of the backup")
    return await admin.store_copies.store_backup(broker.address)


async def test_a_serving_broker_makes_a_consistent_backup(tmp_path: Path) -> None:
    client = RemotingClient()
    async with (
        AdminClient(client) as admin,
        Broker(config(tmp_path, backup_path=tmp_path / "backups")) as broker,
    ):
        for index in range(150):
            assert isinstance(await send(client, broker, b"%d" % index * 400), Ok)
        begun = await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        assert begun.state == "copying" and begun.end_offset == broker.store.confirm_offset
        for _ in range(20):
            assert isinstance(await send(client, broker, b"later"), Ok)
        done = await finished(admin, broker)
        assert (done.state, done.error) == ("done", "") and done.bytes_done == done.bytes_total > 65_536
        manifest = read_manifest(tmp_path / "backups" / "one")
        assert manifest.end_offset == begun.end_offset < broker.store.commit_log.max_offset
        with pytest.raises(AdminError, match="exists: choose another name"):
            await admin.store_copies.start_store_backup(broker.address, "one")
        assert broker.backups.held_offset > broker.store.commit_log.max_offset
    shutil.rmtree(tmp_path / "store")
    restored(tmp_path / "backups" / "one", tmp_path / "store")
    async with Broker(config(tmp_path)) as broker:
        assert await max_offset(client, broker) == 150
        assert isinstance(await send(client, broker, b"next"), Ok)
        assert await max_offset(client, broker) == 151
    await client.close()


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "x.partial", "-x", "a" * 200])
async def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    async with serving(tmp_path) as (_, admin, broker):
        with pytest.raises(AdminError):
            await admin.store_copies.start_store_backup(broker.address, name)
        assert not (tmp_path / "backups").exists()


async def test_what_is_refused(tmp_path: Path) -> None:
    async with AdminClient() as admin, Broker(config(tmp_path)) as broker:
        with pytest.raises(AdminError, match="backupPath is not set"):
            await admin.store_copies.start_store_backup(broker.address, "one")
        assert (await admin.store_copies.store_backup(broker.address)).state == "none"


async def test_a_backup_path_that_cannot_be_looked_at(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    async with AdminClient() as admin, Broker(config(tmp_path, backup_path=path)) as broker:
        with pytest.raises(AdminError, match=f"backupPath {path}: File name too long"):
            await admin.store_copies.start_store_backup(broker.address, "one")


async def test_a_backup_path_that_does_not_answer(tmp_path: Path) -> None:
    """As a file server's that is gone. The broker goes on, and nothing is held back when it answers."""
    answers = threading.Event()

    def room(directory: Path) -> DiskRoom:
        assert answers.wait(10), "the event loop waited, too"
        return DiskRoom(total=1 << 30, used=1 << 30, available=0)

    async with serving(tmp_path) as (_, admin, broker):
        broker.backups.room = room
        begins = asyncio.create_task(admin.store_copies.start_store_backup(broker.address, "one"))
        await until(lambda: (tmp_path / "backups").exists(), "the look at backupPath")
        with pytest.raises(AdminError, match="backup that begins is in progress"):
            await admin.store_copies.start_store_backup(broker.address, "two")
        answers.set()
        with pytest.raises(AdminError, match="do not fit"):
            await begins
        await broker.backups.stopped()
        assert broker.backups.held_offset > broker.store.commit_log.max_offset


async def test_a_backup_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, admin, broker):
        for _ in range(10):
            assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        await admin.store_copies.start_store_backup(broker.address, "slow", bytes_per_second=1)
        with pytest.raises(AdminError, match="backup slow is in progress"):
            await admin.store_copies.start_store_backup(broker.address, "two")
        assert broker.backups.held_offset == 0  # retention keeps what is still to be copied
        broker.backups.cancel()
        await broker.backups.stopped()
        assert broker.backups.progress.state == "cancelled"
        assert list((tmp_path / "backups").iterdir()) == []


async def test_retention_waits_for_a_backup(tmp_path: Path) -> None:
    client = RemotingClient()
    settings = config(tmp_path, backup_path=tmp_path / "backups", file_reserved_time=0)
    async with AdminClient(client) as admin, Broker(settings) as broker:
        for _ in range(20):
            assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        log = broker.store.commit_log
        await until(lambda: log.flushed_offset > log.file_bytes, "the first file on the disk")
        await admin.store_copies.start_store_backup(broker.address, "slow", bytes_per_second=1)
        broker.retention.requested = True
        await broker.retention.clean()
        assert log.min_offset == 0
        broker.backups.cancel()
        await broker.backups.stopped()
        broker.retention.requested = True
        await broker.retention.clean()
        assert log.min_offset > 0, "nothing else kept the file"
    await client.close()


async def test_a_full_disk_fails_a_backup_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    async with serving(tmp_path) as (client, admin, broker):
        assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        monkeypatch.setattr("broker.backup.writer.write_all", full)
        await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        failed = await finished(admin, broker)
        await broker.backups.stopped()
        assert failed.state == "failed" and "No space left" in failed.error
        assert list((tmp_path / "backups").iterdir()) == []
        assert isinstance(await send(client, broker, b"goes on"), Ok)
        monkeypatch.undo()
        await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        assert (await finished(admin, broker)).state == "done"


async def test_an_error_that_nobody_expected_fails_a_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begun again, it would be a whole backup without metadata: their files are closed by then."""
    async with serving(tmp_path) as (client, admin, broker):
        assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        open_file, failures = broker.store.commit_log.open_file, [RuntimeError("can't start new thread")]

        def fails_once(offset: int) -> int:
            if failures:
                raise failures.pop()
            return open_file(offset)

        monkeypatch.setattr(broker.store.commit_log, "open_file", fails_once)
        await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        failed = await finished(admin, broker)
        await broker.backups.stopped()
        assert failed.state == "failed" and "can't start new thread" in failed.error
        assert list((tmp_path / "backups").iterdir()) == []
        await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        assert (await finished(admin, broker)).state == "done"


async def test_a_truncation_voids_a_backup(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, admin, broker):
        for _ in range(10):
            assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        await admin.store_copies.start_store_backup(broker.address, "one", bytes_per_second=0)
        broker.store.cutter.cut_count += 1
        failed = await finished(admin, broker)
        assert failed.state == "failed" and "was truncated meanwhile" in failed.error
        await broker.backups.stopped()
        assert list((tmp_path / "backups").iterdir()) == []


async def test_a_disk_that_is_too_small_is_refused_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (client, admin, broker):
        assert isinstance(await send(client, broker, b"x" * 4_000), Ok)
        broker.backups.room = lambda directory: DiskRoom(total=300_000, used=80_000, available=20_000)
        with pytest.raises(AdminError, match=r"keeps 15 % free for the broker: 5000 are left"):
            await admin.store_copies.start_store_backup(broker.address, "one")
        assert broker.backups.progress.state == "none"
