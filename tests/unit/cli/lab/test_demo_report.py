"""The demo's book-keeping must see every kind of bad history, not only bless good ones."""

import re

from cli.lab.ack_log import BODY_BYTES, AckLog, make_body, read_body

RESULT = re.compile(
    r"RESULT sent=\d+ acked=\d+ lost=\d+ duplicated=\d+ kills=\d+"
    r" gap_ms_p50=\d+ gap_ms_p95=\d+ gap_ms_max=\d+"
)


def ack_log_with(acked: int, *, unacked: int = 0) -> AckLog:
    ack_log = AckLog()
    for _ in range(acked):
        ack_log.acknowledge(ack_log.start(), started_ms=0, now_ms=1, attempts=1)
    for _ in range(unacked):
        ack_log.start()
        ack_log.fail()
    return ack_log


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
    ack_log = ack_log_with(5)
    for number in range(5):
        ack_log.found(make_body(number))
    report = ack_log.report()
    assert report.ok and (report.sent, report.acked, report.lost, report.duplicated) == (5, 5, 0, 0)


def test_an_acknowledged_message_that_is_missing_is_lost() -> None:
    ack_log = ack_log_with(3)
    for number in (0, 2):
        ack_log.found(make_body(number))
    report = ack_log.report()
    assert not report.ok and report.lost == 1 and report.lost_numbers == (1,)


def test_an_unacknowledged_message_may_be_missing_or_there() -> None:
    ack_log = ack_log_with(1, unacked=2)
    ack_log.found(make_body(0))
    ack_log.found(make_body(2))
    report = ack_log.report()
    assert report.ok and (report.sent, report.acked, report.unacknowledged) == (3, 1, 2)


def test_copies_are_counted() -> None:
    ack_log = ack_log_with(2)
    for number in (0, 0, 1, 0):
        ack_log.found(make_body(number))
    assert ack_log.report().duplicated == 2


def test_foreign_and_damaged_messages_fail_the_run() -> None:
    ack_log = ack_log_with(1)
    ack_log.found(make_body(0))
    ack_log.found(make_body(17))  # never sent
    ack_log.found(b"garbage")
    assert ack_log.report().damaged == 2 and not ack_log.report().ok


def test_nothing_acknowledged_is_no_success() -> None:
    assert not ack_log_with(0, unacked=3).report().ok


def test_gap_counts_only_sends_started_after_the_kill() -> None:
    ack_log = AckLog()
    before = ack_log.start()
    ack_log.killed(1_000)
    numbers = [ack_log.start() for _ in range(2)]
    ack_log.acknowledge(before, started_ms=1_000, now_ms=1_050, attempts=1)  # was under way already
    assert ack_log.is_waiting
    ack_log.acknowledge(numbers[0], started_ms=1_000, now_ms=1_120, attempts=2)
    ack_log.acknowledge(numbers[1], started_ms=1_001, now_ms=1_500, attempts=1)
    assert not ack_log.is_waiting and ack_log.gaps_ms == [120]
    assert (ack_log.retried, ack_log.slowest_ms) == (1, 499)


def test_result_line() -> None:
    ack_log = ack_log_with(2)
    for gap_ms in (90, 300, 100):
        ack_log.killed(0)
        ack_log.acknowledge(ack_log.start(), started_ms=0, now_ms=gap_ms, attempts=1)
    for number in range(5):
        ack_log.found(make_body(number))
    line = ack_log.report().result_line()
    assert RESULT.fullmatch(line)
    gaps = "gap_ms_p50=100 gap_ms_p95=300 gap_ms_max=300"
    assert line == f"RESULT sent=5 acked=5 lost=0 duplicated=0 kills=3 {gaps}"
    assert RESULT.fullmatch(AckLog().report().result_line())


def test_an_ack_log_names_what_is_acknowledged() -> None:
    log = AckLog()
    numbers = [log.start() for _ in range(4)]
    for number in (numbers[1], numbers[3]):
        log.acknowledge(number, started_ms=0, now_ms=1, attempts=1)
    assert list(log.acknowledged()) == [1, 3]
