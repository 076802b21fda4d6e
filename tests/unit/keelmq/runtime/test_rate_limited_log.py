"""Lines that peers cause: told sparingly, and counted."""

import logging

import pytest

from keelmq.runtime.rate_limited_log import RateLimitedFilter, RateLimitedLogger


def test_one_line_a_period_and_the_count_of_the_others(caplog: pytest.LogCaptureFixture) -> None:
    limited_logger = RateLimitedLogger(logging.getLogger("remoting"), period_ms=1_000)
    for now_ms in (5_000, 5_001, 5_999, 6_000, 7_500):
        limited_logger.tell(now_ms, "closed %s: %s", "10.0.0.1:7", f"at {now_ms}")
    assert [record.getMessage() for record in caplog.records] == [
        "closed 10.0.0.1:7: at 5000",
        "closed 10.0.0.1:7: at 6000 (and 2 more like it before)",
        "closed 10.0.0.1:7: at 7500",
    ]
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_library_writes_one_warning_of_a_text_in_a_period(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((5_000, 5_001, 5_002, 5_999, 6_000))
    library = logging.getLogger("library")
    limit = RateLimitedFilter(now_ms=lambda: next(times))
    library.addFilter(limit)
    for text in ("no HTTP", "no HTTP", "too many", "no HTTP", "no HTTP"):
        library.warning(text)
    library.error("a bug")
    library.error("a bug")
    library.removeFilter(limit)
    assert [record.getMessage() for record in caplog.records] == [
        "no HTTP",
        "too many",
        "no HTTP (and 2 more like it before)",
        "a bug",
        "a bug",
    ]
