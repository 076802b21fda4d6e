"""Every attack against real processes: with everything off, as docs/attacks.md shows, and with everything on, where
none may succeed."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.attacks.attacker import Attacker
from tests.attacks.catalogue import ATTACKS, in_order
from tests.attacks.model import Attack
from tests.attacks.stage import Stage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

_numbers = count()


@pytest.fixture(scope="module")
def open_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("open"), "open") as stage:
        yield stage


@pytest.fixture(scope="module")
def closed_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("closed"), "closed") as stage:
        yield stage


@pytest.mark.parametrize("attack", in_order(), ids=lambda attack: attack.id)
async def test_open(open_stage: Stage, attack: Attack) -> None:
    """What docs/attacks.md says about a cluster with everything off is true."""
    outcome = await attack.how(Attacker(open_stage, next(_numbers)))
    assert outcome.succeeded == attack.open, outcome.answer


@pytest.mark.parametrize("attack", in_order(), ids=lambda attack: attack.id)
async def test_closed(closed_stage: Stage, attack: Attack) -> None:
    """No attack succeeds with everything on, and the attacker is told what the table says."""
    outcome = await attack.how(Attacker(closed_stage, next(_numbers)))
    assert not outcome.succeeded, outcome.answer
    assert attack.answer in outcome.answer


def test_there_are_enough() -> None:
    assert len(ATTACKS) >= 75
    assert {Path(__file__).parent / f"{attack.how.__module__.rpartition('.')[2]}.py" for attack in in_order()}
