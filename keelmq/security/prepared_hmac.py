"""HMAC-SHA1 with a key that is prepared once: one call for a digest.

With hashlib a digest costs six calls, two objects and four copies of OpenSSL's state, more than SHA-1 itself.
The compiled twin calls the functions that hashlib calls, with states that it keeps. Their addresses come from
hashlib's own library, so neither headers nor another library are needed. Interpreted, or where the library
does not export them, hashlib is used. No cryptography is written here.
"""

import ctypes
import hashlib
import importlib.util
from typing import Any, Final

from keelmq.runtime.compiled import is_compiled, prefer_twin

_IS_COMPILED: Final = is_compiled(__file__)
DIGEST_BYTES: Final = 20
_FUNCTIONS: Final = (
    "EVP_MD_CTX_new", "EVP_MD_CTX_free", "EVP_sha1", "EVP_DigestInit_ex", "EVP_MD_CTX_copy_ex",
    "EVP_DigestUpdate", "EVP_DigestFinal_ex",
)  # fmt: skip
"""Of OpenSSL 1.1.0 and later."""


def openssl_functions() -> tuple[int, ...]:
    """Returns the addresses of _FUNCTIONS in hashlib's library; empty: it does not export them."""
    spec = importlib.util.find_spec("_hashlib")
    if spec is None or not spec.has_location:
        return ()  # Python without OpenSSL, or both in one file
    try:
        library = ctypes.CDLL(spec.origin)
        found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _FUNCTIONS]
    except (AttributeError, OSError):
        return ()
    return tuple(found)


_ADDRESSES: Final = openssl_functions() if _IS_COMPILED else ()


class PreparedHmac:
    """One key; of one thread. blocks: the key as two blocks of SHA-1, with the inner and the outer padding.
    is_direct: OpenSSL is called without hashlib."""

    # Of the twin: functions by their addresses, and states (EVP_MD_CTX).
    _new: Any
    _free: Any
    _sha1: Any
    _init: Any
    _copy: Any
    _update: Any
    _final: Any
    _inner_begun: Any
    _outer_begun: Any
    _work: Any
    _null: Any

    def __init__(self, blocks: tuple[bytes, bytes], addresses: tuple[int, ...] = _ADDRESSES) -> None:
        """addresses: of openssl_functions(); empty: hashlib is used."""
        inner, outer = blocks
        self._inner, self._outer = hashlib.sha1(inner), hashlib.sha1(outer)
        self._room = bytearray(DIGEST_BYTES)
        self.is_direct = _IS_COMPILED and len(addresses) > 0 and self._prepare(inner, outer, addresses)

    def digest(self, data: bytes | bytearray) -> bytes:
        """Returns the 20 bytes of HMAC-SHA1."""
        if self.is_direct:
            digest = self._direct(data, len(data))
            if digest is not None:
                return digest
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(data)
        outer.update(inner.digest())
        return outer.digest()

    # -- compiled ---------------------------------------------------------------------------------------

    def _prepare(self, inner: bytes, outer: bytes, addresses: tuple[int, ...]) -> bool:
        """Returns whether OpenSSL can be called."""
        self._new.address, self._free.address, self._sha1.address = addresses[:3]
        self._init.address, self._copy.address, self._update.address, self._final.address = addresses[3:]
        self._inner_begun, self._outer_begun, self._work = self._new.new(), self._new.new(), self._new.new()
        if not self._inner_begun or not self._outer_begun or not self._work:
            return False
        return self._begin(self._inner_begun, inner) and self._begin(self._outer_begun, outer)

    def _begin(self, state: Any, block: bytes) -> bool:
        kind = self._sha1.sha1()
        return bool(
            self._init.init(state, kind, self._null) and self._update.update(state, block, len(block))
        )

    def _direct(self, data: bytes | bytearray, count: int) -> bytes | None:
        """None: OpenSSL has failed; hashlib then says why."""
        room: Any = self._room
        if (
            not self._copy.copy(self._work, self._inner_begun)
            or not self._update.update(self._work, data, count)
            or not self._final.final(self._work, room, self._null)
            or not self._copy.copy(self._work, self._outer_begun)
            or not self._update.update(self._work, room, DIGEST_BYTES)
            or not self._final.final(self._work, room, self._null)
        ):
            return None
        digest: bytes = room[:DIGEST_BYTES]
        return digest

    def __dealloc__(self) -> None:
        if self._free.address:
            self._free.free(self._inner_begun)
            self._free.free(self._outer_begun)
            self._free.free(self._work)


prefer_twin(__name__, globals(), "PreparedHmac")
