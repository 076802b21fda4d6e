"""The pure cores of metadata: versions and updates, a master's term, attributes."""

import pytest

from broker.metadata.core.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    alter,
    parse_changes,
    priority_factor,
    without_effect,
)
from broker.metadata.core.table import GONE_MAX, HISTORY_MAX, Table, Update, Version, drops_too_much
from broker.metadata.core.term import Term


def put(table: Table[int], key: str, value: int, now_ms: int = 1) -> Version:
    table.apply(table.plan({key: value}, {}, now_ms=now_ms))
    return table.version


def follow(replica: Table[int], master: Table[int]) -> Update[int] | None:
    update = master.since(replica.version)
    if update is not None:
        assert replica.refusal(update) is None
        replica.apply(update)
    assert (replica.rows, replica.gone, replica.version) == (master.rows, master.gone, master.version)
    return update


def test_a_replica_gets_only_what_changed() -> None:
    master, replica = Table[int](), Table[int]()
    put(master, "a", 1)
    put(master, "b", 2)
    follow(replica, master)
    put(master, "a", 3)
    put(master, "a", 4)
    update = follow(replica, master)
    assert update is not None and not update.whole and update.rows == {"a": 4}
    assert follow(replica, master) is None


def test_a_deletion_and_its_tombstone_are_followed() -> None:
    master, replica = Table[int](), Table[int]()
    put(master, "a", 1)
    put(master, "b", 1)
    follow(replica, master)
    master.apply(master.plan({}, {"a": 77, "b": 0}, now_ms=2))
    update = follow(replica, master)
    assert update is not None and update.gone == {"a": 77, "b": 0}
    assert replica.rows == {} and replica.gone == {"a": 77}  # 0: nothing to remember
    put(master, "a", 2)
    follow(replica, master)
    assert replica.gone == {}


def test_an_unknown_version_gets_the_whole_table() -> None:
    master, replica = Table[int](), Table[int]()
    put(master, "a", 1)
    replica.load(Version(0, 9, 9), {"strange": 1}, {})
    update = follow(replica, master)
    assert update is not None and update.whole and "strange" not in replica.rows


def test_the_history_is_bounded() -> None:
    master = Table[int]()
    first = put(master, "a", 0)
    for n in range(HISTORY_MAX):
        put(master, "b", n)
    update = master.since(first)
    assert update is not None and not update.whole
    put(master, "b", -1)
    update = master.since(first)
    assert update is not None and update.whole
    master.apply(master.plan({}, {f"t{n}": n + 1 for n in range(GONE_MAX + 5)}, now_ms=1))
    assert len(master.gone) == GONE_MAX and min(master.gone.values()) == 6  # the oldest are forgotten


def test_a_lower_epoch_changes_nothing() -> None:
    """user-pain 39: tables of an old master deleted everything."""
    table = Table[int]()
    table.apply(table.plan_term(5, {}, now_ms=1))
    put(table, "a", 1)
    assert table.refusal(Update(Version(4, 99, 99))) is not None
    assert table.refusal(Update(Version(4, 99, 99), {"a": 2}, {}, table.version)) is not None
    assert table.refusal(Update(Version(5, 1, 1))) is None
    assert table.refusal(Update(Version(5, 9, 9), {"a": 2}, {}, Version(5, 1, 1))) is not None  # not ours


def test_the_same_epoch_begun_twice_has_two_versions() -> None:
    """A master that crashed and came back at its old epoch: its counter may repeat, its versions do not."""
    master, replica = Table[int](), Table[int]()
    master.apply(master.plan_term(5, {}, now_ms=10))
    put(master, "a", 1, now_ms=11)  # told to a replica, and lost by a power cut
    follow(replica, master)
    again = Table[int]()
    again.apply(again.plan_term(5, {}, now_ms=20))
    put(again, "a", 2, now_ms=21)
    assert again.version.counter == replica.version.counter
    update = follow(replica, again)
    assert update is not None and update.whole and replica.rows == {"a": 2}


def test_a_new_master_knows_the_versions_of_its_predecessor() -> None:
    """A short way for the others after a switch: nobody needs the whole table."""
    old, transfer_target, third = Table[int](), Table[int](), Table[int]()
    put(old, "a", 1)
    follow(transfer_target, old)
    follow(third, old)
    put(old, "b", 1)
    follow(transfer_target, old)
    transfer_target.apply(transfer_target.plan_term(2, {}, now_ms=5))
    update = follow(third, transfer_target)
    assert update is not None and update.rows == {"b": 1} and not update.whole


@pytest.mark.parametrize(
    ("before", "after", "lost"), [(20, 11, 0), (20, 10, 10), (14, 7, 0), (16, 8, 8), (9, 0, 9)]
)
def test_the_mass_deletion_that_is_noticed(before: int, after: int, lost: int) -> None:
    assert drops_too_much([str(n) for n in range(before)], [str(n) for n in range(after)]) == lost


# -- a term ----------------------------------------------------------------------------------------------


