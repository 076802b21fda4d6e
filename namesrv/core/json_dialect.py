"""The two ways in which a name server writes JSON. Pure; both read standard JSON as body_bytes() makes it.

Standard is for clients since 4.9.4 and whoever asks for it. Legacy has bare number keys, as fastjson writes
them by default; older clients read nothing else (#4473).
"""

import re

_VALUE = rb'(?:"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+)'
_NUMBER_KEYED = re.compile(
    rb'"(?:brokerAddrs|currIdMap)":\{"-?[0-9]+":' + _VALUE + rb'(?:,"-?[0-9]+":' + _VALUE + rb")*\}"
)
"""The maps with number keys. Not every key that looks like a number: a broker may be called "7". It cannot
match inside a string: there quotes are escaped."""
_KEY = re.compile(rb'([{,])"(-?[0-9]+)":')
_NOT_ASCII = re.compile("[^\x00-\x7f]")


def legacy_json(standard: bytes) -> bytes:
    """{"brokerAddrs":{"0":...}} -> {"brokerAddrs":{0:...}}"""
    return _NUMBER_KEYED.sub(_bare, standard)


def escaped_json(standard: bytes) -> bytes:
    """Everything outside ASCII as \\uXXXX."""
    if standard.isascii():
        return standard
    return _NOT_ASCII.sub(_escape, standard.decode()).encode()


def _bare(match: re.Match[bytes]) -> bytes:
    return _KEY.sub(rb"\1\2:", match[0])


def _escape(match: re.Match[str]) -> str:
    """A character outside the basic plane is two."""
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
