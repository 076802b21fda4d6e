"""Role decisions: one table of (what we are, what we hear, what we do), and laws over random histories."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.role import (
    AdoptSyncStateSet,
    AskForElection,
    ChangeToMaster,
    ChangeToSlave,
    Decision,
    RegisterAgain,
    Role,
    RoleUpdate,
    Stay,
    decide_role,
    finished,
    id_is_taken,
    newest,
)

NEW = Role(broker_id=2)
SLAVE = Role(broker_id=2, epoch=3, master_broker_id=1, master_address="a:1", sync_state_set_epoch=5)
MASTER = Role(broker_id=2, epoch=3, master_broker_id=2, master_address="b:1", sync_state_set_epoch=5)


def role_update(epoch: int, master: int | None, address: str = "a:1", set_epoch: int = 5) -> RoleUpdate:
    return RoleUpdate(epoch, master, address, frozenset({1, 2}), set_epoch)


CASES: list[tuple[str, Role, RoleUpdate, type[Decision]]] = [
    ("first role update, we are master", NEW, role_update(1, 2), ChangeToMaster),
    ("first role update, another is master", NEW, role_update(1, 1), ChangeToSlave),
    ("first role update, nobody is master", NEW, role_update(0, None), AskForElection),
    ("newer epoch, we win", SLAVE, role_update(4, 2), ChangeToMaster),
    ("newer epoch, another wins", SLAVE, role_update(4, 3), ChangeToSlave),
    ("newer epoch, same master", SLAVE, role_update(4, 1), ChangeToSlave),
    ("newer epoch, nobody", SLAVE, role_update(4, None), AskForElection),
    ("demoted", MASTER, role_update(4, 1), ChangeToSlave),
    ("elected again", MASTER, role_update(4, 2), ChangeToMaster),
    ("same epoch, repeated", SLAVE, role_update(3, 1), Stay),
    ("same epoch, master moved", SLAVE, role_update(3, 1, "a:2"), ChangeToSlave),
    ("same epoch, slave hears a newer set", SLAVE, role_update(3, 1, set_epoch=6), Stay),
    ("same epoch, master hears a newer set", MASTER, role_update(3, 2, set_epoch=6), AdoptSyncStateSet),
    ("same epoch, master hears an older set", MASTER, role_update(3, 2, set_epoch=4), Stay),
    ("same epoch, two masters", MASTER, role_update(3, 1), Stay),
    ("same epoch, two masters and a newer set", MASTER, role_update(3, 1, set_epoch=6), Stay),
    ("same epoch, a slave hears of two masters", SLAVE, role_update(3, 3, "c:1"), Stay),
    ("older epoch", SLAVE, role_update(2, 2), Stay),
    ("older epoch without master (wiped controller)", MASTER, role_update(0, None), Stay),
]


@pytest.mark.parametrize(
    ("role", "said", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_decision(role: Role, said: RoleUpdate, expected: type[Decision]) -> None:
    assert isinstance(decide_role(role, said), expected)


@pytest.mark.parametrize("epoch", [3, 4])
def test_an_update_about_another_process_with_the_same_id(epoch: int) -> None:
    mine = finished(Role(broker_id=2, address="b:1"), role_update(3, 2, "b:1"))
    theirs = role_update(epoch, 2, "copy:1", set_epoch=6)
    assert id_is_taken(mine, theirs) and isinstance(decide_role(mine, theirs), RegisterAgain)
    assert isinstance(decide_role(mine, role_update(2, 2, "copy:1")), Stay), "an older term tells nothing"
    assert not id_is_taken(mine, role_update(4, 2, "b:1")) and not id_is_taken(mine, role_update(4, 1, "a:1"))


def test_a_change_that_failed_is_decided_again() -> None:
    said = role_update(4, 2)
    assert decide_role(SLAVE, said) == decide_role(SLAVE, said) == ChangeToMaster(said)


def test_newest_prefers_the_version_then_the_later_one() -> None:
    assert newest(None, role_update(1, 1)) == role_update(1, 1)
    assert newest(role_update(2, 1), role_update(1, 1)) == role_update(2, 1)
    assert newest(role_update(2, 1, "a:1"), role_update(2, 1, "a:2")) == role_update(2, 1, "a:2")


ROLE_UPDATE = st.builds(
    RoleUpdate,
    master_epoch=st.integers(0, 5),
    master_broker_id=st.sampled_from([None, 1, 2, 3]),
    master_address=st.sampled_from(["a:1", "b:1"]),
    sync_state_set_epoch=st.integers(0, 5),
)


@given(st.lists(ROLE_UPDATE, max_size=20))
def test_the_epoch_never_goes_back_and_repeats_do_nothing(history: list[RoleUpdate]) -> None:
    role = Role(broker_id=2)
    for said in history:
        decision = decide_role(role, said)
        if isinstance(decision, ChangeToMaster | ChangeToSlave | AdoptSyncStateSet):
            after = finished(role, said)
            assert after.epoch >= role.epoch
            assert after.is_master == (said.master_broker_id == 2 and said.master_epoch > 0)
            role = after
            assert isinstance(decide_role(role, said), Stay) or said.master_epoch == 0
