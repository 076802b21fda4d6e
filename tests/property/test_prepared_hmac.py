"""HMAC-SHA1 with a prepared key: with OpenSSL's functions and with hashlib, against the standard library."""

import ctypes
import hmac
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.runtime.compiled import leaves
from keelmq.security.core.signature import SecretKey
from keelmq.security.prepared_hmac import openssl_functions

LEAF = leaves["keelmq.security.prepared_hmac"]
INTERPRETED: Any = LEAF.interpreted["PreparedHmac"]
TWIN: Any = INTERPRETED if LEAF.twin is None else LEAF.twin.PreparedHmac
ADDRESSES = openssl_functions()
NEW, FREE, INIT, COPY, UPDATE, FINAL = 0, 1, 3, 4, 5, 6
Made = Callable[[bytes], Any]
WAYS: dict[str, Made] = {
    "interpreted": lambda secret: INTERPRETED(SecretKey(secret).blocks),
    "compiled": lambda secret: TWIN(SecretKey(secret).blocks),
    "compiled, with hashlib": lambda secret: TWIN(SecretKey(secret).blocks, ()),
}
needs_openssl = pytest.mark.skipif(
    LEAF.twin is None or not ADDRESSES, reason="not compiled, or hashlib's library exports no functions"
)


@pytest.mark.parametrize("way", WAYS)
@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=80), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200)), max_size=6),
)
def test_digests(way: str, secrets: list[bytes], asked: list[tuple[int, bytes]]) -> None:
    """Keys take turns, and none remembers what it was given before."""
    prepared = [WAYS[way](secret) for secret in secrets]
    for number, data in asked:
        place = number % len(secrets)
        expected = hmac.digest(secrets[place], data, "sha1")
        assert prepared[place].digest(data) == prepared[place].digest(bytearray(data)) == expected


@pytest.mark.parametrize("count", [0, 55, 56, 63, 64, 65, 119, 120, 128, 1_000_000])
@pytest.mark.parametrize("way", WAYS)
def test_sizes_around_the_blocks_of_sha_1(way: str, count: int) -> None:
    data = bytes(index & 0xFF for index in range(count))
    assert WAYS[way](b"secret").digest(data) == hmac.digest(b"secret", data, "sha1")


@needs_openssl
def test_openssl_is_called_if_its_functions_are_known() -> None:
    assert WAYS["compiled"](b"secret").is_direct
    assert not WAYS["compiled, with hashlib"](b"secret").is_direct
    assert not WAYS["interpreted"](b"secret").is_direct


class Functions:
    """OpenSSL's, some of them replaced."""

    def __init__(self) -> None:
        self.addresses, self._kept = list(ADDRESSES), list[Any]()

    def replace(self, place: int, function: Callable[..., int | None], result: Any) -> None:
        prototype = ctypes.CFUNCTYPE(result, *[ctypes.c_void_p] * function.__code__.co_argcount)
        self._kept.append(prototype(function))
        self.addresses[place] = ctypes.cast(self._kept[-1], ctypes.c_void_p).value or 0

    def made(self) -> Any:
        return TWIN(SecretKey(b"secret").blocks, tuple(self.addresses))


@needs_openssl
@pytest.mark.parametrize("place", [INIT, COPY, UPDATE, FINAL])
def test_if_openssl_fails_hashlib_is_asked(place: int) -> None:
    functions = Functions()
    functions.replace(place, lambda _state, _more, _last: 0, ctypes.c_int)
    prepared = functions.made()
    assert prepared.is_direct == (place in (COPY, FINAL))
    assert prepared.digest(b"data") == hmac.digest(b"secret", b"data", "sha1")


@needs_openssl
@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_each_state_is_freed_once(room: int) -> None:
    """Also if there is no memory for all of them."""
    functions, made, freed = Functions(), list[int](), list[int]()
    new = ctypes.CFUNCTYPE(ctypes.c_void_p)(ADDRESSES[NEW])
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(ADDRESSES[FREE])

    def counted_new() -> int | None:
        if len(made) == room:
            return None
        made.append(new())
        return made[-1]

    def counted_free(state: int | None) -> None:
        if state:
            freed.append(state)
            free(state)

    functions.replace(NEW, counted_new, ctypes.c_void_p)
    functions.replace(FREE, counted_free, None)
    prepared = functions.made()
    assert prepared.is_direct == (room == 3)
    assert prepared.digest(b"data") == hmac.digest(b"secret", b"data", "sha1")
    del prepared
    assert sorted(freed) == sorted(made) and len(made) == room
