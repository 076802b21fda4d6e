"""When a handle of a broker that nobody knows is refused for good."""

import pytest

from broker.pop.core.handles import Handle
from proxy.core import absences as module
from proxy.core.absences import FORGOTTEN_MS, GONE_MS, Absences
from proxy.core.handles import Receipt

INVISIBLE_MS = 60_000
STEP_MS = FORGOTTEN_MS // 2


def receipt(broker_name: str = "broker-a", pop_ms: int = 0, invisible_ms: int = INVISIBLE_MS) -> Receipt:
    return Receipt("g", "T", 0, Handle(0, pop_ms, invisible_ms, 0, "0", broker_name, 0, 0))


def ask(absences: Absences, at_ms: int, found: Receipt) -> bool:
    return absences.is_gone(found, now_ms=at_ms, wall_ms=at_ms)


def first_gone_ms(absences: Absences, found: Receipt, end_ms: int = 10 * GONE_MS) -> int | None:
    """Of a client that asks again and again."""
    return next((at_ms for at_ms in range(0, end_ms, STEP_MS) if ask(absences, at_ms, found)), None)


def test_a_group_that_is_down_for_a_while_is_tried_again() -> None:
    assert first_gone_ms(Absences(), receipt()) == GONE_MS


def test_not_before_the_message_is_visible_anyway() -> None:
    """A simple consumer may have it for hours."""
    assert first_gone_ms(Absences(), receipt(invisible_ms=2 * GONE_MS)) == 2 * GONE_MS


def test_a_broker_that_was_back_begins_anew() -> None:
    absences = Absences()
    assert first_gone_ms(absences, receipt(), GONE_MS) is None
    absences.answered("broker-a")
    assert not ask(absences, GONE_MS, receipt())
    assert ask(absences, GONE_MS + STEP_MS, receipt("broker-b")) is False


def test_so_does_one_that_nobody_has_asked_for() -> None:
    absences = Absences()
    ask(absences, 0, receipt())
    assert not ask(absences, GONE_MS, receipt())


def test_there_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NAMES_MAX", 2)
    absences = Absences()
    for name in ("a", "b", "c", "a"):
        assert not ask(absences, 0, receipt(name))
        assert len(absences) <= 2
