"""Numbers in answers of servers, which may be anything: what is no number of 64 bits is unknown."""

from typing import Final

LONG_MAX: Final = 2**63 - 1


def whole(text: str | None) -> int | None:
    """Returns the whole number that a text is; None: it is none, or one that Java's long cannot have."""
    try:
        value = int(text or "")
    except ValueError:  # no number, or one of thousands of digits
        return None
    return value if -LONG_MAX <= value <= LONG_MAX else None
