"""HeldAcknowledgements: acknowledgements that are sent only when the confirmed entries are durable. Pure."""

from collections.abc import Iterator

from namesrv.plugins.controller.raft.codec import Acknowledgement


class HeldAcknowledgements:
    """Acknowledgements by member, in the order of hold(). Raft thread."""

    def __init__(self) -> None:
        self._held: dict[str, list[Acknowledgement]] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, member: str, ack: Acknowledgement) -> None:
        """Queues an acknowledgement for this member until release()."""
        self._held.setdefault(member, []).append(ack)

    def release(self) -> Iterator[tuple[str, Acknowledgement]]:
        """Yields and removes all acknowledgements, without those that a later one covers. Call it after the
        journal was synced."""
        held, self._held = self._held, {}
        for member, acks in held.items():
            for ack, following in zip(acks, [*acks[1:], None], strict=True):
                if following is None or not _covers(following, ack):
                    yield member, ack


def _covers(later: Acknowledgement, ack: Acknowledgement) -> bool:
    """Returns whether `later` confirms everything that `ack` confirms."""
    alike = (ack.success, ack.reset) == (later.success, later.reset)
    return alike and ack.term == later.term and later.next_index >= ack.next_index
