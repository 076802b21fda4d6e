"""SQL92 filters: an expression over a message's properties, parsed once, evaluated for each message. Pure.

    expression := and { OR and }          and := not { AND not }          not := [NOT] test
    test := value [ = <> > >= < <= value | [NOT] BETWEEN value AND value | [NOT] IN ( 'text', ... )
                  | [NOT] CONTAINS STARTSWITH ENDSWITH 'text' | IS [NOT] NULL ] | ( expression )
    value := property | 123 | 123L | -1.5e3 | 'text, '' is a quote' | TRUE | FALSE

Three-valued logic, as in SQL: a test is unknown if a property is absent, or is not a number where it is
compared with one. A message matches only if the expression is true. Parsing ends with an Expression or a
BadSubscription; evaluation never raises. CONTAINS, STARTSWITH, ENDSWITH and their contraries are false for a
property that is absent, and for an empty text. Source: RocketMQ 5.3.3 SelectorParser, ComparisonExpression.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

TEXT_CHARACTERS_MAX: Final = 16_384
DEPTH_MAX: Final = 64
INTEGER_DIGITS_MAX: Final = 40

Properties: TypeAlias = Mapping[str, str]
Test: TypeAlias = Callable[[Properties], bool | None]
Number: TypeAlias = int | float


class BadSubscription(ValueError):
    """An illegal expression. The text names the fault."""


class Expression(msgspec.Struct, frozen=True):
    """A parsed filter. text: as it was written."""

    text: str
    test: Test

    def matches(self, properties: Properties) -> bool:
        """Returns whether the expression is true for these properties."""
        return self.test(properties) is True


class _Token(NamedTuple):
    kind: str  # word, number, text, sign, end
    text: str
    at: int


_TOKEN = re.compile(
    r"""\s+
    | (?P<number> [+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?:(?<=\d)[lL](?![A-Za-z0-9_$.]))?
    | (?P<word> [A-Za-z_$][A-Za-z0-9_$.]*)
    | '(?P<text> (?:[^']|'')*)'
    | (?P<sign> <>|>=|<=|[=<>(),])
    """,
    re.VERBOSE | re.ASCII,
)
_KEYWORDS = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "TRUE", "FALSE"})
_TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def compile_sql(text: str) -> Expression:
    """Returns the parsed expression. Raises BadSubscription, with the position of the error."""
    if len(text) > TEXT_CHARACTERS_MAX:
        raise BadSubscription(f"a filter of {len(text)} characters; {TEXT_CHARACTERS_MAX} is the limit")
    parser = _Parser(_tokens(text))
    test = parser.expression(0)
    parser.expect("end", "")
    return Expression(text, test)


def _tokens(text: str) -> list[_Token]:
    tokens, at = [], 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadSubscription(f"{text[at]!r} at character {at} is not part of any expression")
        kind = found.lastgroup
        if kind is not None:
            tokens.append(_Token(kind, found[kind], at))
        at = found.end()
    tokens.append(_Token("end", "", at))
    return tokens


class _Value(NamedTuple):
    """An operand. read: returns the text of a property, or the constant."""

    read: Callable[[Properties], str | Number | bool | None]
    constant: str | Number | bool | None  # None: a property


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens, self._next = tokens, 0

    # -- tokens ------------------------------------------------------------------------------------------

    def _look(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += token.kind != "end"
        return token

    def _is(self, text: str) -> bool:
        token = self._look()
        return token.kind in ("word", "sign") and token.text.upper() == text

    def _accept(self, text: str) -> bool:
        found = self._is(text)
        self._next += found
        return found

    def expect(self, kind: str, text: str) -> None:
        token = self._take()
        if token.kind != kind or token.text.upper() != text:
            raise _unexpected(token, repr(text) if text else "the end")

    # -- grammar -----------------------------------------------------------------------------------------

    def expression(self, depth: int) -> Test:
        if depth > DEPTH_MAX:
            raise BadSubscription(f"more than {DEPTH_MAX} parentheses inside each other")
        tests = [self._and(depth)]
        while self._accept("OR"):
            tests.append(self._and(depth))
        return tests[0] if len(tests) == 1 else _any_of(tests)

    def _and(self, depth: int) -> Test:
        tests = [self._not(depth)]
        while self._accept("AND"):
            tests.append(self._not(depth))
        return tests[0] if len(tests) == 1 else _all_of(tests)

    def _not(self, depth: int) -> Test:
        is_negated = False
        while self._accept("NOT"):
            is_negated = not is_negated
        test = self._test(depth)
        return _negated(test) if is_negated else test

    def _test(self, depth: int) -> Test:
        if self._accept("("):
            test = self.expression(depth + 1)
            self.expect("sign", ")")
            return test
        left = self._value()
        for sign in ("=", "<>", ">=", "<=", ">", "<"):
            if self._accept(sign):
                return self._comparison(left, sign)
        if self._accept("IS"):
            is_negated = self._accept("NOT")
            self.expect("word", "NULL")
            return _is_null(left, is_negated)
        is_negated = self._accept("NOT")
        for name, has in _TEXT_TESTS.items():
            if self._accept(name):
                return _of_text(left, has, self._text(), is_negated)
        if self._accept("BETWEEN"):
            test = self._between(left)
        elif self._accept("IN"):
            test = self._in(left)
        elif is_negated:
            raise _unexpected(self._look(), f"BETWEEN, IN, {', '.join(_TEXT_TESTS)}")
        else:
            return _truth(left)
        return _negated(test) if is_negated else test

    def _comparison(self, left: _Value, sign: str) -> Test:
        right = self._value()
        if sign in ("=", "<>"):
            return _equal(left, right) if sign == "=" else _negated(_equal(left, right))
        for value in (left, right):
            self._must_be_ordered(value, sign)
        return _ordered(left, sign, right)

    def _between(self, left: _Value) -> Test:
        low = self._value()
        self.expect("word", "AND")
        high = self._value()
        for value in (left, low, high):
            self._must_be_ordered(value, "BETWEEN")
        return _all_of([_ordered(left, ">=", low), _ordered(left, "<=", high)])

    def _must_be_ordered(self, value: _Value, sign: str) -> None:
        if isinstance(value.constant, (str, bool)):
            raise BadSubscription(f"{sign} compares numbers: {value.constant!r} is none")

    def _in(self, left: _Value) -> Test:
        if left.constant is not None:
            raise BadSubscription(f"IN looks at a property: {left.constant!r} is none")
        self.expect("sign", "(")
        texts = set()
        while True:
            texts.add(self._text())
            if not self._accept(","):
                break
        self.expect("sign", ")")
        return _one_of(left, frozenset(texts))

    def _text(self) -> str:
        token = self._take()
        if token.kind != "text":
            raise _unexpected(token, "a text in quotes")
        return _unquoted(token)

    def _value(self) -> _Value:
        token = self._take()
        if token.kind == "number":
            return _constant(_number(token))
        if token.kind == "text":
            return _constant(_unquoted(token))
        word = token.text.upper()
        if token.kind == "word" and word in ("TRUE", "FALSE"):
            return _constant(word == "TRUE")
        if token.kind != "word" or word in _KEYWORDS:
            raise _unexpected(token, "a property, a number or a text in quotes")
        name = token.text
        return _Value(lambda properties: properties.get(name), None)


def _unexpected(token: _Token, wanted: str) -> BadSubscription:
    found = repr(token.text) if token.kind != "end" else "the end"
    return BadSubscription(f"{found} at character {token.at}, where {wanted} is expected")


def _unquoted(token: _Token) -> str:
    return token.text.replace("''", "'")


def _constant(value: str | Number | bool) -> _Value:
    return _Value(lambda properties: value, value)


def _number(token: _Token) -> Number:
    number = _as_number(token.text)
    if number is None:
        raise BadSubscription(f"{token.text} at character {token.at} is too large a number")
    return number


# -- tests ----------------------------------------------------------------------------------------------


def _as_number(value: str | Number | bool | None) -> Number | None:
    """Returns the number of a text or a constant; None (unknown): it is not a number."""
    if not isinstance(value, str):
        return None if isinstance(value, bool) else value
    if len(value) > INTEGER_DIGITS_MAX or not _NUMBER.fullmatch(value):  # it tries each division of digits
        return None
    try:
        return int(value)
    except ValueError:
        number = float(value)
        return number if abs(number) != float("inf") else None


def _as_truth(value: str | Number | bool | None) -> bool | None:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.lower())
    return value if isinstance(value, bool) else None


def _equal(left: _Value, right: _Value) -> Test:
    """The type of a constant decides how a property is read; two properties are compared as texts."""
    kind = left.constant if left.constant is not None else right.constant
    read: Callable[[str | Number | bool | None], object]
    if isinstance(kind, bool):
        read = _as_truth
    elif isinstance(kind, (int, float)):
        read = _as_number
    else:
        read = _as_text

    def test(properties: Properties) -> bool | None:
        a, b = read(left.read(properties)), read(right.read(properties))
        return None if a is None or b is None else a == b

    return test


def _as_text(value: str | Number | bool | None) -> str | None:
    return value if isinstance(value, str) else None


def _ordered(left: _Value, sign: str, right: _Value) -> Test:
    def test(properties: Properties) -> bool | None:
        a, b = _as_number(left.read(properties)), _as_number(right.read(properties))
        if a is None or b is None:
            return None
        match sign:
            case ">":
                return a > b
            case ">=":
                return a >= b
            case "<":
                return a < b
        return a <= b

    return test


def _is_null(value: _Value, is_negated: bool) -> Test:
    return lambda properties: (value.read(properties) is None) is not is_negated


def _one_of(value: _Value, texts: frozenset[str]) -> Test:
    def test(properties: Properties) -> bool | None:
        text = value.read(properties)
        return None if text is None else text in texts

    return test


def _of_text(value: _Value, has: Callable[[str, str], bool], part: str, is_negated: bool) -> Test:
    def test(properties: Properties) -> bool:
        text = value.read(properties)
        return isinstance(text, str) and part != "" and has(text, part) is not is_negated

    return test


def _truth(value: _Value) -> Test:
    if isinstance(value.constant, (int, float, str)) and not isinstance(value.constant, bool):
        raise BadSubscription(f"{value.constant!r} is neither true nor false")
    return lambda properties: _as_truth(value.read(properties))


def _negated(test: Test) -> Test:
    def negated(properties: Properties) -> bool | None:
        found = test(properties)
        return None if found is None else not found

    return negated


def _all_of(tests: list[Test]) -> Test:
    """AND: false as soon as one test is false; unknown if one is unknown."""

    def all_of(properties: Properties) -> bool | None:
        found: bool | None = True
        for test in tests:
            one = test(properties)
            if one is False:
                return False
            if one is None:
                found = None
        return found

    return all_of


def _any_of(tests: list[Test]) -> Test:
    def any_of(properties: Properties) -> bool | None:
        found: bool | None = False
        for test in tests:
            one = test(properties)
            if one:
                return True
            if one is None:
                found = None
        return found

    return any_of
