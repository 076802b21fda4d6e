"""Who is right, and what may be overwritten: by evidence, with every role."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest

from cli.verify.command import lines_of
from cli.verify.core.compare import Difference, log_difference
from cli.verify.core.verdict import Divergence, Evidence, Member, Verdict, judge, log_steps
from cli.verify.group import GroupReport

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
X, Y, DAMAGED = "x", "y", "damaged"


def divergence(
    *copies: str | None, start: int = 0, unchecked: Sequence[str] = (), epochs: Sequence[int] = ()
) -> Divergence:
    """copies: what each replica has there: X, Y: two contents that are whole records."""
    held = dict(zip((A, B, C), copies, strict=False))
    return Divergence(
        start,
        start + 100,
        crcs={address: hash((address, start) if copy == DAMAGED else copy) for address, copy in held.items()},
        damaged={address: "its checksum does not match" for address, copy in held.items() if copy == DAMAGED},
        unchecked=dict.fromkeys(unchecked, "its version cannot check records"),
        epochs=dict(zip(held, epochs or (1,) * len(held), strict=True)),
    )


@pytest.mark.parametrize(
    ("copies", "evidence", "wrong", "right"),
    [
        ((X, DAMAGED), Evidence.CHECKSUM, (B,), (A,)),
        ((DAMAGED, X), Evidence.CHECKSUM, (A,), (B,)),
        ((X, Y), Evidence.NONE, (), ()),
        ((DAMAGED, DAMAGED), Evidence.CHECKSUM, (A, B), ()),
        ((X, X, Y), Evidence.MAJORITY, (C,), (A, B)),
        ((Y, X, X), Evidence.MAJORITY, (A,), (B, C)),
        ((X, X, DAMAGED), Evidence.CHECKSUM, (C,), (A, B)),
        ((X, DAMAGED, DAMAGED), Evidence.CHECKSUM, (B, C), (A,)),
        ((X, Y, DAMAGED), Evidence.CHECKSUM, (C,), ()),
    ],
)
def test_checksums_decide_and_then_the_majority(
    copies: tuple[str, ...], evidence: Evidence, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    verdict = judge(divergence(*copies))
    assert (verdict.evidence, verdict.wrong, verdict.right) == (evidence, wrong, right)


def test_two_damaged_copies_outvote_nobody() -> None:
    """The same damage at two replicas: one copied it from the other."""
    damaged = divergence(X, DAMAGED, DAMAGED)
    same = {**damaged.crcs, C: damaged.crcs[B]}
    verdict = judge(Divergence(0, 100, same, damaged.damaged, {}, damaged.epochs))
    assert (verdict.wrong, verdict.right) == ((B, C), (A,))


def test_copies_of_different_epochs_have_no_majority() -> None:
    verdict = judge(divergence(X, X, Y, epochs=(2, 2, 3)))
    assert verdict.wrong == verdict.right == () and verdict.undecided == (A, B, C)


def test_a_replica_that_cannot_check_its_records_is_not_called_right() -> None:
    assert judge(divergence(DAMAGED, X, unchecked=[B])).right == ()
    assert judge(divergence(X, X, Y, unchecked=[B])).wrong == ()
    told = log_difference(judge(divergence(DAMAGED, X, unchecked=[B]))).text
    assert "not checked at 10.0.0.2:10911: its version cannot check records" in told
    assert "it is not known which copy is right" in told


def test_the_texts_say_who_and_why() -> None:
    assert log_difference(judge(divergence(DAMAGED, X))).text == (
        f"the log differs in 0..100: damaged at {A}: its checksum does not match; sound at {B}"
    )
    assert log_difference(judge(divergence(X, Y))).text == (
        f"the log differs in 0..100: whole at {A}, {B}, but not the same; it is not known which copy is right"
    )
    assert log_difference(judge(divergence(X, X, Y))).text == (
        f"the log differs in 0..100: {C} differs from the majority, {A}, {B}"
    )
    assert log_difference(judge(divergence(DAMAGED, DAMAGED))).text.endswith("no replica has a sound copy")


# -- the walk ----------------------------------------------------------------------------------------------


def members(
    count: int, master: int | None, *, controlled: bool = True, lows: Sequence[int] = ()
) -> list[Member]:
    return [
        Member(address, number + 1, number == master, controlled, (lows or (0,) * count)[number], 1_000)
        for number, address in enumerate((A, B, C)[:count])
    ]


def lost(
    divergences: Sequence[Divergence], found: Sequence[tuple[str, str]]
) -> Iterator[tuple[Divergence, int]]:
    """Yields (divergence, content) of what the steps (who is overwritten, from whom) destroy: a sound copy
    that was not outvoted, and that no replica has any more."""
    for each in divergences:
        before = {address: crc for address, crc in each.crcs.items() if address not in each.damaged}
        after, whole = dict(each.crcs), {address: address in before for address in each.crcs}
        for address, source in found:
            after[address], whole[address] = after[source], whole[source]
        left = {crc for address, crc in after.items() if whole[address]}
        contents = list(before.values())
        winner = next((crc for crc in contents if 2 * contents.count(crc) > len(contents) > 1), None)
        for crc in contents:
            if crc not in left and winner in (None, crc):
                yield each, crc


def advised(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Parses what people read: (who is overwritten, from whom). Every destroying word must be understood
    here."""
    found = []
    for line in lines:
        stops = re.findall(r"(\S+) is right wherever both differ.*stop (\S+?),? (?:keelmq|and keep)", line)
        found += [(address, source) for source, address in stops]
        for word in ("--resync", "restore", "--wipe-after", "cleanBrokerMetadata", " rm ", "delete"):
            assert word not in line or stops or "do not overwrite or delete" in line, line
    return found


