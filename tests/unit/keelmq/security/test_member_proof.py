"""Proofs of members: once, soon, for this code, these fields and this recipient."""

import pytest

from keelmq.security.core.member_proof import (
    NUMBERS,
    OTHER_RECIPIENT,
    PROOF,
    USER_SENDERS_MAX,
    MemberProofs,
    with_proof,
)
from keelmq.security.core.signature import signed, signed_bytes
from tests.unit.keelmq.security.parts import NOW_MS, SENDER

FIELDS = {"brokerName": "broker-a", "masterEpoch": "3"}


BEFORE = "the request was sent before"


def proven(
    number: int = 0,
    *,
    code: int = 1001,
    sent_ms: int = NOW_MS,
    recipient: str = "",
    sender: bytes = SENDER,
    uptime_ms: int = 0,
) -> dict[str, str]:
    fields = with_proof(
        code,
        FIELDS,
        b"body",
        now_ms=sent_ms,
        uptime_ms=uptime_ms,
        sender=sender,
        number=number,
        recipient=recipient,
    )
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


@pytest.mark.parametrize(
    ("age_ms", "when"),
    [(-30_060, "30.1 s in the future"), (30_060, "30.1 s ago"), (10**10, "10000000.0 s ago")],
)
def test_outside_of_the_window(age_ms: int, when: str) -> None:
    proofs = MemberProofs()
    assert proofs.check(1001, proven(sent_ms=NOW_MS - age_ms), b"body", NOW_MS) == (
        f"the request was sent {when} by the clock of this server, and 30 s is the limit: "
        "synchronize the clocks of both machines"
    )
    assert proofs.skew_ms == age_ms


def test_a_clock_that_is_set_wrong_later_is_known_before_a_restart() -> None:
    """Members that know each other stay connected, so nothing else tells it."""
    proofs = MemberProofs()
    for number, ahead_ms in enumerate((0, 3_600_000)):
        assert proofs.check(1001, proven(number, sent_ms=NOW_MS + ahead_ms), b"body", NOW_MS) is None
    assert proofs.skew_ms == -3_600_000 and proofs.is_skewed
    assert MemberProofs().check(1001, proven(2, sent_ms=NOW_MS + 3_600_000), b"body", NOW_MS), "a new start"


def test_fields_that_are_cut_differently_have_the_same_signature_but_no_proof() -> None:
    """What the proof is for: the signature covers the joined values only."""
    fields = proven()
    moved = {**fields, "brokerName": "broker-a3", "masterEpoch": ""}
    assert signed_bytes(moved, b"body") == signed_bytes(fields, b"body")
    for changed, body in ((moved, b"body"), ({**fields, "extra": ""}, b"body"), (fields, b"other")):
        why = MemberProofs().check(1001, changed, body, NOW_MS)
        assert why == "the proof of a member is for other fields, another body or another recipient"


def test_a_proof_is_for_its_recipient() -> None:
    fields, nobody = proven(recipient="10.0.0.7:10911"), proven(1)
    for address in ("", "10.0.0.8:10911"):
        proofs = MemberProofs()
        assert proofs.check(1001, fields, b"body", NOW_MS, address) == OTHER_RECIPIENT
        assert proofs.check(1001, nobody, b"body", NOW_MS, address) is None
    assert MemberProofs().check(1001, fields, b"body", NOW_MS, "10.0.0.7:10911") is None


class Uptime:
    """The monotonic clock of the server, and that of a sender, which began an hour earlier."""

    def __init__(self) -> None:
        self.ms = 5_000
        self.proofs = MemberProofs(uptime=lambda: self.ms)
        self.number = 0

    def send(self, *, after_ms: int = 0, on_the_way_ms: int = 1, wall_ms: int = NOW_MS) -> str | None:
        """Why the next request is refused. wall_ms: of both machines, or only of the sender."""
        self.ms += after_ms
        self.number += 1
        sent_ms = self.ms + 3_600_000 - on_the_way_ms
        fields = proven(self.number, uptime_ms=sent_ms, sent_ms=wall_ms)
        return self.proofs.check(1001, fields, b"body", NOW_MS)


@pytest.mark.parametrize("jump_ms", [-86_400_000, -60_000, 60_000, 86_400_000])
def test_a_wall_clock_that_jumps_does_not_separate_who_know_each_other(jump_ms: int) -> None:
    server = Uptime()
    assert server.send() is None
    for _ in range(100):
        assert server.send(after_ms=1_000, wall_ms=NOW_MS + jump_ms) is None
    new = proven(sender=b"new one.", sent_ms=NOW_MS + jump_ms)
    why = server.proofs.check(1001, new, b"body", NOW_MS)
    assert why is not None and "synchronize the clocks" in why


