"""Thousands of waiters: what one costs does not grow with their number (broker/core/deadlines.py)."""

import sys
from pathlib import Path
from types import FrameType

import pytest

from broker.core.deadlines import Deadlines
from broker.handlers import pull
from keelmq.runtime.clock import now_ms
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer


class Clocked:
    """A waiter that counts how often its deadline is looked at."""

    looks = 0

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_ms = deadline_ms

    @property
    def deadline_ms(self) -> int:
        Clocked.looks += 1
        return self._deadline_ms


def test_those_that_are_over_come_in_the_order_of_their_deadlines() -> None:
    deadlines: Deadlines[Clocked] = Deadlines()
    waiters = {ms: Clocked(ms) for ms in (2_500, 700, 701, 1_999, 0)}
    for waiter in waiters.values():
        deadlines.add(waiter)
    assert deadlines.expired(700) == [waiters[0], waiters[700]]
    assert deadlines.discard(waiters[700]) and not deadlines.discard(waiters[700])
    assert deadlines.expired(2_499) == [waiters[ms] for ms in (0, 701, 1_999)]
    assert len(deadlines) == 4


def test_all_have_their_turn() -> None:
    deadlines: Deadlines[Clocked] = Deadlines()
    for ms in range(5):
        deadlines.add(Clocked(ms))
    assert len({*deadlines.sample(2), *deadlines.sample(2), *deadlines.sample(2)}) == 5
    assert len(deadlines.sample(9)) == 5


def _looks_to_expire_all(count: int) -> int:
    deadlines: Deadlines[Clocked] = Deadlines()
    for index in range(count):
        deadlines.add(Clocked(index % 30_000))
    Clocked.looks = 0
    for now in range(0, 31_000, 1_000):
        for waiter in deadlines.expired(now):
            deadlines.discard(waiter)
    assert not len(deadlines)
    return Clocked.looks


def test_the_work_for_one_does_not_grow_with_the_others() -> None:
    assert _looks_to_expire_all(60_000) <= 12 * 60_000
    assert _looks_to_expire_all(600) <= 12 * 600


PULL = {
    "consumerGroup": "g", "topic": "TopicA", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
    "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
    "subVersion": "0",
}  # fmt: skip


def _steps_to_expire(path: Path, count: int) -> int:
    """Lines that run in the pull handler and the queues while `count` pulls at one queue expire."""
    broker, steps = Broker(path), 0
    peers = [FakePeer(number) for number in range(count)]
    for broker.peer in peers:
        assert broker.request(11, PULL) is None
    assert broker.store.queues.waiter_count == count

    def trace(frame: FrameType, event: str, _: object) -> object:
        nonlocal steps
        steps += event == "line"
        return trace if "/broker/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        broker.handlers.expire(now_ms() + 16_000)
    finally:
        sys.settrace(before)
    assert all(len(peer.sent) == 1 for peer in peers)
    assert broker.store.queues.waiter_count == broker.handlers.pull.waiting_count == 0
    return steps


def test_pulls_at_one_queue_expire_each_at_the_same_price(tmp_path: Path) -> None:
    few, many = _steps_to_expire(tmp_path / "few", 50), _steps_to_expire(tmp_path / "many", 1_000)
    assert many / 1_000 < 1.5 * few / 50


def test_of_many_pulls_without_a_connection_some_are_forgotten_with_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "CHECKED_MAX", 3)
    broker = Broker(tmp_path)
    for number in range(8):
        broker.peer = FakePeer(number)
        broker.peer.closing = number % 2 == 1
        assert broker.request(11, PULL) is None
    for _ in range(3):
        broker.handlers.expire(now_ms())
    assert broker.handlers.pull.waiting_count == broker.store.queues.waiter_count == 4


def test_a_pull_that_cannot_be_answered_holds_no_other_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(tmp_path)
    peers = [FakePeer(number) for number in range(3)]
    for broker.peer in peers:
        assert broker.request(11, PULL) is None

    def send(frame: bytes) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(peers[0], "send", send)
    broker.handlers.expire(now_ms() + 16_000)
    assert [len(peer.sent) for peer in peers] == [0, 1, 1]
    assert "cannot answer a suspended pull of group g, topic TopicA: RuntimeError('a bug')" in caplog.text
    assert broker.store.queues.waiter_count == broker.handlers.pull.waiting_count == 0
