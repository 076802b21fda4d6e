"""The identity file: durable, checked, never silently replaced."""

import os
from pathlib import Path

import pytest

from broker.controller_mode.broker_meta_file import (
    BrokerMeta,
    BrokerMetaError,
    MetaFiles,
    decode_meta,
    encode_meta,
)

META = BrokerMeta("C", "b", 3, "127.0.0.1:10911;1700000000000")


def files(directory: Path, broker_name: str = "b") -> MetaFiles:
    return MetaFiles(directory, cluster_name="C", broker_name=broker_name)


def test_nothing_on_a_new_disk(tmp_path: Path) -> None:
    assert files(tmp_path).load() == (None, None)


def test_temp_then_meta(tmp_path: Path) -> None:
    disk = files(tmp_path)
    assert disk.write_temp(3, META.register_check_code) == META
    assert files(tmp_path).load() == (META, None)
    disk.replace_temp_by_meta()
    assert files(tmp_path).load() == (None, META)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".broker.meta"]


def test_delete_temp_twice_is_fine(tmp_path: Path) -> None:
    disk = files(tmp_path)
    disk.write_temp(1, "x;1")
    disk.delete_temp()
    disk.delete_temp()
    assert disk.load() == (None, None)


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    disk = files(tmp_path)
    disk.write_temp(3, META.register_check_code)
    (tmp_path / ".broker.meta.temp.tmp").write_bytes(b'{"brok')
    assert disk.load() == (META, None)
    disk.write_temp(4, "y;2")
    assert disk.load()[0] == BrokerMeta("C", "b", 4, "y;2")


def test_what_a_power_failure_must_not_reorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The content is on disk before its name, and each name before the next step of the registration."""
    steps: list[str] = []
    sync, rename = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        sync(descriptor)
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        steps.append(f"rename {source.name} {target.name}")

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    disk = files(tmp_path)
    disk.write_temp(3, META.register_check_code)
    temp, directory = ".broker.meta.temp", f"sync {tmp_path.name}"
    assert steps == [f"sync {temp}.tmp", f"rename {temp}.tmp {temp}", directory]
    disk.replace_temp_by_meta()
    assert steps[3:] == [f"rename {temp} .broker.meta", directory]


@pytest.mark.parametrize("name", [".broker.meta", ".broker.meta.temp"])
def test_every_cut_and_every_changed_byte_is_refused(tmp_path: Path, name: str) -> None:
    whole = encode_meta(META)
    for cut in range(len(whole) - 1):
        with pytest.raises(ValueError):
            decode_meta(whole[:cut])
    for place in range(len(whole) - 1):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        with pytest.raises(ValueError):
            decode_meta(bytes(damaged))
    (tmp_path / name).write_bytes(whole[:20])
    with pytest.raises(BrokerMetaError, match="is damaged"):
        files(tmp_path).load()


@pytest.mark.parametrize("raw", [b"", b"\0" * 100, b"[]\n", b"{}\n", b"x" * 70_000, b"C#b#3"])
def test_what_is_no_identity_is_refused_in_one_line(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / ".broker.meta").write_bytes(raw)
    with pytest.raises(BrokerMetaError) as caught:
        files(tmp_path).load()
    assert "\n" not in str(caught.value) and ".broker.meta" in str(caught.value)


def test_a_disk_of_another_broker_is_refused(tmp_path: Path) -> None:
    files(tmp_path).write_temp(3, "x;1")
    with pytest.raises(BrokerMetaError, match=r"belongs to C/b.*says C/other"):
        files(tmp_path, "other").load()


def test_names_may_hold_anything_json_can() -> None:
    odd = BrokerMeta("Ü#;", 'b "quoted"\n', 1, "a;1")
    assert decode_meta(encode_meta(odd)) == odd


def test_unreadable_is_not_absent(tmp_path: Path) -> None:
    (tmp_path / ".broker.meta").mkdir()
    with pytest.raises(BrokerMetaError, match="cannot read"):
        files(tmp_path).load()
