"""LongWork: when a thread sleeps, and when it ends."""

import time

import pytest

from keelmq.runtime.long_work import WORK_S, GivenUp, LongWork


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept = list[float]()
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


def test_it_sleeps_once_per_millisecond_of_work(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    work = LongWork(is_shared=True)
    for _ in range(40):
        work.between()
        now_s[0] += WORK_S * 0.3
    assert len(slept) == 10


def test_alone_it_does_not_sleep(slept: list[float]) -> None:
    LongWork(is_shared=False).between()
    assert slept == []


@pytest.mark.parametrize("is_shared", [False, True])
def test_work_that_is_given_up_ends(is_shared: bool) -> None:
    work = LongWork(is_shared=is_shared)
    work.between()
    work.give_up()
    with pytest.raises(GivenUp):
        work.between()
