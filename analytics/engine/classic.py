"""Spark in this process: on this machine, or as the driver of a cluster. It needs the package pyspark and a
Java.

A session is quiet, listens on no outside address, works in UTC and leaves no files behind. Under
spark-submit, in a notebook, or wherever a session exists already, that session is used: its master, its
memory and its directories are never changed."""

import importlib.util
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

import analytics
from analytics.engine.environment import environment, named_main
from analytics.engine.errors import SPARK_ERRORS, is_of_lost_java
from analytics.engine.java import Java, find_java
from analytics.engine.settings import COMMON, DRIVER_MEMORY, DRIVER_MEMORY_DEFAULT
from analytics.errors import AnalyticsError

LOOPBACK = "127.0.0.1"
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit for the Python program that it runs."""

LOG_CONFIG = Path(__file__).with_name("log4j2.properties")

NO_SPARK = (
    "Spark itself is not installed here, only its client: pip install 'keelmq[spark]' in an environment of "
    "its own (in a checkout, ./run keelmq analytics ... makes one, .venv-spark)"
)

DRIVER = {
    "spark.master": "local[*]",
    "spark.sql.shuffle.partitions": "8",
    DRIVER_MEMORY: DRIVER_MEMORY_DEFAULT,
}
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
"""The options of `conf` are added to ours: of two that contradict each other, Java uses the last."""

STOP_ERRORS: tuple[type[Exception], ...] = (*SPARK_ERRORS, OSError)

LOCAL = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
"""On a cluster the executors must reach the driver."""


def is_submitted() -> bool:
    """Returns whether spark-submit started this process, or it has a session: a process can have only one
    Spark."""
    with named_main():
        return GATEWAY_PORT in os.environ or SparkSession.getActiveSession() is not None


def check_classic() -> Java:
    """Returns the Java that Spark is started on. AnalyticsError: there is none, or Spark is not installed."""
    if importlib.util.find_spec("py4j") is None:
        raise AnalyticsError(NO_SPARK)
    return find_java()


@contextmanager
def classic_session(
    master: str | None, conf: Mapping[str, str], progress: Callable[[str], None]
) -> Iterator[SparkSession]:
    """Yields a new session; stops it and removes its files at the end. Raises AnalyticsError."""
    java = check_classic()
    progress(f"Spark {pyspark.__version__}, {java}")
    environ = {
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),  # not another version that the machine has as well
        "PYSPARK_PYTHON": sys.executable,  # else workers are whatever python3 is first on the PATH
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    is_local = master is None or master.startswith("local")
    if is_local:
        environ["SPARK_LOCAL_IP"] = LOOPBACK
    with tempfile.TemporaryDirectory(prefix="keelmq-spark-", ignore_cleanup_errors=True) as scratch:
        settings = COMMON | DRIVER | (LOCAL if is_local else {}) | _places(scratch)
        settings |= {"spark.master": master} if master else {}
        settings |= conf
        if JAVA_OPTIONS in conf:
            settings[JAVA_OPTIONS] = f"{_places(scratch)[JAVA_OPTIONS]} {conf[JAVA_OPTIONS]}"
        if not is_local:
            send_functions()
        with environment(environ, without=("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")):
            spark = _start(settings)
        _without_tracebacks(spark)
        try:
            yield spark
        finally:
            _stop(spark, progress)


def send_functions() -> None:
    """Sends the code of this package's functions to workers on other machines: they need pyarrow, but not
    KeelMQ."""
    from pyspark.cloudpickle import register_pickle_by_value

    register_pickle_by_value(analytics)  # type: ignore[no-untyped-call]


def given_session(conf: Mapping[str, str], progress: Callable[[str], None]) -> Iterator[SparkSession]:
    """Yields the existing session with our query settings; restores its own settings at the end."""
    active = SparkSession.getActiveSession()
    spark = active or _start({})
    progress(f"the Spark session that is there, {_place(spark)}")
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


def _place(spark: SparkSession) -> str:
    master = spark.conf.get("spark.master", None)
    return f"Spark {spark.version}" if master is None else f"master {master}"


def _give_back(spark: SparkSession, settings: Mapping[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def _without_tracebacks(spark: SparkSession) -> None:
    """When Java is gone (killed, out of memory), Python's next request to it raises an error, and that is
    enough. py4j would log it with a traceback as well, its threads even after the session's end; PySpark's
    server of accumulators, which nothing here uses, would print another one."""
    import py4j

    folder = Path(py4j.__file__).parent
    logging.getLogger().addFilter(lambda record: folder not in Path(record.pathname).parents)
    logging.getLogger("py4j").propagate = False
    server = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *request: None


def _places(scratch: str) -> dict[str, str]:
    options = f"-Dlog4j2.configurationFile={LOG_CONFIG.as_uri()} -Djava.io.tmpdir={scratch}"
    return {
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": f"{scratch}/warehouse",
        JAVA_OPTIONS: options,
    }


def _start(settings: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise AnalyticsError(f"Spark did not start: {error}; its own messages are above") from error
    except PySparkException as error:
        raise AnalyticsError(f"Spark did not start: {str(error).splitlines()[0]}") from error


def _stop(spark: SparkSession, progress: Callable[[str], None]) -> None:
    """Stops the session. If its JVM is gone, it is stopped: killed or out of memory, which the last request
    has told, or by the same signal as this process."""
    try:
        spark.stop()
    except STOP_ERRORS as error:
        if not is_of_lost_java(error):
            progress(f"Spark could not be stopped: {error}")
