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
    MasterNews,
    Role,
    Stay,
    decide_role,
    finished,
    newest,
)

NEW = Role(broker_id=2)
SLAVE = Role(broker_id=2, epoch=3, master_broker_id=1, master_address="a:1", sync_state_set_epoch=5)
MASTER = Role(broker_id=2, epoch=3, master_broker_id=2, master_address="b:1", sync_state_set_epoch=5)


def news(epoch: int, master: int | None, address: str = "a:1", set_epoch: int = 5) -> MasterNews:
    return MasterNews(epoch, master, address, frozenset({1, 2}), set_epoch)


CASES: list[tuple[str, Role, MasterNews, type[Decision]]] = [
    ("first news, we are master", NEW, news(1, 2), ChangeToMaster),
    ("first news, another is master", NEW, news(1, 1), ChangeToSlave),
    ("first news, nobody is master", NEW, news(0, None), AskForElection),
    ("newer epoch, we win", SLAVE, news(4, 2), ChangeToMaster),
    ("newer epoch, another wins", SLAVE, news(4, 3), ChangeToSlave),
    ("newer epoch, same master", SLAVE, news(4, 1), ChangeToSlave),
    ("newer epoch, nobody", SLAVE, news(4, None), AskForElection),
    ("demoted", MASTER, news(4, 1), ChangeToSlave),
    ("elected again", MASTER, news(4, 2), ChangeToMaster),
    ("same epoch, repeated", SLAVE, news(3, 1), Stay),
    ("same epoch, master moved", SLAVE, news(3, 1, "a:2"), ChangeToSlave),
    ("same epoch, slave hears a newer set", SLAVE, news(3, 1, set_epoch=6), Stay),
    ("same epoch, master hears a newer set", MASTER, news(3, 2, set_epoch=6), AdoptSyncStateSet),
    ("same epoch, master hears an older set", MASTER, news(3, 2, set_epoch=4), Stay),
    ("same epoch, two masters", MASTER, news(3, 1), Stay),
    ("older epoch", SLAVE, news(2, 2), Stay),
    ("older epoch without master (wiped controller)", MASTER, news(0, None), Stay),
]


@pytest.mark.parametrize(
    ("role", "said", "expected"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_decision(role: Role, said: MasterNews, expected: type[Decision]) -> None:
    assert isinstance(decide_role(role, said), expected)


def test_a_change_that_failed_is_decided_again() -> None:
    said = news(4, 2)
    assert decide_role(SLAVE, said) == decide_role(SLAVE, said) == ChangeToMaster(said)


def test_newest_prefers_the_version_then_the_later_one() -> None:
    assert newest(None, news(1, 1)) == news(1, 1)
    assert newest(news(2, 1), news(1, 1)) == news(2, 1)
    assert newest(news(2, 1, "a:1"), news(2, 1, "a:2")) == news(2, 1, "a:2")


NEWS = st.builds(
    MasterNews,
    master_epoch=st.integers(0, 5),
    master_broker_id=st.sampled_from([None, 1, 2, 3]),
    master_address=st.sampled_from(["a:1", "b:1"]),
    sync_state_set_epoch=st.integers(0, 5),
)


@given(st.lists(NEWS, max_size=20))
def test_the_epoch_never_goes_back_and_repeats_do_nothing(history: list[MasterNews]) -> None:
    role = Role(broker_id=2)
    for said in history:
        decision = decide_role(role, said)
        if isinstance(decision, ChangeToMaster | ChangeToSlave | AdoptSyncStateSet):
            after = finished(role, said)
            assert after.epoch >= role.epoch
            assert after.is_master == (said.master_broker_id == 2 and said.master_epoch > 0)
            role = after
            assert isinstance(decide_role(role, said), Stay) or said.master_epoch == 0
