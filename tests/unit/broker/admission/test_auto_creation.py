"""AutoCreation without a broker: its two limits, and texts that say what to do."""

import logging

import pytest

from broker.admission.auto_creation import AutoCreation

A, B = b"\x0a\0\0\1", b"\x0a\0\0\2"


class Clock:
    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


def creation(clock: Clock, **limits: int) -> AutoCreation:
    return AutoCreation("topic", "autoCreateTopicMax", "mqadmin updateTopic", clock=clock, **limits)


def test_a_full_table_gets_none_by_itself() -> None:
    limit = creation(Clock(), count_max=10)
    assert limit.refuse("T", 9, A) is None
    assert limit.refuse("T", 10, A) == (
        "topic T is not created automatically: the broker has 10 topics, and autoCreateTopicMax is 10; "
        "create it with mqadmin updateTopic"
    )
    assert limit.refused == 1


def test_each_address_has_its_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    limit = creation(clock, per_minute=60)
    with caplog.at_level(logging.WARNING):
        assert [limit.refuse(f"T{n}", n, A) is None for n in range(100)] == [True] * 60 + [False] * 40
    assert len(caplog.records) == 1
    assert limit.refuse("U", 0, B) is None, "another address"
    refusal = limit.refuse("T", 0, A)
    assert refusal is not None
    assert "has created 60 topics within a minute (autoCreatePerMinute); create it with mqadmin" in refusal
    clock.ms += 10_000
    assert sum(limit.refuse("T", 0, A) is None for _ in range(100)) == 10
    assert limit.refused == 131


def test_a_refusal_by_the_table_costs_no_token() -> None:
    limit = creation(Clock(), count_max=10, per_minute=1)
    assert limit.refuse("T", 10, A) is not None
    assert limit.refuse("T", 9, A) is None


def test_off() -> None:
    limit = creation(Clock())
    assert all(limit.refuse("T", 10**9, A) is None for _ in range(10_000))
