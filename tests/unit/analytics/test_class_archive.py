"""When the archive of classes is used, and what is left when it cannot be written. Java is a script here."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from analytics.class_archive import archive_of, options_of, prepare
from analytics.errors import AnalyticsError
from analytics.java import Java

SCRIPT = """#!/bin/sh
[ "$1" != -version ] || { echo 'openjdk version "21.0.8" 2026-01-20' >&2; exit 0; }
echo "cannot do $1" >&2
exit 3
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    """A Java that knows its version and nothing else."""
    program = tmp_path / "home" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(SCRIPT)
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Java(program, (21, 0, 8), "JAVA_HOME")


def test_it_is_used_when_it_is_there(java: Java, tmp_path: Path) -> None:
    archive = archive_of(java, tmp_path / "a cache")
    assert options_of(archive) == ""
    archive.parent.mkdir()
    archive.touch()
    assert options_of(archive).startswith(f'"-XX:SharedArchiveFile={archive}" ')


def test_each_java_has_its_own(java: Java, tmp_path: Path) -> None:
    others = [Java(java.path, (21, 0, 9), "PATH"), Java(Path("/other/java"), (21, 0, 8), "PATH")]
    assert len({archive_of(each, tmp_path) for each in (java, *others)}) == 3


def test_it_is_written_once(java: Java, tmp_path: Path) -> None:
    archive = archive_of(java, tmp_path / "keelmq")
    archive.parent.mkdir()
    archive.touch()
    said: list[str] = []
    assert prepare(said.append) == archive
    assert said == []


def test_a_java_that_fails(java: Java, tmp_path: Path) -> None:
    with pytest.raises(AnalyticsError, match=r"cli.class_list ended with 1: ") as raised:
        prepare()
    assert "\n" not in str(raised.value)
    assert list((tmp_path / "keelmq").iterdir()) == []


def test_a_cache_that_cannot_be_written(java: Java, tmp_path: Path) -> None:
    (tmp_path / "keelmq").touch()
    with pytest.raises(AnalyticsError, match=r"cannot write .*\.jsa: .*; set XDG_CACHE_HOME"):
        prepare()
