"""Where records end."""

from analytics.compaction.times import HOLD_MS, HOUR_MS
from analytics.rollup.edges import NEAR_MS, Spell, Spells, edge_of, offset_at
from tests.unit.analytics.manifests import START, hour

NOW = START + 1_000 * HOUR_MS


def edge(*seconds: int, known: bool = False, now_ms: int = NOW) -> int | None:
    """The edge, in seconds, of writers that end then."""
    spells = [Spell(at, 0, second * 1_000, known) for at, second in enumerate(seconds)]
    found = edge_of(spells, now_ms=now_ms)
    return None if found is None else found // 1_000


def test_most_writers_end_together() -> None:
    assert edge() is None
    assert edge(600) == 600
    assert edge(600, 600, 601, 540, 2_400) == 601, "one clock is half an hour ahead"
    assert edge(600, 600, 2_400) == 600
    assert edge(600, 600, 600, 600, 600, 600, 600, 600, 600, 2_400, 2_400) == 600, "fewer than a quarter"
    assert edge(600, 600, 600, 600, 600, 600, 2_400, 2_400) == 2_400, "a quarter"


def test_nobody_confirms_another() -> None:
    assert edge(600, 2_400) == 2_400
    assert edge(600, 1_200, 2_400) == 2_400


def test_those_that_ended_long_before_are_not_asked() -> None:
    long_ago = [0] * 20
    assert edge(*long_ago, 4 * 3_600, 4 * 3_600) == 4 * 3_600
    assert edge(*long_ago, 4 * 3_600) == 0
    assert edge(*long_ago, 25 * 3_600) == 25 * 3_600, "who comes back alone after a day is no wrong clock"


def test_known_clocks_need_one_that_confirms() -> None:
    assert edge(*[600] * 20, 2_400, 2_400, known=True) == 2_400
    assert edge(*[600] * 20, 2_400, known=True) == 600


def test_an_unknown_clock_moves_nothing_where_others_are_known() -> None:
    spells = [Spell(1, 0, 600_000, True), Spell(2, 0, 2_400_000, False), Spell(3, 0, 2_400_000, False)]
    assert edge_of(spells, now_ms=NOW) == 600_000


def test_the_present_confirms() -> None:
    assert edge(600, 600, 600, 2_400, now_ms=2_400_000 + NEAR_MS) == 2_400
    assert edge(600, 600, 600, 2_400, now_ms=2_400_001 + NEAR_MS) == 600


def test_up_to_a_moment() -> None:
    spells = [Spell(1, 0, 600, True), Spell(2, 500, 700, True), Spell(3, 650, 900, True)]
    assert edge_of(spells, now_ms=NOW, until_ts=650) == 649
    assert edge_of(spells, now_ms=NOW, until_ts=0) is None


def test_the_offset_of_a_moment() -> None:
    assert offset_at(5, []) is None
    assert offset_at(HOUR_MS + 5, [(0, 0)]) == 0, "held"
    assert offset_at(HOUR_MS + HOLD_MS, [(0, 0)]) is None
    assert offset_at(HOUR_MS + 5, [(0, -HOUR_MS), (HOUR_MS, 0)]) == 0, "both fit: the smaller one"
    assert offset_at(HOUR_MS + 5, [(0, -HOUR_MS), (4 * HOUR_MS, 0)]) == -HOUR_MS


def test_spells_are_by_the_controllers_clock() -> None:
    manifests = [
        hour(
            0, [("g1", 0, 599), ("g2", 0, 599)], clocks={"g1": 0, "g3": -HOUR_MS}, measuring=[("n1", 30, 570)]
        ),
        hour(1, [("g3", 0, 599)]),
    ]
    spells = Spells(manifests)
    found = {each.writer: each for hour_ts in (START, START + HOUR_MS) for each in spells.of(hour_ts)}
    assert found[("c", "g", 1)] == Spell(("c", "g", 1), START, START + 599_000, is_known=True)
    assert found[("c", "g", 2)] == Spell(("c", "g", 2), START, START + 599_000, is_known=False)
    assert found[("c", "g", 3)] == Spell(("c", "g", 3), START, START + 599_000, is_known=True)
    assert found[("", "n1", 0)] == Spell(("", "n1", 0), START + 30_000, START + 570_000, is_known=True)


def test_an_hour_that_does_not_tell_its_writers_is_one() -> None:
    assert Spells([hour(0)]).of(START) == [Spell(START, START, START + HOUR_MS - 1, is_known=False)]
