"""The demo's book-keeping must see every kind of bad history, not only bless good ones."""

import re

from cli.ledger import BODY_BYTES, Ledger, make_body, read_body

RESULT = re.compile(
    r"RESULT sent=\d+ acked=\d+ lost=\d+ duplicated=\d+ kills=\d+"
    r" gap_ms_p50=\d+ gap_ms_p95=\d+ gap_ms_max=\d+"
)


def ledger_with(acked: int, *, unacked: int = 0) -> Ledger:
    ledger = Ledger()
    for _ in range(acked):
        ledger.acknowledge(ledger.start(), started_ms=0, now_ms=1, attempts=1)
    for _ in range(unacked):
        ledger.start()
        ledger.fail()
    return ledger


def test_bodies_are_numbered_and_checked() -> None:
    for number in (0, 1, 63, 64, 2**32 + 5):
        body = make_body(number)
        assert len(body) == BODY_BYTES and read_body(body) == number
    body = make_body(7)
    assert read_body(body[:-1]) is None
    for position in range(BODY_BYTES):
        damaged = bytearray(body)
        damaged[position] ^= 1
        assert read_body(bytes(damaged)) is None, position


def test_all_found() -> None:
    ledger = ledger_with(5)
    for number in range(5):
        ledger.found(make_body(number))
    report = ledger.report()
    assert report.ok and (report.sent, report.acked, report.lost, report.duplicated) == (5, 5, 0, 0)


def test_an_acknowledged_message_that_is_missing_is_lost() -> None:
    ledger = ledger_with(3)
    for number in (0, 2):
        ledger.found(make_body(number))
    report = ledger.report()
    assert not report.ok and report.lost == 1 and report.lost_numbers == (1,)


def test_an_unacknowledged_message_may_be_missing_or_there() -> None:
    ledger = ledger_with(1, unacked=2)
    ledger.found(make_body(0))
    ledger.found(make_body(2))
    report = ledger.report()
    assert report.ok and (report.sent, report.acked, report.unacknowledged) == (3, 1, 2)


def test_copies_are_counted() -> None:
    ledger = ledger_with(2)
    for number in (0, 0, 1, 0):
        ledger.found(make_body(number))
    assert ledger.report().duplicated == 2


def test_foreign_and_damaged_messages_fail_the_run() -> None:
    ledger = ledger_with(1)
    ledger.found(make_body(0))
    ledger.found(make_body(17))  # never sent
    ledger.found(b"garbage")
    assert ledger.report().damaged == 2 and not ledger.report().ok


def test_nothing_acknowledged_is_no_success() -> None:
    assert not ledger_with(0, unacked=3).report().ok


def test_gap_counts_only_sends_started_after_the_kill() -> None:
    ledger = Ledger()
    before = ledger.start()
    ledger.killed(1_000)
    numbers = [ledger.start() for _ in range(2)]
    ledger.acknowledge(before, started_ms=1_000, now_ms=1_050, attempts=1)  # was under way already
    assert ledger.is_waiting
    ledger.acknowledge(numbers[0], started_ms=1_000, now_ms=1_120, attempts=2)
    ledger.acknowledge(numbers[1], started_ms=1_001, now_ms=1_500, attempts=1)
    assert not ledger.is_waiting and ledger.gaps_ms == [120]
    assert (ledger.retried, ledger.slowest_ms) == (1, 499)


def test_result_line() -> None:
    ledger = ledger_with(2)
    for gap_ms in (90, 300, 100):
        ledger.killed(0)
        ledger.acknowledge(ledger.start(), started_ms=0, now_ms=gap_ms, attempts=1)
    for number in range(5):
        ledger.found(make_body(number))
    line = ledger.report().result_line()
    assert RESULT.fullmatch(line)
    gaps = "gap_ms_p50=100 gap_ms_p95=300 gap_ms_max=300"
    assert line == f"RESULT sent=5 acked=5 lost=0 duplicated=0 kills=3 {gaps}"
    assert RESULT.fullmatch(Ledger().report().result_line())
