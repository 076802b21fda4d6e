"""The send gate: one flag for the fast path, made from the rules that give the reasons."""

from collections.abc import Callable
from pathlib import Path

import pytest

from broker.admission.pending_replies import PendingReplies
from broker.admission.send_gate import DISK_FULL, HAND_OVER, REASONS, ROLE, PutRefused, SendGate
from broker.put.plain_sends import plain_sends
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.dispatch import fast_path_key
from keelmq.remoting.frame import whole_frames
from keelmq.runtime.clock import wall_ms
from tests.support.handler_context import send_gate
from tests.support.handler_parts import Broker
from tests.support.read_parts import send_frame
from tests.support.store_parts import FakePeer

LATER_MS = 60_000


def _close(gate: SendGate) -> None:
    gate.close(DISK_FULL, "the disk is full")


def _start_later(gate: SendGate) -> None:
    gate.configure(permits_write=True, accept_from_ms=wall_ms() + LATER_MS)


def _lose_replicas(gate: SendGate) -> None:
    gate.in_sync = 0


def _ask_for_replicas(gate: SendGate) -> None:
    gate.min_in_sync = 2


def _overload(gate: SendGate) -> None:
    gate.set_overload(7)


RULES: dict[str, tuple[Callable[[SendGate], None], int]] = {
    "a full disk": (_close, ResponseCode.SERVICE_NOT_AVAILABLE),
    "startAcceptSendRequestTimeStamp": (_start_later, ResponseCode.SYSTEM_ERROR),
    "fewer replicas": (_lose_replicas, ResponseCode.SYSTEM_ERROR),
    "more minInSyncReplicas": (_ask_for_replicas, ResponseCode.SYSTEM_ERROR),
    "overload": (_overload, ResponseCode.SYSTEM_BUSY),
}


@pytest.mark.parametrize("name", RULES)
def test_each_rule_refuses_on_both_paths(name: str, tmp_path: Path) -> None:
    """A message alone gets the reason; of several that one read brought none is stored."""
    broker, (refuse, code) = Broker(tmp_path), RULES[name]
    frames = whole_frames(send_frame(1, b"1") + send_frame(2, b"2"))
    sends = plain_sends(frames, fast_path_key(310), broker.dispatcher.fast_path[fast_path_key(310)][0], True)
    send_batched = broker.handlers.send.send_batched
    broker.send()  # the queue is there
    assert send_batched(sends, broker.peer)[0] == 2
    refuse(broker.gate)
    assert not broker.gate.accepts_all
    assert send_batched(sends, broker.peer) == (0, b"")
    reply = broker.send()
    assert reply is not None and reply.code == code
    assert broker.store.put_messages == 3


def test_a_rule_that_is_added_clears_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is made from refuse_first and refuse_last: a new rule goes there, and nowhere else."""
    gate = send_gate(is_open=True)
    new_rule = PutRefused(ResponseCode.SYSTEM_BUSY, "a new rule")
    for method in ("refuse_first", "refuse_last"):
        with monkeypatch.context() as patch:
            patch.setattr(SendGate, method, lambda self: new_rule)
            gate.min_in_sync = 1
            assert not gate.accepts_all
        gate.min_in_sync = 1
        assert gate.accepts_all


def test_a_withdrawn_reason_opens_it_again() -> None:
    gate = send_gate(is_open=True)
    gate.close(DISK_FULL, "full")
    gate.close(ROLE, "slave")
    gate.open(ROLE)
    assert not gate.accepts_all and gate.remark == "full"
    gate.open(DISK_FULL)
    assert gate.accepts_all and gate.refuse_all() is None


def test_a_new_gate_is_closed() -> None:
    assert not send_gate().accepts_all


def test_without_permission_to_write_every_message_takes_the_long_way() -> None:
    """There, only topics with an order are refused."""
    gate = send_gate(is_open=True)
    gate.configure(permits_write=False, accept_from_ms=0)
    assert not gate.accepts_all and gate.refuse_first() is None and gate.refuse_last() is None


@pytest.mark.parametrize("end", ["released", "timeout", "role change"])
def test_it_refuses_while_as_many_replies_wait_as_may_wait(end: str) -> None:
    gate = send_gate(is_open=True, wait=True)
    pending, peer = PendingReplies(gate, 2), FakePeer()
    success = b"\0\0\0\x10\0\0\0\x0c" + b'{"code":0,1}'
    pending.add(10, peer, success, 0)
    assert gate.accepts_all
    pending.add(20, peer, success, 0)
    refused = gate.refuse_last(waits=False)
    assert not gate.accepts_all and refused is not None and refused.code == ResponseCode.SYSTEM_BUSY
    assert "2 messages wait" in refused.remark
    assert gate.refuse_all() is None, "readiness: the next message may be taken"
    if end == "released":
        pending.release(10)
    elif end == "timeout":
        pending.expire(5_000, 1_000)
    else:
        pending.fail_all(ResponseCode.FLUSH_SLAVE_TIMEOUT, "gone")
    assert gate.accepts_all


@pytest.mark.parametrize("by", sorted(REASONS))
def test_every_reason_says_whether_the_role_is_settled(by: str) -> None:
    gate = send_gate(is_open=True)
    assert gate.role_is_settled
    gate.close(by, "why")
    assert not gate.writable and gate.remark_of(by) == "why"
    assert gate.role_is_settled is (by not in (ROLE, HAND_OVER))
    gate.close(DISK_FULL, "full")
    assert gate.role_is_settled is (by not in (ROLE, HAND_OVER)), "a second reason hides none"


def test_a_reason_that_the_table_lacks_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        send_gate().close("another", "why")
