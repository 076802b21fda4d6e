"""UNIQ_KEY: RocketMQ's tools read address, process id and time out of it."""

import os
import time
from collections.abc import Iterator
from multiprocessing import get_context

import pytest

from keelmq.remoting.messages.unique_keys import UniqueKeys, month_ms, of_process

ADDRESS = bytes([10, 1, 2, 3])
DAY_MS = 86_400_000


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local_ms(text: str) -> int:
    return int(time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))) * 1_000


def near_time(key: str, now_ms: int) -> int:
    """RocketMQ's MessageClientIDSetter.getNearlyTimeFromID."""
    span_ms = int.from_bytes(bytes.fromhex(key)[10:14], "big")
    found = month_ms(now_ms) + span_ms
    return found if found < now_ms else month_ms(now_ms, months=-1) + span_ms


@pytest.mark.parametrize(
    "sent", ["2026-11-01 00:00:00", "2026-11-30 23:59:59", "2026-03-29 12:00:00", "2026-12-31 23:59:59"]
)
@pytest.mark.parametrize("days", [0.01, 1, 27])
def test_the_time_in_a_key_is_found_as_rocketmq_finds_it(zone: str, sent: str, days: float) -> None:
    sent_ms = local_ms(sent) + 7
    key = next(UniqueKeys(lambda: sent_ms, ADDRESS))
    assert near_time(key, sent_ms + int(days * DAY_MS)) == sent_ms


def test_the_layout() -> None:
    now = [local_ms("2026-11-02 00:00:00")]
    keys = UniqueKeys(lambda: now[0], ADDRESS)
    first, second = next(keys), keys.next()
    raw = bytes.fromhex(first)
    assert (len(first), first) == (32, first.upper())
    assert raw[:4] == ADDRESS and int.from_bytes(raw[4:6], "big") == os.getpid() & 0xFFFF
    assert (int.from_bytes(raw[10:14], "big"), raw[14:]) == (DAY_MS, b"\0\0")
    assert second[:28] == first[:28] and second[28:] == "0001"
    now[0] = local_ms("2026-12-01 00:00:00")  # a new month begins at 0
    assert next(keys)[20:] == "000000000002"


def test_another_object_another_child_and_an_earlier_clock_have_other_keys() -> None:
    now = [local_ms("2026-11-02 00:00:00")]
    keys = UniqueKeys(lambda: now[0], ADDRESS)
    before = next(keys)
    assert next(UniqueKeys(lambda: now[0], ADDRESS))[:20] != before[:20]
    now[0] -= 1
    for _ in range(65_535):  # the counter begins anew
        after = next(keys)
    assert after[:20] != before[:20]
    again = next(keys)
    assert (again[:28], again[28:]) == (after[:28], before[28:])


def test_a_forked_child_has_keys_of_its_own() -> None:
    context = get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(target=lambda: answers.put(next(of_process)))
    child.start()
    theirs = answers.get()
    child.join()
    assert theirs[:20] != next(of_process)[:20]