def test_an_acknowledgement_is_a_version_of_this_term() -> None:
    table = Table[int]()
    table.apply(table.plan_term(3, {}, now_ms=1))
    term = Term(3, {"t": table}, now_ms=100)
    assert term.lag_ms(2, now_ms=150) == 50  # never heard of
    assert term.heard(2, {"t": table.version}, now_ms=160)
    assert term.lag_ms(2, now_ms=170) == 0
    wanted = put(table, "a", 1)
    term.changed(now_ms=200)
    assert term.lag_ms(2, now_ms=200) == 1 and not term.has(2, "t", wanted)
    assert not term.heard(2, {"t": Version(3, wanted.counter + 5, 0)}, now_ms=210)  # of another life
    assert not term.has(2, "t", wanted)
    term.heard(2, {"t": wanted}, now_ms=220)
    assert term.everywhere([2], "t", wanted) and not term.everywhere([2, 4], "t", wanted)
    later = put(table, "a", 2)
    term.changed(now_ms=230)
    assert term.has(2, "t", wanted) and not term.has(2, "t", later)


def test_a_replica_is_behind_in_any_table() -> None:
    tables = {"one": Table[int](), "two": Table[int]()}
    term = Term(1, tables, now_ms=0)
    assert not term.heard(2, {"one": tables["one"].version}, now_ms=5)
    assert term.heard(2, {name: table.version for name, table in tables.items()}, now_ms=9)


# -- attributes ------------------------------------------------------------------------------------------


def test_attributes_change_by_plus_and_minus() -> None:
    created = alter(TOPIC_ATTRIBUTES, {}, parse_changes("+message.type=FIFO,+reserve.time=-1"), creating=True)
    assert created == {"message.type": "FIFO", "reserve.time": "-1"}
    changed = alter(
        TOPIC_ATTRIBUTES, created, parse_changes("+message.type=DELAY,-reserve.time"), creating=False
    )
    assert changed == {"message.type": "DELAY"}


@pytest.mark.parametrize(
    ("text", "creating", "says"),
    [
        ("+message.type=RED", True, "not one of"),
        ("+unknown=1", True, "unsupported key"),
        ("-message.type", True, "only add"),
        ("+queue.type=BatchCQ", False, "unchangeable"),
        ("-message.type", False, "nonexistent"),
        ("message.type=FIFO", True, "begins with"),
        ("+message.type", True, "no value"),
        ("+reserve.time=1,+reserve.time=2", True, "duplication"),
        ("+cleanup.policy=COMPACTION", True, "there is no compaction: all messages are kept"),
        ("+reserve.time=1", True, "no retention time of its own"),
        ("+message.type=LITE", True, "not one of"),
        ("+lite.topic.expiration=1", True, "unsupported key"),
    ],
)
def test_attributes_that_are_refused(text: str, creating: bool, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        alter(TOPIC_ATTRIBUTES, {}, parse_changes(text), creating=creating)


def test_what_has_no_effect_is_named_and_can_be_removed() -> None:
    """A table of RocketMQ may have it, also under a key that cannot be changed otherwise."""
    theirs = {"cleanup.policy": "COMPACTION", "lite.topic.expiration": "1", "reserve.time": "9"}
    found = without_effect(TOPIC_ATTRIBUTES, theirs | {"message.type": "FIFO", "queue.type": "SimpleCQ"})
    assert [each.partition("=")[0] for each in found] == sorted(theirs)
    removed = parse_changes(",".join(f"-{key}" for key in theirs))
    assert alter(TOPIC_ATTRIBUTES, theirs, removed, creating=False) == {}
    kept = {"cleanup.policy": "DELETE", "reserve.time": "-1"}
    assert without_effect(TOPIC_ATTRIBUTES, kept) == []
    with pytest.raises(ValueError, match="unchangeable"):
        alter(TOPIC_ATTRIBUTES, kept, {"-cleanup.policy": ""}, creating=False)


def test_an_attribute_of_groups_that_has_no_effect_can_be_removed() -> None:
    key = "lite.bind.topic"
    with pytest.raises(ValueError, match=f"unsupported key: {key}; known are priority.factor"):
        alter(GROUP_ATTRIBUTES, {}, {f"+{key}": "1"}, creating=True)
    assert alter(GROUP_ATTRIBUTES, {key: "1"}, {f"-{key}": ""}, creating=False) == {}


@pytest.mark.parametrize("text", ["-1", "101", "50%", ""])
def test_the_priority_factor_is_a_percentage(text: str) -> None:
    assert alter(GROUP_ATTRIBUTES, {}, {"+priority.factor": "0"}, creating=True) == {"priority.factor": "0"}
    with pytest.raises(ValueError, match="a whole number from 0 to 100"):
        alter(GROUP_ATTRIBUTES, {}, {"+priority.factor": text}, creating=True)
    assert priority_factor({"message.type": "PRIORITY"}, {"priority.factor": text}) == 100, "of a table"


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("message.type", "Delay", "UNSPECIFIED NORMAL FIFO DELAY TRANSACTION MIXED PRIORITY"),
        ("queue.type", "x", "BatchCQ SimpleCQ"),
        ("reserve.time", "1d", "a whole number of 64 bits"),
    ],
)
def test_an_illegal_value_is_answered_with_the_legal_ones(key: str, value: str, allowed: str) -> None:
    with pytest.raises(
        ValueError, match=f"value '{value}' is not one of attribute {key}: allowed is {allowed}"
    ):
        alter(TOPIC_ATTRIBUTES, {}, {f"+{key}": value}, creating=True)
