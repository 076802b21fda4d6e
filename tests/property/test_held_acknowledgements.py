"""Held acknowledgements: only one that the following one confirms as well is left out."""

from hypothesis import given
from hypothesis import strategies as st

from namesrv.plugins.controller.raft.codec import Acknowledgement
from namesrv.plugins.controller.raft.member import HeldAcknowledgements

ACKS = st.builds(
    Acknowledgement,
    next_index=st.integers(1, 3),
    reset=st.booleans(),
    success=st.booleans(),
    term=st.integers(1, 2),
)


@given(st.lists(st.tuples(st.sampled_from("ab"), ACKS), max_size=12))
def test_only_what_the_next_one_confirms_is_left_out(held: list[tuple[str, Acknowledgement]]) -> None:
    """Of another term, a refusal or a reset, it confirms nothing of what the one before confirmed."""
    acks = HeldAcknowledgements()
    for member, ack in held:
        acks.hold(member, ack)
    released = list(acks.release())
    for member in "ab":
        mine = [ack for name, ack in held if name == member]
        expected = [
            ack
            for ack, later in zip(mine, [*mine[1:], None], strict=False)
            if later is None
            or (later.term, later.reset, later.success) != (ack.term, ack.reset, ack.success)
            or later.next_index < ack.next_index
        ]
        assert [ack for name, ack in released if name == member] == expected
    assert not acks and list(acks.release()) == []