def report_of(
    divergences: Sequence[Divergence], group: Sequence[Member], *, examined: bool = True
) -> GroupReport:
    verdicts = [judge(each) for each in divergences]
    return GroupReport(
        "b",
        compared=[each.address for each in group],
        master=next((each.address for each in group if each.is_master), None),
        differences=[log_difference(each) for each in verdicts],
        verdicts=verdicts,
        members=list(group),
        is_examined=examined,
    )


STATES = (X, Y, DAMAGED)


@pytest.mark.parametrize("count", [2, 3])
def test_no_advice_destroys_the_only_sound_copy_whatever_the_roles(count: int) -> None:
    """Every state of two divergences at every replica, with every master (and none), with controllers and
    without: the damaged one is the master, a slave; both are sound, but different; only one is left."""
    walked = overwriting = 0
    for at_one, at_two in itertools.product(itertools.product(STATES, repeat=count), repeat=2):
        divergences = [
            each
            for each in (divergence(*at_one), divergence(*at_two, start=200))
            if len(set(each.crcs.values())) > 1
        ]
        if not divergences:
            continue
        for master, controlled in itertools.product((*range(count), None), (True, False)):
            lines = lines_of(report_of(divergences, members(count, master, controlled=controlled)))
            assert any("next: " in line for line in lines)
            found = advised(lines)
            assert not list(lost(divergences, found)), (at_one, at_two, master, lines)
            walked, overwriting = walked + 1, overwriting + bool(found)
    assert overwriting > walked // 20, "it does not help to say nothing"


def test_the_walk_sees_an_advice_that_destroys() -> None:
    """That of roles: a slave that differs is overwritten from its master."""
    divergences = [divergence(DAMAGED, X)]
    assert list(lost(divergences, [(B, A)])) and not list(lost(divergences, [(A, B)]))
    assert list(lost([divergence(X, Y)], [(B, A)])), "nobody knows which one is right"
    assert not list(lost([divergence(X, X, Y)], [(C, A)])) and list(
        lost([divergence(X, X, Y)], [(A, C), (B, C)])
    )


def test_a_damaged_master_is_replaced_from_the_sound_slave() -> None:
    steps = log_steps("b", [judge(divergence(DAMAGED, X))], members(2, 0), is_complete=True)
    (step,) = steps
    assert (step.overwrites, step.source) == (A, B)
    assert "mqadmin electMaster -a CONTROLLER -bn b -c CLUSTER -b 2" in step.text
    (plain,) = log_steps(
        "b", [judge(divergence(DAMAGED, X))], members(2, 0, controlled=False), is_complete=True
    )
    assert "electMaster" not in plain.text and f"keelmq backup store NAME -b {B}" in plain.text


def test_each_has_the_only_sound_copy_of_something() -> None:
    verdicts = [judge(divergence(DAMAGED, X)), judge(divergence(X, DAMAGED, start=200))]
    (step,) = log_steps("b", verdicts, members(2, 0), is_complete=True)
    assert step.overwrites is None and "do not overwrite or delete any replica" in step.text
    assert "each may have the only sound copy" in step.text


def test_a_damaged_replica_that_has_older_messages_than_the_sound_one_is_kept() -> None:
    """Those in front of what was compared: the others' retention has deleted them."""
    verdicts: list[Verdict] = [judge(divergence(DAMAGED, X, start=500))]
    for lows, may in (((0, 400), False), ((400, 0), True)):
        (step,) = log_steps("b", verdicts, members(2, 1, lows=lows), is_complete=True)
        assert (step.overwrites is not None) is may


def test_with_more_differences_than_were_examined_nothing_is_overwritten() -> None:
    report = report_of([divergence(DAMAGED, X)], members(2, 1), examined=False)
    assert not advised(lines_of(report)) and "more differences than were examined" in lines_of(report)[-1]


def test_a_queue_or_a_table_is_never_overwritten_because_of_a_role() -> None:
    group = members(2, 0)
    shown: Mapping[str, Sequence[Difference]] = {
        "keelmq repair --store DIR --queues": [Difference("queue", (A, B), "T 0", is_decided=False)],
        "do not restart the others": [Difference("metadata", (A,), "topics")],
        "nothing tells which table": [Difference("metadata", (A, B), "topics", is_decided=False)],
        "its master's tables, which are newer": [Difference("metadata", (B,), "topics")],
    }
    for text, differences in shown.items():
        report = GroupReport("b", compared=[A, B], master=A, differences=list(differences), members=group)
        lines = lines_of(report)
        assert text in lines[-1] and "--resync" not in "".join(lines)
