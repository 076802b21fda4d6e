"""Which engine the options choose, before any engine is there."""

import pytest

from analytics.engine import sessions as engines
from analytics.engine.environment import environment
from analytics.engine.errors import engine_error
from analytics.engine.sessions import CONNECT, EMBEDDED, SPARK, engine_of, spark_engine
from analytics.engine.settings import memory_bytes
from analytics.errors import AnalyticsError

CLUSTER, SERVER = "spark://host:7077", "sc://host:15002"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(engines, "is_submitted", lambda: getattr(request, "param", True))


@pytest.mark.parametrize(
    ("engine", "master", "remote", "submitted", "chosen"),
    [
        (None, None, None, False, EMBEDDED),
        (None, CLUSTER, None, False, SPARK),
        (None, None, SERVER, False, CONNECT),
        (EMBEDDED, None, None, False, EMBEDDED),
        (SPARK, None, None, False, SPARK),
        (SPARK, CLUSTER, None, False, SPARK),
        (CONNECT, None, SERVER, False, CONNECT),
        (None, None, None, True, None),
        (SPARK, None, None, True, None),
        (EMBEDDED, None, None, True, EMBEDDED),
        (None, None, SERVER, True, CONNECT),
    ],
    indirect=["submitted"],
)
@pytest.mark.usefixtures("submitted")
def test_the_choice(engine: str | None, master: str | None, remote: str | None, chosen: str | None) -> None:
    assert engine_of(engine, master, remote) == chosen


@pytest.mark.parametrize(
    ("engine", "master", "remote", "submitted", "message"),
    [
        ("sail", None, None, False, "--engine sail: there are embedded, spark, connect"),
        (None, CLUSTER, SERVER, False, "--master and --remote: give one of them"),
        (None, None, "https://host", False, "sc://HOST:PORT"),
        (EMBEDDED, CLUSTER, None, False, "--engine embedded does not go with --master"),
        (EMBEDDED, None, SERVER, False, "--engine embedded does not go with --remote"),
        (SPARK, None, SERVER, False, "--engine spark does not go with --remote"),
        (CONNECT, CLUSTER, None, False, "--engine connect does not go with --master"),
        (CONNECT, None, None, False, "--engine connect: give --remote sc://HOST:PORT as well"),
        (None, CLUSTER, None, True, "give --master to spark-submit"),
    ],
    indirect=["submitted"],
)
@pytest.mark.usefixtures("submitted")
def test_options_that_contradict(
    engine: str | None, master: str | None, remote: str | None, message: str
) -> None:
    with pytest.raises(AnalyticsError, match=message):
        engine_of(engine, master, remote)


@pytest.mark.parametrize("version", ["4.3.0", "3.5.1"])
def test_a_pyspark_that_sail_does_not_understand(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(engines.pyspark, "__version__", version)
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name)
    with (
        pytest.raises(AnalyticsError, match=f"PySpark 4.0 to 4.2, and {version} is installed"),
        spark_engine(EMBEDDED),
    ):
        pass


def test_no_embedded_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AnalyticsError, match=r"pip install 'keelmq\[analytics\]'"), spark_engine(EMBEDDED):
        pass


def test_sizes() -> None:
    assert memory_bytes("m", "512m") == 512 << 20
    assert memory_bytes("m", " 4GB ") == 4 << 30
    for text in ("", "4", "0g", "-1g", "4x", "9999999999g", "1.5g"):
        with pytest.raises(AnalyticsError, match=f"--conf m={text}: give a size like 512m or 4g"):
            memory_bytes("m", text)


def test_variables_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("A", "1")
    monkeypatch.setenv("B", "2")
    monkeypatch.delenv("C", raising=False)
    with pytest.raises(KeyError), environment({"A": "3", "C": "4"}, without=("B",)):
        assert (os.environ["A"], os.environ["C"]) == ("3", "4")
        os.environ["B"]
    assert (os.environ["A"], os.environ["B"], os.environ.get("C")) == ("1", "2", None)


PYTHON_OF_SAIL = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 2548, in func
    yield from map(wrap, verified)
ValueError: bad rows

During handling of the above exception, another exception occurred:
"""
GRPC = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: refused"
\tdebug_error_string = "UNAVAILABLE:failed to connect"
>"""
JAVA = """An error occurred while calling o1.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:1)
Caused by: java.io.IOException: disk full
\t... 3 more"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PYTHON_OF_SAIL, "ValueError: bad rows"),
        (
            GRPC,
            "the server is not reached, or has ended: failed to connect to all addresses; last error: "
            "UNKNOWN: ipv4:127.0.0.1:1: refused",
        ),
        (
            JAVA,
            "org.apache.spark.SparkException: Job aborted due to stage failure <- "
            "java.io.IOException: disk full",
        ),
        ("[STREAM_FAILED] Query: Traceback (most recent call last):\n  at\nRuntimeError: crash", None),
        ("", "ValueError"),
    ],
    ids=["python", "grpc", "java", "stream", "empty"],
)
def test_one_line(text: str, line: str | None) -> None:
    assert engine_error(ValueError(text)) == (line or "[STREAM_FAILED] Query: RuntimeError: crash")
