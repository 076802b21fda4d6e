"""Requests are counted by what came of them, whichever door they took; and histograms are scraped as such."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import (
    Call,
    CommandError,
    Empty,
    Operation,
    OperationTable,
    Reply,
    Unknown,
    UnknownOutcome,
)
from keelmq.remoting.servers.metrics import Metric, Scrape, ScrapeCollector, Table, documented
from keelmq.remoting.servers.request_counts import RequestCounts
from keelmq.runtime.histogram import BOUNDS_US, Histogram
from tests.support.controller_fakes import FakePeer
from tests.support.http_parts import samples, shapes, value

CODE = 105
OUTCOMES: list[tuple[object, str]] = [
    (Reply(), "SUCCESS"),
    (Empty(), "SUCCESS"),
    (None, "NONE"),
    (Reply(code=2011), "CONTROLLER_MASTER_STILL_EXIST"),
    (Unknown("no majority"), "UNKNOWN"),
    (CommandError(2007, "not here"), "CONTROLLER_NOT_LEADER"),
    (CommandError(ResponseCode.SYSTEM_ERROR, "no"), "SYSTEM_ERROR"),
    (CommandError(29_999, "no"), "29999"),
    (UnknownOutcome(1, "no majority"), "UNKNOWN"),
    (ZeroDivisionError("bug"), "INTERNAL_ERROR"),
    (asyncio.CancelledError(), "UNKNOWN"),
]


@pytest.mark.parametrize(("outcome", "name"), OUTCOMES, ids=lambda each: repr(each))
async def test_each_outcome_has_its_name(outcome: object, name: str) -> None:
    async def handler(_: Empty, __: Call) -> Reply | Empty | None:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[return-value]

    table, counts = OperationTable(), RequestCounts()
    table.bind(Operation(CODE, "test", Empty, Empty), handler)
    counts.watch(table)
    counted = table.handlers[CODE][1]
    if isinstance(outcome, BaseException):
        with pytest.raises(type(outcome)):
            await counted(Empty(), Call(FakePeer(1)))
    else:
        assert await counted(Empty(), Call(FakePeer(1))) is outcome
    assert counts.answers == {(CODE, name): 1}
    assert sum(counts.latencies[CODE].counts) == 1
    assert 0 < counts.latencies[CODE].total < 5


def test_rocketmqs_buckets() -> None:
    text = "1 3 5 10 30 50 100 300 500 1000 3000 5000 10000 30000 50000 100000 300000 500000 1000000 3000000"
    assert [str(each) for each in BOUNDS_US] == [*text.split(), "5000000", "10000000"]


def test_a_histogram_is_scraped_as_one() -> None:
    table = Table("T", ("node",), (Metric("t_seconds", "a time", ("kind",), is_histogram=True),))
    histogram = Histogram((0.5, 1.0))
    for each in (0.1, 0.5, 0.7, 9.0):
        histogram.observe(each)
    scrape = Scrape(table, ("n0",))
    scrape.add_histogram("t_seconds", histogram, "k")
    registry = CollectorRegistry()
    registry.register(ScrapeCollector(lambda: [scrape]))
    text = generate_latest(registry).decode()
    found = samples(text)
    assert [(labels["le"], got) for labels, got in found["t_seconds_bucket"]] == [
        ("0.5", 2),
        ("1.0", 3),
        ("+Inf", 4),
    ]
    assert value(found, "t_seconds_count", node="n0", kind="k") == 4
    assert value(found, "t_seconds_sum") == pytest.approx(10.3)
    assert shapes(text) == documented([table])
    with pytest.raises(AssertionError):
        scrape.add("t_seconds", 1, "k")
