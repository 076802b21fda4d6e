"""Numbers in answers of servers, which may be anything: anything but a 64-bit number is unknown."""

from typing import Final

LONG_MAX: Final = 2**63 - 1


def whole(text: str | None) -> int | None:
    """Returns the whole number in a text; None: it is not one, or not in the range of Java's long."""
    try:
        value = int(text or "")
    except ValueError:  # no number, or one of thousands of digits
        return None
    return value if -LONG_MAX <= value <= LONG_MAX else None
