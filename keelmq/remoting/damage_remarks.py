"""The remark of a response that refuses a damaged message: what a broker writes and a client reads.

    message 5 of topic T, queue 0, is damaged: CommitLog 1470..1764: its checksum is wrong; it is ...

The code is SYSTEM_ERROR, as RocketMQ's clients expect for a pull that fails. The remark is for people; our
client takes the offsets and the reason from it, so that it can pass the message.
"""

import re
from typing import Final, NamedTuple

_HINT: Final = (
    "; it is served again when it was fetched from a replica that has it, and keelmq repair can set a mark"
    " that consumers pass"
)
_MESSAGE: Final = re.compile(
    r"messages? (\d+)(?: to (\d+))? of topic (\S+), queue (\d+), is damaged: CommitLog (\d+)\.\.(\d+): (.*?)"
    + re.escape(_HINT)
)


class DamagedMessage(NamedTuple):
    """queue_offset, next_offset: of the messages of a damaged record, the latter exclusive; a batch has
    several, and may begin before the requested offset. start, end: CommitLog offsets of what is damaged, end
    exclusive. reason: what is wrong with it."""

    topic: str
    queue_id: int
    queue_offset: int
    next_offset: int
    start: int
    end: int
    reason: str


def message_remark(damaged: DamagedMessage) -> str:
    """Returns the remark about a damaged message, or the messages of a damaged batch."""
    topic, queue_id, first, next_offset, start, end, reason = damaged
    last = next_offset - 1
    messages = f"message {first}" if first == last else f"messages {first} to {last}"
    return record_remark(f"{messages} of topic {topic}, queue {queue_id},", start, end, reason)


def record_remark(what: str, start: int, end: int, reason: str) -> str:
    """Returns the remark about a damaged record that is not read as a message of a queue. what: its name."""
    return f"{what} is damaged: CommitLog {start}..{end}: {reason}{_HINT}"


def damaged_message(remark: str) -> DamagedMessage | None:
    """Returns the message that a remark names as damaged, or None."""
    found = _MESSAGE.search(remark)
    if found is None:
        return None
    first, last, topic, queue_id, start, end, reason = found.groups()
    behind = int(last or first) + 1
    return DamagedMessage(topic, int(queue_id), int(first), behind, int(start), int(end), reason)
