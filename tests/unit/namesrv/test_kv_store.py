"""KvStore on real files: format, durability, and disks that refuse."""

import asyncio
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.operation import CommandError
from keelmq.runtime import durable_file
from keelmq.runtime.config import ConfigError
from namesrv import kv_store
from namesrv.kv_store import KvStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def loaded(path: Path) -> KvStore:
    store = KvStore(path)
    store.load()
    return store


async def test_a_change_is_on_disk_when_it_is_answered(path: Path) -> None:
    store = loaded(path)
    await store.change("N", "k", "v")
    assert path.read_bytes() == b'{"configTable":{"N":{"k":"v"}}}', "RocketMQ's format"
    await store.change("N", "k", "é")
    assert json.loads((path.parent / "kvConfig.json.bak").read_bytes()) == {"configTable": {"N": {"k": "v"}}}
    await store.close()
    assert loaded(path).get("N", "k") == "é"


async def test_what_the_peer_wrote_is_read(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T1":"b-a:4;b-b:4","gone":null}}}')
    store = loaded(path)
    assert store.tables == {"ORDER_TOPIC_CONFIG": {"T1": "b-a:4;b-b:4"}}


async def test_a_deleted_key_leaves_its_namespace(path: Path) -> None:
    store = loaded(path)
    await store.change("N", "k", "v")
    await store.change("N", "k", None)
    await store.change("unknown", "k", None)
    assert store.tables == {"N": {}} == loaded(path).tables
    await store.close()


async def test_what_comes_during_a_write_is_one_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []

    def replace_file(path: Path, data: bytes) -> None:
        writes.append(data)
        durable_file.replace_file(path, data)

    monkeypatch.setattr(kv_store, "replace_file", replace_file)
    store = loaded(path)
    await asyncio.gather(*(store.change("N", f"k{i}", "v") for i in range(200)))
    assert len(writes) <= 2
    assert len(loaded(path).tables["N"]) == 200
    await store.close()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"configTable":{"N":{"k":1}}}', '{"configTable":{"N":"k"}}']
)
def test_a_damaged_file_stops_the_start_and_is_not_touched(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"kvConfig\.json is damaged: .*kvConfig\.json\.bak"):
        loaded(path)
    assert path.read_text() == text


def test_the_backup_serves_when_the_file_is_missing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The peer deletes the file before it renames the new one: a crash between leaves only the .bak."""
    path.parent.mkdir()
    (path.parent / "kvConfig.json.bak").write_text('{"configTable":{"N":{"k":"v"}}}')
    assert loaded(path).get("N", "k") == "v"
    assert "is read from" in caplog.text


def test_a_path_that_cannot_be_read_is_a_clear_error(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"cannot read .*kvConfig\.json: Is a directory; .*kvConfigPath"):
        loaded(path)


async def test_a_full_disk_refuses_the_change_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = loaded(path)
    await store.change("N", "k", "old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(durable_file.os, "fsync", no_space)
        with pytest.raises(CommandError, match="No space left on device; nothing was changed") as refused:
            await store.change("N", "k", "new")
    assert refused.value.code == 1
    assert store.get("N", "k") == "old" and loaded(path).get("N", "k") == "old"
    assert not (path.parent / "kvConfig.json.tmp").exists()
    await store.change("N", "k", "new")
    assert loaded(path).get("N", "k") == "new"
    await store.close()


async def test_a_file_system_without_hard_links_keeps_a_backup_too(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EPERM, "links are not supported")

    monkeypatch.setattr(durable_file.os, "link", no_link)
    store = loaded(path)
    await store.change("N", "k", "1")
    await store.change("N", "k", "2")
    assert b'"1"' in (path.parent / "kvConfig.json.bak").read_bytes()
    await store.close()


async def test_two_name_servers_with_one_file(path: Path) -> None:
    """The second one is refused, not believed: it would write over what the first one wrote."""
    first, second = loaded(path), loaded(path)
    await first.change("N", "a", "1")
    with pytest.raises(CommandError, match="is used by another name server: give each its own kvConfigPath"):
        await second.change("N", "b", "2")
    await first.close()
    await second.change("N", "b", "2")
    assert loaded(path).tables == {"N": {"a": "1", "b": "2"}}, "what the first one wrote is still there"
    await second.close()


async def test_a_file_that_was_damaged_meanwhile_is_never_written_over(path: Path) -> None:
    store = loaded(path)
    path.parent.mkdir()
    path.write_text("{")
    for _ in range(2):
        with pytest.raises(CommandError, match="is damaged"):
            await store.change("N", "k", "v")
    assert path.read_text() == "{" and store.tables == {}
    path.unlink()
    await store.change("N", "k", "v")
    await store.close()


async def test_there_are_limits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "FILE_BYTES_MAX", 100)
    monkeypatch.setattr(kv_store, "WAITING_MAX", 2)
    store = loaded(path)
    with pytest.raises(CommandError, match="larger than 100 bytes: delete keys first"):
        await store.change("N", "k", "x" * 100)
    with pytest.raises(CommandError, match="524288 is the limit"):
        await store.change("N", "k", "x" * 524_288)
    changes = [asyncio.ensure_future(store.change("N", f"k{i}", "v")) for i in range(3)]
    outcomes = await asyncio.gather(*changes, return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), type(None), CommandError]
    assert "2 KV changes wait for the disk" in str(outcomes[2])
    await store.close()


async def test_close_waits_for_the_write(path: Path) -> None:
    store = loaded(path)
    change = asyncio.ensure_future(store.change("N", "k", "v"))
    await asyncio.sleep(0)
    await store.close()
    assert loaded(path).get("N", "k") == "v"
    await change


class Crash(BaseException):
    """The process ends here: nothing is tidied up."""


async def test_a_crash_at_every_step_leaves_the_old_or_the_new_version(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str | None] = set()
    for step in range(1, 20):
        durable_file.replace_file(path, b'{"configTable":{"N":{"k":"old"}}}')
        with monkeypatch.context() as patch:
            left = step

            def counted(name: str) -> Callable[..., Any]:
                real = getattr(os, name)

                def call(*arguments: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left == 0:
                        raise Crash
                    return real(*arguments)

                return call

            for name in ("fsync", "link", "replace", "open", "close"):
                patch.setattr(durable_file.os, name, counted(name))
            try:
                durable_file.replace_file(path, b'{"configTable":{"N":{"k":"new"}}}')
            except Crash:
                pass
            done = left > 0
        value = loaded(path).get("N", "k")
        seen.add(value)
        assert value in ("old", "new")
        assert loaded(durable_file.backup_of(path)).get("N", "k") in ("old", "new", None)
        if done:
            break
    assert done and step > 5 and seen == {"old", "new"}
