"""The engine that the tests marked `spark` run on: TESTS_ENGINE=embedded (the default), spark, or connect.

embedded   Sail, in the test's process
spark      local[*], the settings of small inputs
connect    a server of Spark Connect that is started here, in a process of its own; or that of TESTS_REMOTE
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.jdk import provide_java
from tests.support.ports import free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENGINE = os.environ.get("TESTS_ENGINE") or "embedded"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # planning is what costs: nothing is adapted, and filters are not derived from other filters
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.constraintPropagation.enabled": "false",
}
"""Tests have some hundred rows: there the time goes into starting, compiling and planning."""
SLOW_ON_SPARK = pytest.mark.skipif(
    ENGINE != "embedded" and os.environ.get("TESTS_RANDOM") != "1",
    reason="minutes on Spark: ./test --all",
)
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
STARTS_WITHIN_S = 90


@contextmanager
def engine_session(work: Path) -> "Iterator[SparkSession]":
    """Yields a session of the chosen engine. `work`: a directory for what it needs meanwhile."""
    from analytics.engine.sessions import spark_engine

    if ENGINE == "embedded":
        with spark_engine(ENGINE) as spark:
            yield spark
        return
    if remote := os.environ.get("TESTS_REMOTE"):
        with spark_engine(remote=remote, conf=FEW_ROWS) as spark:
            yield spark
        return
    provide_java(work)
    if ENGINE == "spark":
        with spark_engine(ENGINE, conf=FEW_ROWS | {"spark.driver.extraJavaOptions": JVM}) as spark:
            yield spark
        return
    with connect_server(work) as remote, spark_engine(remote=remote) as spark:
        yield spark


@contextmanager
def connect_server(work: Path) -> Iterator[str]:
    """Yields the URL of a server of Spark Connect, a process that ends with the block. Needs a Java
    (provide_java)."""
    import pyspark

    port = free_port()
    home = Path(pyspark.__file__).parent
    environ = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    settings = {
        **FEW_ROWS,
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": JVM,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(work / "scratch"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
    }
    options = [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    with (work / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            [home / "bin" / "spark-submit", "--class", SERVER, *options, "spark-internal"],
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=work,
            env=os.environ | environ,
        )  # fmt: skip
    try:
        wait_for_start(server, port, work / "connect.log")
        yield f"sc://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def wait_for_start(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while not is_listening(port):
        assert server.poll() is None, log.read_text()[-4_000:]
        assert time.monotonic() < deadline, log.read_text()[-4_000:]
        time.sleep(0.1)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
