"""How far the log is replicated: what consumers may read, and which sends may be acknowledged. Pure
arithmetic.

These are the rules; Mastership.advance_confirm_offset() (broker/ha/mastership.py) applies them. Acks are
{brokerId: max offset that it reported}; a member without an entry has no link. The master is never in acks:
its own copy is max_offset.
"""

from collections.abc import Collection, Mapping


def confirm_offset(
    current: int, *, max_offset: int, others: Collection[int], acks: Mapping[int, int], all_ack: bool
) -> int:
    """Returns the master's confirmOffset: never below `current`, never past a member that has not
    acknowledged.

    others: every member but the master, of the agreed set and of any set on its way to the controller. A
    member without a link, or with an ack at or below `current`, holds the present value: RocketMQ ignores
    such a member and moves past it. all_ack False: the whole log counts, as in RocketMQ since 5.2.
    """
    if not all_ack:
        return max(current, max_offset)
    lowest = max_offset
    for member in others:
        lowest = min(lowest, acks.get(member, 0))
    return max(current, lowest)


def replicated_offset(
    *, max_offset: int, others: Collection[int], acks: Mapping[int, int], copies: int
) -> int:
    """Returns the offset below which `copies` members of the SyncStateSet hold the log, the master included;
    0: there are too few members.

    Learners and second links of one slave do not count: they are not in `others`, and acks has one entry per
    id.
    """
    if copies <= 1:
        return max_offset
    held = sorted((acks.get(member, 0) for member in others), reverse=True)
    if len(held) < copies - 1:
        return 0
    return max(0, min(max_offset, held[copies - 2]))
