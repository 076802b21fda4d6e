"""A failed fdatasync is not believed again: Linux reports a write-back error once, and then says success.

FailingDisk answers like Linux: one fdatasync (or fsync) of a file that matches fails, all later ones succeed.
"""

import asyncio
import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.core.readiness import not_ready
from broker.store.log.sync_fault import SyncError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from tests.support.store_parts import BORN_HOST, TOPIC, bodies, crash, open_store, put, put_many
from tests.unit.broker.app.test_broker_app import config, send
from tests.unit.broker.controller_mode.test_durability_group import Settings, groups
from tests.unit.broker.ha.test_ha_service import until


class FailingDisk:
    """fail(part): the next sync of a file whose path contains it fails, and only that one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._part, self._error = "", errno.EIO
        self.failed = 0
        self._lock = threading.Lock()
        for name in ("fdatasync", "fsync"):
            patch.setattr(os, name, self._call(getattr(os, name)))

    def fail(self, part: str, error: int = errno.EIO) -> None:
        self._part, self._error = part, error

    def _call(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def call(descriptor: int) -> None:
            with self._lock:
                if self._part and self._part in os.readlink(f"/proc/self/fd/{descriptor}"):
                    self._part = ""
                    self.failed += 1
                    raise OSError(self._error, os.strerror(self._error))
            real(descriptor)

        return call


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_the_log_says_the_first_failure_for_ever(tmp_path: Path, disk: FailingDisk, error: int) -> None:
    """ENOSPC of an fdatasync, too: the pages are lost all the same."""
    store = open_store(tmp_path)
    put(store)
    disk.fail("/commitlog/", error)
    with pytest.raises(SyncError):
        store.flush()
    for sync in (store.commit_log.sync, store.flush, store.flush_checkpoint):
        with pytest.raises(SyncError, match="could not be synced"):
            sync()
    assert store.commit_log.flushed_offset == 0 and disk.failed == 1
    assert os.strerror(error) in store.sync_fault.text and "/commitlog/" in store.sync_fault.text
    crash(store)


@pytest.mark.parametrize("part", ["/commitlog/", "/consumequeue/", "/index/"])
def test_nothing_of_a_store_is_believed_after_one_part_failed(
    tmp_path: Path, disk: FailingDisk, part: str
) -> None:
    """The checkpoint stays where it was, so that the next start makes the queues again."""
    store = open_store(tmp_path)
    put_many(store, 3)
    store.flush_checkpoint(index_too=True)
    before = (tmp_path / "checkpoint").read_bytes()
    store.put(TOPIC, 0, b"x", b"KEYS\x01k", 0, 0, 1, BORN_HOST, 0, 0)
    store.set_confirm_offset(store.commit_log.max_offset)
    assert store.index is not None
    store.index.write_pending()
    disk.fail(part)
    for _ in range(2):
        with pytest.raises(SyncError):
            store.flush_checkpoint(index_too=True)
    assert disk.failed == 1
    with pytest.raises(SyncError):
        store.commit_log.sync()
    assert (tmp_path / "checkpoint").read_bytes() == before
    crash(store)


def test_what_fails_before_a_sync_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No free descriptor for the directory: nothing was lost."""
    store = open_store(tmp_path)
    put(store)
    real = os.open

    def none_left(path: object, *rest: int) -> int:
        if Path(str(path)).name == "commitlog":
            raise OSError(errno.EMFILE, "Too many open files")
        return real(str(path), *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", none_left)
        with pytest.raises(OSError, match="Too many"):
            store.flush()
    assert store.flush() == store.commit_log.max_offset and not store.sync_fault.text
    store.close()
    assert not (tmp_path / "abort").exists()


def test_after_a_fault_nothing_is_put(tmp_path: Path, disk: FailingDisk) -> None:
    store = open_store(tmp_path)
    put(store)
    disk.fail("/commitlog/")
    with pytest.raises(SyncError):
        store.flush()
    store.commit_log.refuse()
    end = store.commit_log.max_offset
    with pytest.raises(SyncError):
        put(store)
    with pytest.raises(SyncError):
        store.commit_log.receive_view()
    assert store.commit_log.max_offset == end
    crash(store)


async def test_the_flush_task_does_not_take_the_error_from_group_commit(
    tmp_path: Path, disk: FailingDisk, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The flush task is told of the lost pages; the group commit of the next message must not say success."""
    caplog.set_level(logging.ERROR)
    settings = config(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=60_000)
    async with Broker(settings) as broker:
        assert isinstance(await send(client, broker, b"one"), Ok)
        disk.fail("/commitlog/")
        put_here(broker)
        with pytest.raises(OSError):
            await asyncio.to_thread(broker.store.flush)  # as the flush task does
        answer = await send(client, broker, b"two")
        assert isinstance(answer, Failed), "it was acknowledged behind lost pages"
        assert answer.code in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT)
        await until(lambda: not broker.gate.writable)
        refused = await send(client, broker, b"three")
        assert isinstance(refused, Failed) and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "could not be synced: Input/output error" in refused.remark
        assert any("could not be synced" in reason.detail for reason in not_ready(broker.status.readiness))
        assert broker.status.readiness.disk_fault
    assert (tmp_path / "store" / "abort").exists()
    told = [record for record in caplog.records if "could not be synced" in record.getMessage()]
    assert len(told) <= 2, "once when it is found, once when the store is closed"


async def test_a_reply_that_waits_for_the_disk_is_answered_10_at_once(
    tmp_path: Path, disk: FailingDisk, client: RemotingClient
) -> None:
    """Not after syncFlushTimeout: nothing that could come makes the message durable."""
    async with Broker(config(tmp_path, flush_disk_type="SYNC_FLUSH", sync_flush_timeout=60_000)) as broker:
        assert isinstance(await send(client, broker, b"one"), Ok)
        disk.fail("/commitlog/")
        async with asyncio.timeout(5):
            answer = await send(client, broker, b"two")
        assert isinstance(answer, Failed) and answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
        assert "disk of this broker failed" in answer.remark


async def test_under_async_flush_a_clean_stop_keeps_abort(
    tmp_path: Path, disk: FailingDisk, client: RemotingClient
) -> None:
    async with Broker(config(tmp_path, flush_interval_commit_log=10)) as broker:
        assert isinstance(await send(client, broker, b"one"), Ok)
        disk.fail("/commitlog/")
        await send(client, broker, b"two")
        await until(lambda: disk.failed == 1)
        await until(lambda: not broker.gate.writable, "writes are refused")
        refused = await send(client, broker, b"three")
        assert isinstance(refused, Failed) and refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert (tmp_path / "store" / "abort").exists()
    async with Broker(config(tmp_path)) as broker:
        assert broker.gate.writable, "a new process asks the disk again"
    assert not (tmp_path / "store" / "abort").exists()


def put_here(broker: Broker) -> None:
    """A message that no group commit has been asked for."""
    topic = broker.topics.topics["T"]
    broker.store.put(topic, 0, b"x", b"", 0, 0, 1, bytes(8), 0, 0)


@pytest.mark.parametrize("sync_flush", [False, True], ids=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_master_whose_disk_failed_hands_over_and_copies_nothing_more(
    tmp_path: Path, disk: FailingDisk, client: RemotingClient, sync_flush: bool
) -> None:
    async with groups(tmp_path, [Settings(True, sync_flush, 1, 2)]) as (group,):
        old = group.master
        assert isinstance(await send(client, old, b"one"), Ok)
        disk.fail(f"{old.config.store_path_root_dir}/commitlog")
        await send(client, old, b"two")
        await until(lambda: not old.gate.writable, "it takes nothing more")
        await until(lambda: any(each.gate.writable for each in group.slaves), "another one is master")
        new = next(each for each in group.slaves if each.gate.writable)
        await until(lambda: new.gate.in_sync == 2, "the third one is in sync")
        async with asyncio.timeout(5):
            while not isinstance(await send(client, new, b"three"), Ok):
                pass  # its lease begins with the first answers
        assert old.controlled is not None
        await until(lambda: "could not be synced" in old.status.readiness.ha_fault, "it copies nothing")
        assert new.status.role_name == "master" and old.status.role_name == "slave"
    assert (old.config.store_path_root_dir / "abort").exists()
    assert not (new.config.store_path_root_dir / "abort").exists()


@pytest.mark.parametrize("clean", [False, True])
def test_after_a_crash_the_log_is_read_from_the_disk_and_not_from_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool
) -> None:
    """A page whose write-back failed stays in the cache as if it were clean: recovery would find it whole."""
    store = open_store(tmp_path)
    put_many(store, 100)
    store.flush()
    store.flush_checkpoint()
    store.close() if clean else crash(store)
    done: list[tuple[str, str]] = []
    for name in ("fdatasync", "fsync", "posix_fadvise"):
        real = getattr(os, name)

        def spy(descriptor: int, *rest: int, name: str = name, real: Callable[..., None] = real) -> None:
            done.append((name, os.readlink(f"/proc/self/fd/{descriptor}")))
            real(descriptor, *rest)

        monkeypatch.setattr(os, name, spy)
    store = open_store(tmp_path)
    dropped = [path for name, path in done if name == "posix_fadvise"]
    if clean:
        assert dropped == []
    else:
        last = str(sorted((tmp_path / "commitlog").iterdir())[-1])
        assert last in dropped
        synced = [path for name, path in done[: done.index(("posix_fadvise", last))]]
        assert last in synced, "what is only in the cache is written first"
    assert len(bodies(store, 0)) + len(bodies(store, 1)) == 100
    store.close()
