"""When messages of push consumers are renewed, in virtual time."""

import random

import pytest

from proxy.core import renewals as renewals_module
from proxy.core.renewals import DELIVERED_AFTER_MS, DELIVERED_MAX, PAUSE_MS, Place, Renewal, Renewals

INVISIBLE_MS = 60_000
HALF_MS = INVISIBLE_MS // 2
SIGN_OF_LIFE_MS_MAX = 30_000
"""The Rust client's heartbeats; all others send something every 5 s."""
HERE, THERE = Place("g", "t", "a"), Place("g", "t", "b")


def renewals() -> Renewals[str]:
    return Renewals(INVISIBLE_MS)


def all_due(found: Renewals[str], now_ms: int) -> list[Renewal[str]]:
    """Each is answered: the client has no messages left."""
    due = []
    while (renewal := found.next_due(now_ms)) is not None:
        due.append(renewal)
        found.answered(renewal, None, now_ms)
    return due


def test_a_proxy_that_has_just_started_asks_for_a_client_at_once() -> None:
    found = renewals()
    assert found.receives("c", HERE, "me", 100)
    assert all_due(found, 100) == [Renewal("c", HERE, "me", INVISIBLE_MS)]


def test_a_client_without_messages_costs_no_further_request() -> None:
    found = renewals()
    for now_ms in range(0, 10 * INVISIBLE_MS, 5_000):
        found.receives("c", HERE, "me", now_ms)
        assert len(all_due(found, now_ms)) == (now_ms == 0)


def test_delivered_messages_are_renewed_in_time() -> None:
    """The broker is told once that they are delivered, some time after they were written."""
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    assert found.next_due(DELIVERED_AFTER_MS - 1) is None
    told = found.next_due(DELIVERED_AFTER_MS)
    assert told == Renewal("c", HERE, "me", INVISIBLE_MS - DELIVERED_AFTER_MS, (7,))
    assert found.next_due(HALF_MS) is None, "its answer decides when the next one is due"
    found.answered(told, INVISIBLE_MS, DELIVERED_AFTER_MS)
    found.heard("c", HALF_MS)
    assert found.next_due(DELIVERED_AFTER_MS + HALF_MS - 1) is None
    assert found.next_due(DELIVERED_AFTER_MS + HALF_MS) == Renewal(
        "c", HERE, "me", INVISIBLE_MS - DELIVERED_AFTER_MS
    )


def test_a_failed_request_tells_it_again() -> None:
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    told = found.next_due(DELIVERED_AFTER_MS)
    assert told is not None
    found.failed(told, DELIVERED_AFTER_MS)
    again = found.next_due(DELIVERED_AFTER_MS + PAUSE_MS)
    assert again is not None and again.delivered == (7,)


def test_what_was_just_written_is_told_with_the_next_request() -> None:
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    found.answered_pop("c", HERE, 8, "me", 500)
    told = found.next_due(DELIVERED_AFTER_MS)
    assert told is not None and told.delivered == (7,)
    found.answered(told, INVISIBLE_MS, DELIVERED_AFTER_MS)
    assert found.next_due(DELIVERED_AFTER_MS + PAUSE_MS - 1) is None
    told = found.next_due(DELIVERED_AFTER_MS + PAUSE_MS)
    assert told is not None and told.delivered == (8,)


def test_answers_that_wait_are_bounded() -> None:
    found = renewals()
    assert all(found.answered_pop("c", HERE, pop_ms, "me", 0) for pop_ms in range(DELIVERED_MAX))
    assert not found.answered_pop("c", HERE, DELIVERED_MAX, "me", 0)
    told = found.next_due(DELIVERED_AFTER_MS)
    assert told is not None and len(told.delivered) == DELIVERED_MAX


def test_messages_that_are_left_are_renewed_again() -> None:
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    renewal = found.next_due(HALF_MS)
    assert renewal is not None
    found.heard("c", HALF_MS)
    found.answered(renewal, INVISIBLE_MS, HALF_MS)
    assert found.next_due(2 * HALF_MS - 1) is None
    assert found.next_due(2 * HALF_MS) == Renewal("c", HERE, "me", HALF_MS)


def test_messages_that_are_visible_soon_are_no_reason_to_hurry() -> None:
    """A retry after the group's first delay is not renewed."""
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    renewal = found.next_due(HALF_MS)
    assert renewal is not None
    found.answered(renewal, 1, HALF_MS)
    assert found.next_due(HALF_MS + PAUSE_MS - 1) is None
    assert found.next_due(HALF_MS + PAUSE_MS) is not None


