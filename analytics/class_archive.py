"""An archive of the classes that Spark loads (Java calls it class data sharing).

Java maps it into memory, instead of reading each class from a jar, checking and linking it: a sixth of what a
small run costs.

    CACHE/classes-<Java and Spark's folder>-<their versions>.jsa

`keelmq analytics prepare` writes it: it runs the job on an invented fleet, in a process that lists its
classes, and then lets Java make the archive of that list. Java compares the archive with itself and with the
jars, and ignores one that does not fit. Local sessions use it when it is there (analytics/session.py).
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyspark

from analytics.errors import AnalyticsError
from analytics.java import Java, cache_directory, find_java

SUBMIT_OPTIONS = "SPARK_SUBMIT_OPTS"
"""Spark's launcher gives these options to the driver's Java only."""
CLASSES, CLASS_PATH = "classes.lst", "class-path"


def archive_of(java: Java, cache: Path) -> Path:
    """Returns where the archive for this Java and the installed Spark is, or would be."""
    version = f"{'.'.join(map(str, java.version))}-{pyspark.__version__}"
    return cache / f"classes-{_place(java)}-{version}.jsa"


def options_of(archive: Path) -> str:
    """Returns Java's options for an archive; none if it is not there. It is only used if it fits."""
    if not archive.is_file() or '"' in str(archive):
        return ""
    return f'"-XX:SharedArchiveFile={archive}" -Xshare:auto -Xlog:cds*=off'


def prepare(progress: Callable[[str], None] = lambda _: None) -> Path:
    """Writes the archive unless it is there, and deletes those of other versions in its place; returns its
    path. Raises AnalyticsError."""
    java, cache = find_java(), cache_directory()
    archive = archive_of(java, cache)
    if archive.is_file():
        return archive
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".classes-", dir=cache, ignore_cleanup_errors=True) as name:
            work = Path(name)
            progress(f"{java}: running the job on an invented fleet")
            _list_classes(work)
            progress("writing the archive")
            _dump(java, work, work / archive.name)
            os.replace(work / archive.name, archive)
        for old in cache.glob(f"classes-{_place(java)}-*.jsa"):
            if old != archive:
                old.unlink(missing_ok=True)
    except OSError as error:
        raise AnalyticsError(
            f"cannot write {archive}: {error.strerror or error}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    return archive


def _place(java: Java) -> str:
    places = f"{java.path}\n{Path(pyspark.__file__).parent}"
    return hashlib.sha256(os.fsencode(places)).hexdigest()[:16]


def _list_classes(work: Path) -> None:
    """Runs cli.class_list in a process whose Java writes CLASSES when it ends.

    Java has the output of that process, so when the output ends, Java has ended.
    """
    options = f"{os.environ.get(SUBMIT_OPTIONS, '')} -XX:DumpLoadedClassList={work / CLASSES}".strip()
    environ = os.environ | {SUBMIT_OPTIONS: options, "XDG_CACHE_HOME": str(work / "cache")}
    _run([sys.executable, "-m", "cli.class_list", str(work)], environ)


def _dump(java: Java, work: Path, archive: Path) -> None:
    class_path = (work / CLASS_PATH).read_text()
    _run(
        [
            str(java.path), "-Xshare:dump", f"-XX:SharedClassListFile={work / CLASSES}",
            f"-XX:SharedArchiveFile={archive}", "-cp", class_path,
        ],
        os.environ,
    )  # fmt: skip


def _run(command: list[str], environ: Mapping[str, str]) -> None:
    done = subprocess.run(command, env=dict(environ), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = f"{done.stdout}\n{done.stderr}".strip().splitlines() or ["no output"]
        raise AnalyticsError(f"{' '.join(command[:3])} ended with {done.returncode}: {lines[-1]}")
