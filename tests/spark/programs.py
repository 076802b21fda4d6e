"""`keelmq analytics run` as a program, on each engine: for what must be killed or measured from outside."""

import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.spark.processes import command_of, descendants

ROOT = Path(__file__).resolve().parent.parent.parent
EMBEDDED, SPARK, EXECUTORS, CONNECT = NAMES = ("embedded", "spark", "executors", "connect")
"""executors: classic Spark with two of them, in processes of their own."""
LITTLE = {
    "spark.executor.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For little input on a small machine."""
DRIVER, SERVER = "driver", "server"


@dataclass(frozen=True)
class Program:
    """`options`: of the command. `victims`: what is in the commands of the processes that can be killed
    besides the driver, by a name for them."""

    engine: str
    options: Sequence[str] = ()
    victims: Mapping[str, str] = field(default_factory=dict)
    others: frozenset[int] = frozenset()
    """Processes that were there before: those of the session of the tests."""

    def command(self, source: Path, out: Path) -> Sequence[str]:
        """Returns the command that analyses `source`."""
        run = (sys.executable, "-m", "cli.keelmq", "analytics", "run")
        return [*run, "--input", str(source), "--output", str(out), *self.options]

    def pids(self, driver: int, victim: str) -> list[int]:
        """Returns the processes that `victim` names: below the driver, or below this test, which may have
        started a server."""
        if victim == DRIVER:
            return [driver]
        found = {*descendants(driver), *descendants(os.getpid())} - self.others
        return sorted(pid for pid in found if self.victims[victim] in command_of(pid))

    def servers(self) -> list[int]:
        """Returns the processes of its server, which this test has started."""
        return self.pids(os.getpid(), SERVER) if SERVER in self.victims else []


def names() -> Sequence[str]:
    """Returns the engines that this Python environment has: Spark, whose package has jars, or the embedded
    one, which needs Spark's client only."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        return ()
    return NAMES[1:] if Path(spark.origin).with_name("jars").is_dir() else (EMBEDDED,)


@contextmanager
def program(name: str) -> Iterator[Program]:
    """Yields the program on one of the engines; the server of CONNECT runs until the end of the block."""
    conf = [each for key, value in LITTLE.items() for each in ("--conf", f"{key}={value}")]
    if name == EMBEDDED:
        yield Program(name)
        return
    others = frozenset(descendants(os.getpid()))
    from tests.spark.engine import connect_server
    from tests.spark.jdk import provide_java

    with tempfile.TemporaryDirectory(prefix="keelmq-java-") as folder:
        provide_java(Path(folder))
        if name == SPARK:
            yield Program(
                name, ("--master", "local[2]", *conf), {"java": "org.apache.spark.deploy.SparkSubmit"}, others
            )
        elif name == EXECUTORS:
            executor = {"executor": "CoarseGrainedExecutorBackend"}
            yield Program(name, ("--master", "local-cluster[2,1,1024]", *conf), executor, others)
        else:
            with connect_server(Path(folder)) as remote:
                yield Program(name, ("--remote", remote), {SERVER: "SparkConnectServer"}, others)


def environ() -> dict[str, str]:
    """Returns the environment of the programs: they import this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
