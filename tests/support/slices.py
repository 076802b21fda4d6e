"""What `./test` runs of a large set of cases; `./test --all` runs all of it (docs/testing.md).

`first` keeps the first cases and marks the others slow. `share` is for repetition inside of one test.
"""

import os
from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet

ALL = os.environ.get("TESTS_ALL") == "1"
"""Set by `./test --ci` and `./test --all`."""
SHARE = 8
"""Without it, an eighth of the repetitions is made."""


def first(count: int, cases: Iterable[object]) -> list[object]:
    """For parametrize: the first `count` of the cases as they are, the others marked slow. A tuple holds the
    values of several arguments."""
    return [case if number < count else _slow(case) for number, case in enumerate(cases)]


def _slow(case: object) -> ParameterSet:
    mark = pytest.mark.slow
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, mark], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=mark)


def share(count: int) -> int:
    """So many repetitions (seeds, examples of hypothesis) with ALL; an eighth, at least one, without."""
    return count if ALL else max(1, count // SHARE)
