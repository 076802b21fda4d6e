"""SQL92 expressions: what they match, what is no expression, and that nothing ever escapes from either."""

import random

import pytest

from broker.filter.core import sql
from broker.filter.core.sql import BadSubscription, compile_sql
from broker.filter.core.subscription import MATCH_ALL, MessageFilter, parse

HAS = {"a": "3", "b": "3.5", "c": "it's", "t": "TRUE", "n": "-7", "TAGS": "TagA", "e": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("a = 3", True), ("a <> 3", False), ("a > 2", True), ("a >= 3", True), ("a < 3", False),
        ("a<=3", True),
        ("a = 3.0", True), ("b > 3 AND b < 4", True), ("b = 3.5", True), ("3 = a", True), ("2 < a", True),
        ("a = '3'", True), ("a = '3.0'", False), ("c = 'it''s'", True), ("TAGS = 'TagA'", True),
        ("e = ''", True),
        ("n = -7", True), ("n > -8 and n < +0", True), ("b = 35e-1", True), ("a > .5", True),
        ("a = 3.", True),
        ("a BETWEEN 1 AND 3", True), ("a NOT BETWEEN 1 AND 3", False), ("a between 4 and 9", False),
        ("TAGS IN ('TagA', 'TagB')", True), ("TAGS NOT IN ('TagA')", False), ("TAGS in ('x')", False),
        ("a IS NULL", False), ("a IS NOT NULL", True), ("missing IS NULL", True),
        ("missing IS NOT NULL", False),
        ("t = TRUE", True), ("t", True), ("NOT t", False), ("t = false", False), ("TRUE", True),
        ("FALSE", False),
        ("NOT NOT TRUE", True), ("a = 3 OR missing = 1", True), ("missing = 1 OR a = 3", True),
        ("a = 4 OR a = 3 AND t", True), ("(a = 4 OR a = 3) AND NOT t", False), ("((a = 3))", True),
        ("c CONTAINS ''''", True), ("c contains 'S'", False), ("c NOT CONTAINS 'x'", True),
        ("c NOT CONTAINS 't'", False), ("TAGS STARTSWITH 'Tag'", True), ("TAGS STARTSWITH 'ag'", False),
        ("TAGS NOT STARTSWITH 'Tag'", False), ("TAGS EndsWith 'gA' AND a = 3", True),
        ("TAGS ENDSWITH 'g'", False),
        ("TAGS NOT ENDSWITH 'x' AND 'abc' CONTAINS 'b'", True), ("NOT (TAGS CONTAINS 'Tag')", False),
        ("a = 3L", True), ("a < 4l AND a > -3L", True), ("contains IS NULL", True),
        # As in RocketMQ, these are false and not unknown.
        ("missing CONTAINS 'x'", False), ("missing NOT CONTAINS 'x'", False),
        ("NOT (missing STARTSWITH 'x')", True), ("c CONTAINS ''", False), ("c NOT ENDSWITH ''", False),
        ("3 CONTAINS '3'", False),
        # Unknown is not true, and neither is its contrary.
        ("missing = 1", False), ("NOT missing = 1", False), ("missing <> 1", False), ("missing > 1", False),
        ("missing NOT IN ('x')", False), ("missing NOT BETWEEN 1 AND 2", False), ("NOT missing", False),
        ("c > 1", False), ("NOT c > 1", False), ("c = 1", False), ("a", False),
        ("missing = 1 AND FALSE", False),
        ("NOT (missing = 1 AND FALSE)", True), ("a = c", False), ("a <> c", True), ("a > n", True),
    ],
)  # fmt: skip
def test_matches(text: str, matches: bool) -> None:
    assert compile_sql(text).matches(HAS) is matches


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "a =", "= 1", "a = 1 AND", "a = 1 b", "a == 1", "a > 'x'", "a > TRUE", "'x' < 3",
        "a BETWEEN 1",
        "a BETWEEN 'x' AND 'y'", "a IN ()", "a IN (1)", "a IN ('x'", "a IN 'x'", "1 IN ('x')", "a IS 3",
        "a NOT 3",
        "(a = 1", "a = 1)", "a = 'x", "a; drop", "a = \x00", "1", "'text'", "NOT", "a = AND", "a != 1",
        "a = 1e999", "a CONTAINS", "a CONTAINS 1", "a CONTAINS b", "a NOT STARTSWITH",
        "ENDSWITH 'x'", "a = 1.L", "a = 3Lb",
        "a > 1" + "0" * 60, "\u0660 = 1",
    ],
)  # fmt: skip
def test_is_no_expression(text: str) -> None:
    with pytest.raises(BadSubscription):
        compile_sql(text)


def test_limits() -> None:
    deep = sql.DEPTH_MAX
    assert compile_sql("(" * deep + "a = 3" + ")" * deep).matches(HAS)
    with pytest.raises(BadSubscription, match="parentheses"):
        compile_sql("(" * (deep + 1) + "a = 3" + ")" * (deep + 1))
    with pytest.raises(BadSubscription, match="limit"):
        compile_sql("a = 3" + " " * sql.TEXT_CHARACTERS_MAX)
    with pytest.raises(BadSubscription, match="limit"):
        parse("a" * (sql.TEXT_CHARACTERS_MAX + 1), "TAG", len)
    assert parse("a" * sql.TEXT_CHARACTERS_MAX, "TAG", len).tag_codes == {sql.TEXT_CHARACTERS_MAX}
    assert not compile_sql(" OR ".join(["NOT " * 500 + "FALSE"] * 5)).matches(HAS)
    assert not compile_sql("a > 1").matches({"a": "9" * 5_000})  # no number that anybody means


def test_a_long_property_that_is_no_number_is_not_searched_for_one() -> None:
    """As the square of its length that took 15 s for each comparison."""
    assert not compile_sql(" OR ".join(["a > 1"] * 20)).matches({"a": "9" * 32_000 + "x"})


def test_garbage_is_refused_or_answered() -> None:
    """Total: from random tokens comes an expression that answers, or BadSubscription."""
    dice = random.Random(11)
    words = ["a", "b", "c", "missing", "AND", "OR", "NOT", "(", ")", "=", "<>", "<", ">=", "IN", "IS",
    "NULL", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH",
             "1", "-2.5", "'x'", "TRUE", ",", "t"]  # fmt: skip
    good = 0
    for _ in range(20_000):
        text = " ".join(dice.choices(words, k=dice.randint(1, 9)))
        try:
            expression = compile_sql(text)
        except BadSubscription:
            continue
        good += 1
        assert expression.test(HAS) in (True, False, None)
    assert good > 500


def test_subscriptions() -> None:
    def code(tag: str) -> int:
        return len(tag)

    assert parse("*", "TAG", code) == parse("", "", code) == parse("a || *", "TAG", code) == MATCH_ALL
    assert parse(" a|| bb ||", "TAG", code) == MessageFilter(frozenset({1, 2}))
    assert parse("*", "SQL92", code) == MATCH_ALL
    wanted = parse("a = 3", "SQL92", code)
    assert wanted.tag_codes is None and wanted.sql is not None and wanted.sql.matches(HAS)
    with pytest.raises(BadSubscription, match="expression type 'XPATH'"):
        parse("a", "XPATH", code)
