"""Booleans as texts, in settings, request headers and options: what pydantic reads. Pure."""

from typing import Final

_TRUE: Final = frozenset({"true", "t", "1", "yes", "y", "on"})
_FALSE: Final = frozenset({"false", "f", "0", "no", "n", "off"})


def is_true(text: str | None) -> bool:
    """Returns whether a text is true, in any case of letters. Any other text is not, nor is None: not set."""
    return text is not None and text.strip().lower() in _TRUE


def parse_boolean(text: str) -> bool:
    """Returns the boolean. ValueError: the text is neither true nor false."""
    if not is_true(text) and text.strip().lower() not in _FALSE:
        raise ValueError(f"{text!r} is neither true nor false")
    return is_true(text)
