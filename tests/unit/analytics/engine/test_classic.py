"""How a session ends, with one that only raises an error then."""

from types import SimpleNamespace

import pytest
from pyspark.errors import PySparkException

from analytics.engine import classic


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionResetError("Connection reset by peer"), []),  # Java ended by the same signal
        (PySparkException("no"), ["Spark could not be stopped: no"]),
        (
            OSError(28, "No space left on device"),
            ["Spark could not be stopped: [Errno 28] No space left on device"],
        ),
    ],
)
def test_an_end_that_fails(monkeypatch: pytest.MonkeyPatch, error: Exception, said: list[str]) -> None:
    def stop() -> None:
        raise error

    conf = SimpleNamespace(isModifiable=lambda _: True, get=lambda *_: None, set=lambda *_: None)
    session = SimpleNamespace(
        stop=stop, conf=conf, version="4", sparkContext=SimpleNamespace(master="local", appName="test")
    )
    builder = SimpleNamespace(config=lambda *_: builder, getOrCreate=lambda: session)
    monkeypatch.setattr(
        classic, "SparkSession", SimpleNamespace(builder=builder, getActiveSession=lambda: None)
    )
    lines = list[str]()
    for _ in classic.given_session({}, lines.append):
        lines.clear()
    assert lines == said
