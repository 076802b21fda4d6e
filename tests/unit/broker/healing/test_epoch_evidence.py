"""Which epochs a log has whose epoch file is lost: one case for each rule."""

from typing import Any

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.ports import FoundEpochs
from broker.healing.epoch_evidence import LogHere, MasterLog, compared_range, found_epochs

EPOCHS = ((1, 0), (2, 400), (4, 900))


def here(**more: int) -> LogHere:
    return LogHere(**{"min_offset": 0, "end": 1_000, "confirm_offset": 700} | more)


def master(**more: Any) -> MasterLog:
    values = {"is_master": True, "min_offset": 0, "max_offset": 1_500, "confirm_offset": 1_500}
    return MasterLog(**values | {"epochs": EPOCHS} | more)


def test_all_of_this_log_is_compared_as_far_as_the_master_has_it() -> None:
    assert compared_range(here(), master(), epoch=4) == (0, 1_000)
    assert compared_range(here(), master(min_offset=300), epoch=4) == (300, 1_000)
    assert compared_range(here(), master(max_offset=950, confirm_offset=950), epoch=4) == (0, 950)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"is_master": False}, "does not serve masterEpoch 4"),
        ({"epochs": EPOCHS[:2]}, "does not serve masterEpoch 4"),
        ({"epochs": ()}, "does not serve masterEpoch 4"),
        ({"is_damaged": True}, "damaged, too"),
        ({"confirm_offset": 699}, "700 was confirmed here"),
        ({"confirm_offset": 999}, "has not confirmed its log up to 1000"),
        ({"min_offset": 1_001}, "begins at 1001"),
    ],
)
def test_a_master_that_proves_nothing(more: dict[str, Any], why: str) -> None:
    """What it has not confirmed may be acknowledged by this replica alone: it is waited for."""
    found = compared_range(here(), master(**more), epoch=4)
    assert isinstance(found, str) and why in found


def test_the_masters_epochs_hold_as_far_as_both_logs_are_equal() -> None:
    assert found_epochs(here(), master(), same_end=1_000) == FoundEpochs(Epochs.of(EPOCHS), 1_000)
    assert found_epochs(here(), master(), same_end=800) == FoundEpochs(Epochs.of(EPOCHS[:2]), 800)
    kept = found_epochs(here(min_offset=500), master(), same_end=1_000)
    assert kept == FoundEpochs(Epochs.of(EPOCHS[1:]), 1_000)


def test_confirmed_bytes_that_the_master_lacks_are_not_cut() -> None:
    found = found_epochs(here(), master(), same_end=699)
    assert isinstance(found, str) and "keelmq repair" in found
