"""The check of thousands of groups is made in slices between which the controller may change."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from namesrv.plugins.controller.core.tally import ElectionTally
from namesrv.plugins.controller.election import reconcile_loop
from namesrv.plugins.controller.election.reconcile_loop import Elections


def elections(proposer: object, checked: list[str], monkeypatch: pytest.MonkeyPatch) -> Elections:
    monkeypatch.setattr(reconcile_loop, "GROUPS_AT_ONCE", 2)

    def needs_election(broker_set: str, view: object) -> bool:
        checked.append(broker_set)
        return False

    monkeypatch.setattr(reconcile_loop, "needs_election", needs_election)
    view = SimpleNamespace(view=lambda broker_set: None, grace_left_ms=lambda: 0)
    config = SimpleNamespace(current=SimpleNamespace(scan_inactive_master_interval=5_000))
    parts: list[Any] = [proposer, view, config, lambda: 0, None, ElectionTally()]
    return Elections(*parts)


async def test_all_groups_are_checked_with_the_state_of_each_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    brokers = {name: name for name in "abcde"}
    proposer = SimpleNamespace(is_active=True, state=SimpleNamespace(brokers=brokers))
    work = cast(Any, elections(proposer, checked, monkeypatch).start_due(0))
    work.send(None)
    assert checked == ["a"], "others are served before the second one"
    brokers.pop("c")
    work.send(None)
    with pytest.raises(StopIteration):
        work.send(None)
    assert checked == ["a", "b", "d", "e"]


async def test_a_controller_that_is_no_longer_active_checks_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[str] = []
    proposer = SimpleNamespace(is_active=True, state=SimpleNamespace(brokers={n: n for n in "abcde"}))
    work = elections(proposer, checked, monkeypatch).start_due(0)
    work.send(None)
    proposer.is_active = False
    with pytest.raises(StopIteration):
        work.send(None)
    assert checked == ["a"]
