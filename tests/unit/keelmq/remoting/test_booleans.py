"""The texts that are booleans are those that pydantic reads in settings and request headers."""

import pytest
from pydantic import TypeAdapter, ValidationError

from keelmq.remoting.booleans import is_true, parse_boolean
from keelmq.security.core.audited import is_without_effect

TEXTS = [
    "true",
    "TRUE",
    "t",
    "1",
    "yes",
    "y",
    "on",
    "false",
    "False",
    "f",
    "0",
    "no",
    "n",
    "off",
    "",
    "2",
    "ja",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_boolean_is_what_pydantic_reads(text: str) -> None:
    try:
        wanted = TypeAdapter(bool).validate_python(text)
    except ValidationError:
        assert not is_true(text)
        with pytest.raises(ValueError, match="neither true nor false"):
            parse_boolean(text)
    else:
        assert is_true(text) is parse_boolean(text) is wanted


def test_what_is_not_set_is_not_true() -> None:
    assert not is_true(None) and is_true(" on ")


def test_an_election_is_audited_however_its_header_says_true() -> None:
    """It was not, with designateElect=True or 1, which the controller takes for true."""
    assert not is_without_effect(1002, {"designateElect": "True"}, {})
    assert is_without_effect(1002, {"designateElect": "1", "dryRun": "1"}, {})
