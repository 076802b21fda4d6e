"""Files of the audit log: rotation, their modes, and disks that are full."""

import errno
import os
import stat
from pathlib import Path

import pytest

from keelmq.runtime.rotated_file import RotatedFile


@pytest.fixture
def file(tmp_path: Path) -> RotatedFile:
    return RotatedFile(tmp_path / "audit", "mqbroker-1", bytes_max=20, files=3)


def read(file: RotatedFile) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in sorted(file.path.parent.iterdir())}


def test_rotation_keeps_the_newest_files(file: RotatedFile) -> None:
    for number in range(8):
        file.append(b"line %d..\n" % number)
    file.close()
    assert read(file) == {
        "mqbroker-1.log": b"line 6..\nline 7..\n",
        "mqbroker-1.log.1": b"line 4..\nline 5..\n",
        "mqbroker-1.log.2": b"line 2..\nline 3..\n",
    }


def test_only_the_owner_may_read(file: RotatedFile) -> None:
    before = os.umask(0)
    try:
        file.append(b"x\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_the_mode_of_an_older_file_is_corrected(file: RotatedFile) -> None:
    file.path.parent.mkdir()
    file.path.write_bytes(b"")
    file.path.chmod(0o644)
    file.append(b"x\n")
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600


def test_a_link_is_not_followed(file: RotatedFile, tmp_path: Path) -> None:
    file.path.parent.mkdir()
    file.path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError) as raised:
        file.append(b"x\n")
    assert raised.value.errno == errno.ELOOP
    assert not (tmp_path / "other").exists()


def test_a_file_goes_on_after_a_restart_and_a_torn_line_is_ended(file: RotatedFile) -> None:
    file.append(b"whole\nto")
    file.close()
    file.append(b"next\n")
    assert read(file) == {"mqbroker-1.log": b"whole\nto\nnext\n"}


def test_a_deleted_file_is_made_again(file: RotatedFile) -> None:
    file.append(b"a\n")
    file.path.rename(file.path.with_name("moved"))
    file.append(b"b\n")
    assert read(file) == {"moved": b"a\n", "mqbroker-1.log": b"b\n"}


def test_a_full_disk_leaves_no_half_a_line(file: RotatedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.append(b"a\n")
    write = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
        with pytest.raises(OSError) as raised:
            file.append(b"lost line\n")
    assert raised.value.errno == errno.ENOSPC
    file.append(b"b\n")
    assert read(file) == {"mqbroker-1.log": b"a\nb\n"}


def test_a_rotation_that_fails_loses_no_line(file: RotatedFile, monkeypatch: pytest.MonkeyPatch) -> None:
    file.append(b"line 1....\n")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "no")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        file.append(b"line 2....\n")
    file.append(b"line 3....\n")
    assert read(file) == {
        "mqbroker-1.log": b"line 3....\n",
        "mqbroker-1.log.1": b"line 1....\nline 2....\n",
    }