def test_what_is_delivered_while_a_request_is_under_way_is_not_forgotten() -> None:
    found = renewals()
    found.receives("c", HERE, "me", 0)
    renewal = found.next_due(0)
    assert renewal is not None
    found.answered_pop("c", HERE, 7, "me", 1)
    found.answered(renewal, None, 2)
    assert found.next_due(1 + HALF_MS) is not None


def test_a_request_that_failed_is_repeated() -> None:
    found = renewals()
    found.receives("c", HERE, "me", 0)
    renewal = found.next_due(0)
    assert renewal is not None
    found.failed(renewal, 10)
    assert found.next_due(10 + PAUSE_MS - 1) is None
    assert found.next_due(10 + PAUSE_MS) is not None


def test_a_silent_client_is_renewed_for_less_and_less_time() -> None:
    """Its messages are visible at the end of the invisible time after its last sign of life, not later."""
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    now_ms, ends = HALF_MS, []
    while (renewal := found.next_due(now_ms)) is not None:
        ends.append(now_ms + renewal.invisible_ms)
        found.failed(renewal, now_ms)
        now_ms += PAUSE_MS
    assert set(ends) == {INVISIBLE_MS}
    assert now_ms == INVISIBLE_MS and not len(found)


def test_a_client_that_lives_keeps_no_silent_ones() -> None:
    found = renewals()
    found.receives("c", HERE, "me", 0)
    found.receives("d", HERE, "me", 0)
    found.heard("c", HALF_MS)
    all_due(found, INVISIBLE_MS)
    assert len(found) == 1


def test_a_client_that_ends_is_not_renewed() -> None:
    found = renewals()
    found.answered_pop("c", HERE, 7, "me", 0)
    found.answered_pop("c", THERE, 7, "me", 0)
    found.ended("c")
    assert not len(found) and found.next_due(HALF_MS) is None
    found.ended("c")


def test_an_answer_for_a_client_that_has_ended() -> None:
    found = renewals()
    found.receives("c", HERE, "me", 0)
    renewal = found.next_due(0)
    assert renewal is not None
    found.ended("c")
    found.answered(renewal, 1, 1)
    found.failed(renewal, 1)
    assert found.next_due(INVISIBLE_MS) is None


def test_a_heartbeat_of_a_client_without_messages_keeps_nothing() -> None:
    found = renewals()
    found.heard("c", 0)
    assert not len(found)


def test_there_is_a_limit_for_each_client_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewals_module, "CLIENT_PLACES_MAX", 2)
    monkeypatch.setattr(renewals_module, "PLACES_MAX", 3)
    found = renewals()
    assert found.receives("c", HERE, "me", 0) and found.answered_pop("c", THERE, 7, "me", 0)
    assert not found.receives("c", Place("g", "t", "c"), "me", 0)
    assert found.receives("c", HERE, "me", 0), "it is there"
    assert found.receives("d", HERE, "me", 0)
    assert not found.answered_pop("e", HERE, 7, "me", 0)
    assert len(found) == 3
    found.ended("c")
    assert found.receives("e", HERE, "me", 0)


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_a_live_client_stay_invisible(seed: int) -> None:
    """Against a broker by its rule, with requests that fail and signs of life that come late."""
    chance = random.Random(seed)
    found, now_ms, visible_at_ms = renewals(), 0, INVISIBLE_MS
    found.answered_pop("c", HERE, 7, "me", 0)
    next_heard_ms = 0
    while now_ms < 20 * INVISIBLE_MS:
        now_ms += chance.randint(1, 1_000)
        assert now_ms < visible_at_ms
        if now_ms >= next_heard_ms:
            found.heard("c", now_ms)
            next_heard_ms = now_ms + chance.randint(1_000, SIGN_OF_LIFE_MS_MAX)
        renewal = found.next_due(now_ms)
        if renewal is None:
            continue
        if chance.random() < 0.3:
            found.failed(renewal, now_ms)
            continue
        if visible_at_ms < now_ms + renewal.invisible_ms * 3 // 4:
            visible_at_ms = max(visible_at_ms, now_ms + renewal.invisible_ms)
        found.answered(renewal, visible_at_ms - now_ms, now_ms)


def test_a_request_is_signed_as_the_last_call_of_its_client() -> None:
    found = renewals()
    found.receives("c", HERE, "old", 0)
    assert [renewal.sender for renewal in all_due(found, 0)] == ["old"]
    found.answered_pop("c", HERE, 7, "older", 0)
    found.receives("c", HERE, "new", 1)
    assert [renewal.sender for renewal in all_due(found, HALF_MS)] == ["new"]