def test_a_request_that_is_held_back_is_refused() -> None:
    server = Uptime()
    assert server.send(on_the_way_ms=200) is None
    assert server.send(on_the_way_ms=1) is None
    assert server.send(on_the_way_ms=30_001) is None
    why = server.send(on_the_way_ms=30_002)
    assert why == "the request was 30.0 s longer on its way than others, and 30 s is the limit"
    assert server.send(on_the_way_ms=-30_001) is not None
    assert server.send(on_the_way_ms=1) is None


def test_monotonic_clocks_may_run_apart() -> None:
    """200 ppm for a week: two minutes."""
    for drift in (-5_000, 5_000):
        server, behind_ms = Uptime(), 0
        for minute in range(7 * 24 * 60):
            behind_ms = minute * 60_000 // drift
            assert server.send(after_ms=60_000, on_the_way_ms=1 + behind_ms) is None, minute
        assert abs(behind_ms) > 120_000


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
    with pytest.raises(ValueError, match="8 bytes"):
        with_proof(1, {}, b"", now_ms=1, uptime_ms=0, sender=b"short", number=0)


def test_the_memory_does_not_grow_with_the_requests() -> None:
    proofs = MemberProofs()
    for number in range(3 * NUMBERS):
        assert proofs.check(1001, proven(number), b"body", NOW_MS) is None
    assert len(proofs) == 1
    assert proofs.check(1001, proven(3 * NUMBERS - 1), b"body", NOW_MS) == BEFORE


def test_requests_may_overtake_each_other() -> None:
    proofs = MemberProofs()
    for number in (5, 3, 10, 4, 9 + NUMBERS, 11):
        assert proofs.check(1001, proven(number), b"body", NOW_MS) is None, number
    for number in (5, 3, 10, 4, 9 + NUMBERS, 11):
        assert proofs.check(1001, proven(number), b"body", NOW_MS) is not None, number
    assert proofs.check(1001, proven(10), b"body", NOW_MS) == BEFORE
    assert proofs.check(1001, proven(6), b"body", NOW_MS) == (
        f"the request arrived after {NUMBERS} later ones"
    )


def test_a_number_that_is_far_ahead_forgets_what_is_too_late_then() -> None:
    proofs = MemberProofs()
    assert proofs.check(1001, proven(0), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(2**64 - 1), b"body", NOW_MS) is None
    for number in (0, 2**64 - 1, 2**63):
        assert proofs.check(1001, proven(number), b"body", NOW_MS) is not None


def test_senders_have_numbers_of_their_own() -> None:
    proofs = MemberProofs()
    for sender in (b"sender 1", b"sender 2"):
        assert proofs.check(1001, proven(sender=sender), b"body", NOW_MS) is None
        assert proofs.check(1001, proven(sender=sender), b"body", NOW_MS) == BEFORE


def test_the_memory_of_senders_is_bounded_and_a_full_one_refuses() -> None:
    uptimes, senders = [0], [b"sender %d" % number for number in range(5)]
    proofs = MemberProofs(senders_max=3, uptime=lambda: uptimes[-1])
    for sender in senders[:3]:
        assert proofs.check(1001, proven(sender=sender), b"body", NOW_MS) is None
    why = proofs.check(1001, proven(sender=senders[3]), b"body", NOW_MS)
    assert why is not None and "no room for more" in why
    assert proofs.check(1001, proven(sender=senders[0]), b"body", NOW_MS) == BEFORE
    assert proofs.check(1001, proven(1, sender=senders[0]), b"body", NOW_MS) is None
    later_ms = NOW_MS + 30_001
    uptimes.append(30_001)
    assert proofs.check(1001, proven(sender=senders[4], sent_ms=later_ms), b"body", later_ms) is None
    assert len(proofs) == 1


def test_users_take_no_room_and_no_numbers_of_members() -> None:
    proofs = MemberProofs(senders_max=1)
    assert proofs.check(1001, proven(2**40), b"body", NOW_MS, user="alice") is None
    assert proofs.check(1001, proven(), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(1), b"body", NOW_MS) is None
    why = proofs.check(1001, proven(sender=b"sender 2"), b"body", NOW_MS, user="bob")
    assert why is not None and "no room for more" in why


def test_one_user_takes_no_room_of_others() -> None:
    proofs = MemberProofs()
    senders = [b"%08d" % number for number in range(USER_SENDERS_MAX + 1)]
    refused = [proofs.check(1001, proven(sender=each), b"body", NOW_MS, user="alice") for each in senders]
    assert refused[:-1] == [None] * USER_SENDERS_MAX
    assert refused[-1] is not None and "no room for more" in refused[-1]
    assert proofs.check(1001, proven(sender=b"sender 2"), b"body", NOW_MS, user="bob") is None


def test_the_senders_of_a_user_are_forgotten_whatever_time_it_names() -> None:
    """A member may go on after its clock has jumped; a user could keep its senders for ever with that."""
    uptimes = [0]
    proofs = MemberProofs(uptime=lambda: uptimes[-1])
    assert proofs.check(1001, proven(), b"body", NOW_MS, user="alice") is None
    why = proofs.check(1001, proven(1, sent_ms=10**13 - 1), b"body", NOW_MS, user="alice")
    assert why is not None and "synchronize the clocks" in why
    later_ms = NOW_MS + 30_001
    uptimes.append(30_001)
    assert proofs.check(1001, proven(sender=b"sender 2", sent_ms=later_ms), b"body", later_ms) is None
    assert len(proofs) == 1


