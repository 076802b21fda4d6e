"""A Spark session that is quiet, listens on no outside address, works in UTC and leaves no files behind.

`quick` is for queries over few rows, those of a demo or of a small fleet's events: there the time goes into
starting, not into rows, so the JVM skips its optimizing compiler and Spark its code generation. Queries over
many rows must not be quick. What Python workers do is the same in both.

Under spark-submit, in a notebook, or wherever a session is there already, that session decides: where it
runs, its memory and its places are never changed.
"""

import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import py4j  # type: ignore[import-untyped]
import pyspark
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from analytics.class_archive import archive_of, options_of
from analytics.errors import AnalyticsError
from analytics.java import cache_directory, find_java, wrapped_home
from analytics.queries.kept import CHECKPOINT, KEPT

LOOPBACK = "127.0.0.1"
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python program that it runs."""

LOG_CONFIG = Path(__file__).with_name("log4j2.properties")

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.master": "local[*]",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # planning is what costs: nothing is adapted, and filters are not derived from other filters
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",
    KEPT: CHECKPOINT,
}
LARGE = {
    "spark.master": "local[*]",
    "spark.sql.shuffle.partitions": "8",
    # with the JVM's own memory and Python, less than 4 GiB; what does not fit is sorted on disk
    "spark.driver.memory": "2g",
}
LOCAL = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"""On a cluster the executors must reach the driver."""

COMMON = {
    "spark.app.name": "keelmq-analytics",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # a stack trace for every column expression
    "spark.sql.catalogImplementation": "in-memory",
    # an absurd number in a damaged line may overflow; that must not stop everything
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.compression.codec": "zstd",
    # a listing job costs more than listing some hundred folders
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
}

PY4J = Path(py4j.__file__).parent
_TRACEBACK = "Traceback (most recent call last):"
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)
"""ConnectionError: its Java process is gone, killed or out of memory."""


@contextmanager
def spark_session(
    *,
    quick: bool,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[SparkSession]:
    """Yields a session; stops it and removes its files at the end. `conf` overrides. Raises
    AnalyticsError."""
    if is_submitted():
        yield from _given_session(master, conf or {}, progress)
        return
    java = find_java()
    progress(str(java))
    environ = {
        "JAVA_HOME": str(wrapped_home(java.path, cache_directory())),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # not another version that the machine has as well
        "PYSPARK_PYTHON": sys.executable,  # else workers are whatever python3 is first on the PATH
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    is_local = master is None or master.startswith("local")
    if is_local:
        environ["SPARK_LOCAL_IP"] = LOOPBACK
    with tempfile.TemporaryDirectory(prefix="keelmq-spark-", ignore_cleanup_errors=True) as scratch:
        settings = (
            COMMON
            | (QUICK if quick else LARGE)
            | (LOCAL if is_local else {})
            | _places(scratch, quick, options_of(archive_of(java, cache_directory())))
        )
        settings |= {"spark.master": master} if master else {}
        with _environment(environ):
            spark = _start(settings | dict(conf or {}))
        _without_tracebacks(spark)
        try:
            yield spark
        finally:
            _stop(spark, progress)


def _without_tracebacks(spark: SparkSession) -> None:
    """When Java is gone (killed, out of memory), Python's next request to it raises an error, and that is
    enough. py4j would log it with a traceback as well, its threads even after the session's end; PySpark's
    server of accumulators, which nothing here uses, would print one of its own."""
    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *request: None


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return PY4J not in Path(record.pathname).parents


@contextmanager
def spark_in_one_line() -> Iterator[None]:
    """Raises AnalyticsError, one line, for each of SPARK_ERRORS."""
    try:
        yield
    except SPARK_ERRORS as error:
        if _is_of_lost_java(error):
            raise AnalyticsError("Spark's Java process is gone: killed, or out of memory") from error
        raise AnalyticsError(f"Spark failed: {spark_error(error)}") from error


def _is_of_lost_java(error: Exception) -> bool:
    """py4j raises its base class, with no stack trace of Java in the text, for an answer that never came."""
    return isinstance(error, ConnectionError | Py4JNetworkError) or (
        type(error) is Py4JError and len(str(error).splitlines()) == 1
    )


def spark_error(error: Exception) -> str:
    """Returns one line of a stack trace: the error and its innermost cause. That of Python code which Java
    called stands below a "Traceback", as the first line that is not indented."""
    lines = str(error).strip().splitlines()
    for at, line in enumerate(lines[:2]):
        if line.endswith(_TRACEBACK):
            cause = next((each for each in lines[at + 1 :] if each and not each[0].isspace()), "")
            return f"{lines[0].removesuffix(_TRACEBACK).rstrip(' :')}: {cause}"
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        del lines[0]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return " <- ".join(dict.fromkeys([lines[0].lstrip(": "), *causes[-1:]]))


def is_submitted() -> bool:
    """Whether this process is spark-submit's, or has a session: only one Spark can be in it."""
    return GATEWAY_PORT in os.environ or SparkSession.getActiveSession() is not None


def _given_session(
    master: str | None, conf: Mapping[str, str], progress: Callable[[str], None]
) -> Iterator[SparkSession]:
    """Yields the session that is there, with our settings of queries in it; puts them back at the end."""
    if master is not None:
        raise AnalyticsError(f"--master {master}: Spark is started already; give --master to spark-submit")
    active = SparkSession.getActiveSession()
    spark = active or _start({})
    progress(f"the Spark session that is there, master {spark.conf.get('spark.master')}")
    for name in conf:
        if not spark.conf.isModifiable(name):
            raise AnalyticsError(f"--conf {name}: Spark is started already; give it to spark-submit")
    settings = {name: value for name, value in COMMON.items() if spark.conf.isModifiable(name)} | dict(conf)
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        _give_back(spark, before) if active else _stop(spark, progress)


def _give_back(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment of the Java process that starts meanwhile, and restores this process's
    afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stop(spark: SparkSession, progress: Callable[[str], None]) -> None:
    """Stops the session, also if its JVM is gone (killed, out of memory): the last request has failed
    already."""
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        progress(f"Spark could not be stopped: {error}")


def _places(scratch: str, quick: bool, archive: str) -> dict[str, str]:
    options = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()} -Djava.io.tmpdir={scratch} {archive}".strip()
    return {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        "spark.driver.extraJavaOptions": f"{options} {QUICK_JVM}" if quick else options,
    }


def _start(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise AnalyticsError(f"Spark did not start: {error}; its own messages are above") from error
