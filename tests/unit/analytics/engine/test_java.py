"""Which Java is taken, with scripts that only say a version."""

import subprocess
import sys
from pathlib import Path

import pytest

from analytics.engine import java
from analytics.engine.java import find_java, is_usable, java_version
from analytics.errors import AnalyticsError
from tests.spark.jdk import DROPPED, wrapped_home


def fake_java(home: Path, version: str, *, code: int = 0) -> Path:
    """home/bin/java that says `version` as OpenJDK does: on stderr."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\nexit {code}\n")
    program.chmod(0o755)
    return program


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
    fake_java(tmp_path / "home", "21.0.8")
    on_path = fake_java(tmp_path / "path", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.home, found.source) == (tmp_path / "home", "JAVA_HOME")
    assert str(found) == f"Java 21.0.8 of JAVA_HOME: {tmp_path / 'home'}"


@pytest.mark.parametrize("bad", ["11.0.22", "25.0.1"])
def test_the_path_when_java_home_cannot_be_used(tmp_path: Path, bad: str) -> None:
    fake_java(tmp_path / "home", bad)
    on_path = fake_java(tmp_path / "path", "17.0.15")
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert (found.home, found.source) == (tmp_path / "path", "PATH")


def test_none_says_what_was_looked_at(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "home", "11.0.22")
    broken = fake_java(tmp_path / "path", "17.0.15", code=1)  # as the stub of a Mac without Java
    with pytest.raises(AnalyticsError) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(broken.parent)})
    text = str(raised.value)
    assert f"JAVA_HOME: {old} is 11.0.22" in text
    assert f"PATH: {broken} does not start" in text
    assert "install Java 17 (17.0.11 or newer), 21 or 25 (25.0.3 or newer)" in text
    assert "\n" not in text
    with pytest.raises(AnalyticsError, match=r"JAVA_HOME: none; PATH: none"):
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


def test_a_link_on_the_path(tmp_path: Path) -> None:
    """As /usr/bin/java is: the home is that of the program itself."""
    real = fake_java(tmp_path / "jdk", "21.0.8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(real)
    assert find_java({"PATH": str(tmp_path / "bin")}).home == tmp_path / "jdk"


def test_it_needs_no_spark() -> None:
    """Java is looked for before PySpark is there."""
    code = "import sys, analytics.engine.java, analytics.pages.writer; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
