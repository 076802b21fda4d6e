"""Proofs of members: once, soon, for this code, these fields and this recipient."""

import pytest

from keelmq.security.core.member_proof import PROOF, MemberProofs, with_proof
from keelmq.security.core.signature import signed, signed_bytes
from tests.unit.keelmq.security.parts import NOW_MS

FIELDS = {"brokerName": "broker-a", "masterEpoch": "3"}


def nonce(number: int = 0) -> bytes:
    return number.to_bytes(16, "big")


def proven(
    number: int = 0, *, code: int = 1001, sent_ms: int = NOW_MS, recipient: str = ""
) -> dict[str, str]:
    fields = with_proof(code, FIELDS, b"body", now_ms=sent_ms, nonce=nonce(number), recipient=recipient)
    return signed("inner", "inner-secret", fields, b"body")


def test_a_proof_holds_once() -> None:
    proofs = MemberProofs()
    assert proofs.check(1001, proven(), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(), b"body", NOW_MS + 1) == "the request was sent before"
    assert proofs.check(1001, proven(1), b"body", NOW_MS) is None


def test_a_proof_is_for_one_code() -> None:
    assert MemberProofs().check(1011, proven(), b"body", NOW_MS) == "the proof of a member is for code 1001"


@pytest.mark.parametrize("age_ms", [-30_000, 0, 30_000])
def test_within_the_window(age_ms: int) -> None:
    assert MemberProofs().check(1001, proven(sent_ms=NOW_MS - age_ms), b"body", NOW_MS) is None


@pytest.mark.parametrize("age_ms", [-30_001, 30_001, 10**10])
def test_outside_of_the_window(age_ms: int) -> None:
    why = MemberProofs().check(1001, proven(sent_ms=NOW_MS - age_ms), b"body", NOW_MS)
    assert why is not None and "30000 ms is the limit" in why


def test_fields_that_are_cut_differently_have_the_same_signature_but_no_proof() -> None:
    """What the proof is for: the signature covers the joined values only."""
    fields = proven()
    moved = {**fields, "brokerName": "broker-a3", "masterEpoch": ""}
    assert signed_bytes(moved, b"body") == signed_bytes(fields, b"body")
    for changed, body in ((moved, b"body"), ({**fields, "extra": ""}, b"body"), (fields, b"other")):
        why = MemberProofs().check(1001, changed, body, NOW_MS)
        assert why == "the proof of a member is for other fields, another body or another recipient"


def test_a_proof_is_for_its_recipient() -> None:
    fields = proven(recipient="controller")
    assert MemberProofs().check(1001, fields, b"body", NOW_MS) is not None
    assert MemberProofs(recipients=frozenset({"controller", ""})).check(1001, fields, b"body", NOW_MS) is None


@pytest.mark.parametrize(
    "proof", ["x", "1001:1:2:3", "1001:1767225600000:" + "0" * 32 + ":" + "G" * 64, "١:" + "0" * 13, ":::"]
)
def test_malformed_proofs(proof: str) -> None:
    assert MemberProofs().check(1001, {PROOF: proof}, b"", NOW_MS) == "the proof of a member is malformed"


def test_nothing_may_stand_before_the_proof() -> None:
    """It must be the beginning of the signed bytes, or it could be cut out of other values."""
    assert MemberProofs().check(1001, {**proven(), "!": "1"}, b"body", NOW_MS) == (
        "the proof of a member is malformed"
    )


def test_a_missing_proof() -> None:
    assert MemberProofs().check(1001, FIELDS, b"", NOW_MS) == "the proof of a member is missing"
    with pytest.raises(ValueError, match="16 bytes"):
        with_proof(1, {}, b"", now_ms=1, nonce=b"short")


def test_the_memory_is_bounded_and_a_full_one_refuses() -> None:
    proofs = MemberProofs(nonces_max=3)
    for number in range(3):
        assert proofs.check(1001, proven(number), b"body", NOW_MS) is None
    why = proofs.check(1001, proven(3), b"body", NOW_MS)
    assert why is not None and "no room for more" in why
    assert proofs.check(1001, proven(0), b"body", NOW_MS) == "the request was sent before"
    later_ms = NOW_MS + 120_000
    assert proofs.check(1001, proven(4, sent_ms=later_ms), b"body", later_ms) is None
    assert len(proofs) == 1


def test_a_clock_that_goes_back_opens_nothing() -> None:
    proofs = MemberProofs()
    assert proofs.check(1001, proven(0), b"body", NOW_MS) is None
    later_ms = NOW_MS + 120_000
    assert proofs.check(1001, proven(1, sent_ms=later_ms), b"body", later_ms) is None
    why = proofs.check(1001, proven(0), b"body", NOW_MS)
    assert why == "the request was sent before this program began to remember requests"


def test_requests_from_before_the_start_are_refused() -> None:
    proofs = MemberProofs(not_before_ms=NOW_MS)
    assert proofs.check(1001, proven(sent_ms=NOW_MS - 1), b"body", NOW_MS) is not None
    assert proofs.check(1001, proven(sent_ms=NOW_MS), b"body", NOW_MS) is None