def test_a_clock_that_goes_back_opens_nothing() -> None:
    uptimes = [0]
    proofs = MemberProofs(uptime=lambda: uptimes[-1])
    assert proofs.check(1001, proven(), b"body", NOW_MS) is None
    later_ms = NOW_MS + 120_000
    uptimes.append(120_000)
    assert proofs.check(1001, proven(sender=b"sender 2", sent_ms=later_ms), b"body", later_ms) is None
    assert len(proofs) == 1  # the first one is forgotten
    why = proofs.check(1001, proven(), b"body", NOW_MS)
    assert why is not None and "before this program began" in why


def test_a_clock_that_was_ahead_at_the_start_refuses_nobody_once_it_is_right() -> None:
    """A machine whose clock was set an hour ahead starts, and then NTP sets it right."""
    proofs = MemberProofs(not_before_ms=NOW_MS + 3_600_000)
    assert proofs.check(1001, proven(sent_ms=NOW_MS), b"body", NOW_MS + 3_600_000) is not None
    assert proofs.check(1001, proven(sent_ms=NOW_MS), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(sender=b"sender 2", sent_ms=NOW_MS - 1), b"body", NOW_MS + 1) is not None


@pytest.mark.parametrize("back_ms", [1, 5_000, 30_000])
def test_a_clock_that_is_set_back_a_little_lets_in_nothing_from_before_the_start(back_ms: int) -> None:
    proofs = MemberProofs(not_before_ms=NOW_MS)
    now_ms = NOW_MS + 100 - back_ms
    assert proofs.check(1001, proven(sent_ms=NOW_MS - 1), b"body", now_ms) is not None
    assert proofs.check(1001, proven(sent_ms=NOW_MS + 100), b"body", now_ms) is None, "its clock is right"


def test_requests_from_before_the_start_are_refused() -> None:
    proofs = MemberProofs(not_before_ms=NOW_MS)
    why = proofs.check(1001, proven(sent_ms=NOW_MS - 1), b"body", NOW_MS)
    assert why is not None and "synchronize the clocks" in why
    assert proofs.check(1001, proven(sent_ms=NOW_MS), b"body", NOW_MS) is None


def test_one_request_too_late_is_refused() -> None:
    proofs = MemberProofs()
    assert proofs.check(1001, proven(NUMBERS), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(0), b"body", NOW_MS) == (
        f"the request arrived after {NUMBERS} later ones"
    )
    assert proofs.check(1001, proven(1), b"body", NOW_MS) is None


def test_a_sender_that_is_heard_is_not_forgotten_when_the_clock_jumps_ahead() -> None:
    uptime = [0]
    proofs = MemberProofs(uptime=lambda: uptime[0])
    assert proofs.check(1001, proven(0), b"body", NOW_MS) is None
    later = NOW_MS + 90_000
    other = proven(sender=b"another1", sent_ms=later)
    assert proofs.check(1001, other, b"body", later) is None  # forgets who is silent
    assert len(proofs) == 2
    assert proofs.check(1001, proven(1), b"body", later) is None


def test_a_sender_is_remembered_until_its_latest_request_is_too_old() -> None:
    """Its wall clock went back in between, and the server's monotonic clock runs ahead of its wall clock."""
    uptime = [0]
    proofs = MemberProofs(uptime=lambda: uptime[0])
    assert proofs.check(1001, proven(0), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(1, sent_ms=NOW_MS - 5_000), b"body", NOW_MS) is None
    uptime[0], now_ms = 31_000, NOW_MS + 27_000
    assert proofs.check(1001, proven(sender=b"another1", sent_ms=now_ms), b"body", now_ms) is None
    assert len(proofs) == 2
    assert proofs.check(1001, proven(0), b"body", now_ms) is not None


def test_requests_from_before_the_start_are_refused_of_a_sender_that_is_known_again() -> None:
    """Another run of this server may have used the numbers below the first one that arrives. Overtaken ones
    are taken, and so is everything that the sender sends after its wall clock was set back."""
    proofs = MemberProofs(not_before_ms=NOW_MS)
    assert proofs.check(1001, proven(100, sent_ms=NOW_MS), b"body", NOW_MS) is None
    why = proofs.check(1001, proven(99, sent_ms=NOW_MS - 1), b"body", NOW_MS)
    assert why is not None and "before this program began" in why
    assert proofs.check(1001, proven(98, sent_ms=NOW_MS), b"body", NOW_MS) is None
    assert proofs.check(1001, proven(101, sent_ms=NOW_MS - 3_600_000), b"body", NOW_MS) is None
