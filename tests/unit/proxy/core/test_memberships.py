"""When brokers are told of the members of groups, and how many a proxy knows."""

import pytest

from proxy.core import memberships as module
from proxy.core.memberships import AGAIN_MS, SILENT_MS, Membership, Memberships

AT, OTHER = Membership("g", "broker-a"), Membership("g", "broker-b")
ALL, SOME = ("*", "TAG"), ("a", "TAG")


@pytest.fixture
def known() -> Memberships[str]:
    return Memberships[str]()


def test_a_broker_is_told_at_once_and_then_every_30_s(known: Memberships[str]) -> None:
    assert known.joins("c", "me", AT, "T", ALL, now_ms=0) is not None
    assert known.joins("c", "me", AT, "T", ALL, now_ms=AGAIN_MS - 1) is None
    assert known.joins("c", "me", OTHER, "T", ALL, now_ms=AGAIN_MS - 1) is not None
    assert [each for each, _ in known.heard("c", AGAIN_MS)] == [AT]
    assert known.heard("c", AGAIN_MS) == []


def test_another_topic_or_filter_is_told_at_once(known: Memberships[str]) -> None:
    known.joins("c", "me", AT, "T", ALL, now_ms=0)
    for topic, wanted in (("T", SOME), ("U", ALL)):
        told = known.joins("c", "me", AT, topic, wanted, now_ms=1)
        assert told is not None and told.topics[topic] == wanted


def test_who_ends_or_is_silent_is_forgotten(known: Memberships[str]) -> None:
    for client in ("ended", "silent", "heard"):
        known.joins(client, "me", AT, "T", ALL, now_ms=0)
    assert known.signs("ended") == "me"
    assert [each for each, _ in known.ended("ended")] == [AT]
    assert known.ended("ended") == [] and known.signs("ended") is None
    known.heard("heard", 1)
    known.joins("new", "me", AT, "T", ALL, now_ms=SILENT_MS)
    assert len(known) == 2 and known.signs("silent") is None
    known.joins("new", "me", AT, "T", ALL, now_ms=10 * SILENT_MS)
    known.ended("new")
    assert len(known) == 0


def test_there_is_a_limit(known: Memberships[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMBERSHIPS_MAX", 2)
    found = [known.joins(client, "me", AT, "T", ALL, now_ms=0) for client in "abc"]
    assert [each is not None for each in found] == [True, True, False]
    monkeypatch.setattr(module, "MEMBERSHIPS_MAX", 99)
    monkeypatch.setattr(module, "OF_CLIENT_MAX", 2)
    for topic in "UVW":
        told = known.joins("a", "me", AT, topic, ALL, now_ms=0)
        assert told is not None and len(told.topics) <= 2
    assert known.joins("a", "me", OTHER, "T", ALL, now_ms=0) is not None
    assert known.joins("a", "me", Membership("h", "broker-a"), "T", ALL, now_ms=0) is None
