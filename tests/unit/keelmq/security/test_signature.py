"""Signatures of requests: the bytes that are signed, and RocketMQ's rules for old and odd clients."""

import hashlib
import hmac
import subprocess

import pytest

from keelmq.security.core import signature
from keelmq.security.core.signature import SecretKey, sign, signed, signed_bytes, verify

SECRET = SecretKey(b"12345678")


def test_the_vector_of_the_reference() -> None:
    fields = {"AccessKey": "rocketmq2", "topic": "T"}
    assert signed_bytes(fields, b"hello") == b"rocketmq2Thello"
    assert sign("12345678", fields, b"hello") == "kPUKNh0ggWAX+mpM4EHuxapYvSo="


@pytest.mark.parametrize("key", [b"", b"k", b"x" * 64, b"x" * 65, "schlüssel".encode(), bytes(range(200))])
def test_the_prepared_key_is_hmac(key: bytes) -> None:
    assert SecretKey(key).signature_of(b"data") == signature.b2a_base64(
        hmac.new(key, b"data", hashlib.sha1).digest(), newline=False
    )


def test_openssl_agrees() -> None:
    command = ["openssl", "dgst", "-sha1", "-hmac", "12345678", "-binary"]
    try:
        raw = subprocess.run(command, input=b"rocketmq2Thello", capture_output=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no openssl here")
    assert signature.b2a_base64(raw, newline=False) == b"kPUKNh0ggWAX+mpM4EHuxapYvSo="


def test_keys_are_sorted_as_java_sorts_them() -> None:
    """Upper case first; then UTF-16 units, in which U+1F600 is below U+FFFD."""
    assert signed_bytes({"b": "4", "a": "3", "OnsChannel": "2", "AccessKey": "1"}) == b"1234"
    assert signed_bytes({"\ufffd": "2", "\U0001f600": "1"}) == b"12"


def test_a_null_value_is_the_text_null() -> None:
    assert signed_bytes({"a": None, "b": "x"}) == b"nullx"


def test_pitfall_1_only_new_clients_sign_unique_key_query() -> None:
    fields = {"key": "K", "topic": "T"}
    old = signed("alice", "12345678", fields) | {"_UNIQUE_KEY_QUERY": "true"}
    assert verify(SECRET, old, b"", 399)
    assert not verify(SECRET, old, b"", 400)
    new = signed("alice", "12345678", {**fields, "_UNIQUE_KEY_QUERY": "true"})
    assert verify(SECRET, new, b"", 400)


@pytest.mark.parametrize(("fields", "body"), [({}, b""), ({}, b"body"), ({"a": "1"}, b""), ({"a": ""}, b"")])
def test_pitfall_3_either_part_may_be_empty(fields: dict[str, str], body: bytes) -> None:
    assert signed_bytes(fields, body) == "".join(fields.values()).encode() + body
    assert verify(SECRET, fields | {"Signature": sign("12345678", fields, body)}, body, 479)


def test_pitfall_16_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(signature, "compare_digest", compare)
    fields = signed("alice", "12345678", {"topic": "T"})
    assert verify(SECRET, fields, b"", 479)
    assert not verify(SECRET, fields, b"other", 479)
    assert len(compared) == 2


@pytest.mark.parametrize("wrong", [None, "", "x", "ü", "\ud800", "kPUKNh0ggWAX+mpM4EHuxapYvSo"])
def test_wrong_signatures(wrong: str | None) -> None:
    assert not verify(SECRET, {"AccessKey": "rocketmq2", "topic": "T", "Signature": wrong}, b"hello", 479)


def test_half_of_a_surrogate_pair_is_a_question_mark() -> None:
    assert signed_bytes({"a": "\ud800"}) == b"?"


def test_the_table_of_orders_is_bounded() -> None:
    for number in range(1_000):
        signed_bytes({f"a{number}": "1", "b": "2"})
    assert 0 < signature.remembered_orders() <= signature.ORDERS_MAX


def test_an_empty_access_key_can_be_signed() -> None:
    """C++ clients without credentials sign with an empty key."""
    fields = {"AccessKey": "", "topic": "T"}
    assert verify(SecretKey(b""), fields | {"Signature": sign("", fields)}, b"", 479)
