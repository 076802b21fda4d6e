"""Text of others, such as client ids, topics, keys and bodies, on its way to a terminal or a log.

Control characters could move the cursor, hide lines or answer for the reader: they are shown as escapes, ESC
as \\x1b. Line feeds and tabs stay.
"""

from typing import Final

_CODES: Final = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in _CODES}
_JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}


def printable(text: str) -> str:
    """Returns the text with an escape for each control character, except line feed and tab."""
    return text.translate(_ESCAPES)


def printable_line(text: str) -> str:
    """Returns the text as one line, with escapes for all characters that do not print."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_json(text: str) -> str:
    """Returns JSON, in which C0 characters are escaped already, with escapes for DEL and C1."""
    return text.translate(_JSON_ESCAPES)
