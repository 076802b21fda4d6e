"""The two JSON dialects of a name server's replies, converted from the standard JSON of body_bytes(). Pure.

Standard: for clients since 4.9.4, and for others that request it. Legacy: number keys without quotes, as
fastjson writes them by default; older clients can parse only that (#4473).
"""

import re

_VALUE = rb'(?:"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+)'
_NUMBER_KEYED = re.compile(
    rb'"(?:brokerAddrs|currIdMap)":\{"-?[0-9]+":' + _VALUE + rb'(?:,"-?[0-9]+":' + _VALUE + rb")*\}"
)
"""Only the maps with number keys: elsewhere a key like "7" may be the name of a broker. The pattern cannot
match inside a string, where quotes are escaped."""
_KEY = re.compile(rb'([{,])"(-?[0-9]+)":')
_NOT_ASCII = re.compile("[^\x00-\x7f]")


def legacy_json(standard: bytes) -> bytes:
    """{"brokerAddrs":{"0":...}} -> {"brokerAddrs":{0:...}}"""
    return _NUMBER_KEYED.sub(_bare, standard)


def escaped_json(standard: bytes) -> bytes:
    """Writes every character outside ASCII as \\uXXXX."""
    if standard.isascii():
        return standard
    return _NOT_ASCII.sub(_escape, standard.decode()).encode()


def _bare(match: re.Match[bytes]) -> bytes:
    return _KEY.sub(rb"\1\2:", match[0])


def _escape(match: re.Match[str]) -> str:
    """A character outside the basic plane becomes two escapes."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
