"""Tokens for HTTP: a line for each, "ROLE NAME sha256:HEX". Only the hash is kept, so a reader of the file
cannot use them. A token should come from a generator: a hash of a word is found by trying words.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final

from keelmq.remoting.operation import Role

TOKENS_MAX: Final = 1_000
TOKEN_CHARS_MIN: Final = 16
"""Shorter ones are not even looked up: they can be guessed."""
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HASH: Final = re.compile(r"sha256:[0-9a-fA-F]{64}")
_FORM: Final = "ROLE NAME sha256:HEX, the role read, operate or administer"


class InvalidTokens(ValueError):
    """The text has the line's number and what is wrong; never the line, which may have a token in it."""


@dataclass(frozen=True, slots=True)
class Token:
    """`digest`: SHA-256 of the token's text."""

    name: str
    role: Role
    digest: bytes = field(repr=False)


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Returns the tokens of a file. Blank lines, and those that begin with #, are skipped. Raises
    InvalidTokens."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        token = _token(line.split(), number)
        if token.name in tokens:
            raise InvalidTokens(f"line {number}: {token.name} is there twice")
        tokens[token.name] = token
        if len(tokens) > TOKENS_MAX:
            raise InvalidTokens(f"line {number}: more than {TOKENS_MAX} tokens")
    return tuple(tokens.values())


def _token(words: list[str], number: int) -> Token:
    if len(words) != 3 or words[0].upper() not in Role.__members__:
        raise InvalidTokens(f"line {number} is not {_FORM}")
    role, name, hashed = words
    if not _NAME.fullmatch(name):
        raise InvalidTokens(f"line {number}: a name has letters, digits, '.', '_' and '-', 64 at most")
    if not _HASH.fullmatch(hashed):
        hint = "printf %s TOKEN | sha256sum"
        raise InvalidTokens(f"line {number}: no sha256: and 64 hexadecimal digits: {hint}")
    return Token(name, Role[role.upper()], bytes.fromhex(hashed.partition(":")[2]))


def find_token(tokens: Iterable[Token], given: str) -> Token | None:
    """Returns the token with this text. Takes the same time whichever it is, and if it is none."""
    digest = hashlib.sha256(given.encode("utf-8", "replace")).digest()
    found = None
    for token in tokens:
        if compare_digest(token.digest, digest):
            found = token
    return found if len(given) >= TOKEN_CHARS_MIN else None
