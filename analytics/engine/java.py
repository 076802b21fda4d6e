"""The Java that Spark runs on: JAVA_HOME, else `java` on the PATH. The embedded engine needs none.

Spark 4.3 runs on Java 17 (17.0.11 or newer), 21 and 25. 25.0.0 to 25.0.2 can silently corrupt zstd output
(JDK-8377811): they are refused.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from analytics.errors import AnalyticsError

OLDEST_USABLE = {17: (17, 0, 11), 21: (21, 0, 0), 25: (25, 0, 3)}
"""By feature release; other releases are not supported by Spark 4.3."""

USABLE_TEXT = "Java 17 (17.0.11 or newer), 21 or 25 (25.0.3 or newer)"
VERSION_TIMEOUT_S = 20
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Java:
    """`home`: its JAVA_HOME, in which is bin/java. `source`: where it was found, for logs."""

    home: Path
    version: Version
    source: str

    def __str__(self) -> str:
        return f"Java {'.'.join(map(str, self.version))} of {self.source}: {self.home}"


def find_java(environ: Mapping[str, str] = os.environ) -> Java:
    """Returns the first usable Java. AnalyticsError: there is none; it lists what was found."""
    seen = []
    for source, path in _candidates(environ):
        if path is None:
            seen.append(f"{source}: none")
            continue
        version = java_version(path)
        if version is not None and is_usable(version):
            return Java(path.parent.parent, version, source)
        what = "does not start" if version is None else f"is {'.'.join(map(str, version))}"
        seen.append(f"{source}: {path} {what}")
    raise AnalyticsError(
        f"no Java that Spark can use ({'; '.join(seen)}); install {USABLE_TEXT} and set JAVA_HOME, "
        "or use the embedded engine, which needs none: --engine embedded"
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


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path | None]]:
    home = environ.get("JAVA_HOME")
    yield "JAVA_HOME", Path(home, "bin", "java") if home else None
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    # /usr/bin/java may be a link: the home is where the program itself is.
    yield "PATH", Path(on_path).resolve() if on_path else None
