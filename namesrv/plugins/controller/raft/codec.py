"""MessagePack for everything that crosses the wire or reaches the journal; a pickle is never parsed.

Messages are decoded to typed values, so a wrong shape, an unknown kind or an unknown field is refused before
any logic sees it. Arrays come back as tuples: the library looks at isinstance(x, tuple) and compares with ==.
Field names on the wire are pysyncobj's own, because its dicts are encoded as they are.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

NUMBER_MAX = 2**62
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Entry = tuple[bytes, Number, Number]  # (command, index, term)

COMMAND_REGULAR, COMMAND_NO_OP = 0, 1  # first byte of a command; the other kinds of the library are not used


class CodecError(Exception):
    """No correct member sends or stores that."""


class AppendEntries(Struct, tag="append_entries", tag_field="type", forbid_unknown_fields=True):
    """Regular append (prev_index set), or snapshot chunk / heartbeat (prev_index UNSET, serialized set)."""

    term: Number
    commit_index: Number
    entries: tuple[Entry, ...] = ()
    prev_index: Number | UnsetType | None = field(name="prevLogIdx", default=UNSET)
    prev_term: Number | UnsetType | None = field(name="prevLogTerm", default=UNSET)
    serialized: tuple[bytes, bool, bool] | None = None  # (chunk, is_first, is_last)


class Acknowledgement(Struct, tag="next_node_idx", tag_field="type", forbid_unknown_fields=True):
    """`term` is ours: the library sends acknowledgements without it (guard rule 2)."""

    next_index: Number = field(name="next_node_idx")
    reset: bool
    success: bool
    term: Number = field(name="t")


class RequestVote(Struct, tag="request_vote", tag_field="type", forbid_unknown_fields=True):
    term: Number
    last_log_index: Number
    last_log_term: Number


class ResponseVote(Struct, tag="response_vote", tag_field="type", forbid_unknown_fields=True):
    term: Number


class TermHint(Struct, tag="term_hint", tag_field="type", forbid_unknown_fields=True):
    """Ours: "my term is higher than yours"; the library stays silent in that case."""

    term: Number


class PreVoteRequest(Struct, tag="pre_vote_request", tag_field="type", forbid_unknown_fields=True):
    term: Number
    last_log_index: Number
    last_log_term: Number


class PreVoteGrant(Struct, tag="pre_vote_grant", tag_field="type", forbid_unknown_fields=True):
    term: Number


class Standing(Struct, frozen=True, tag="standing", tag_field="type", forbid_unknown_fields=True):
    """Whether the sender may vote (raft.standing); also what its directory says about that."""

    incarnation: str
    state: Literal["new", "promised", "member"]
    roster: tuple[tuple[str, str], ...]  # (member, incarnation) that it promised, or is a member by


class WelcomeRequest(Struct, tag="welcome_request", tag_field="type", forbid_unknown_fields=True):
    """To the leader: "my directory was empty; commit a welcome for this incarnation"."""

    incarnation: str


class RosterNote(Struct, tag="roster", tag_field="type", forbid_unknown_fields=True):
    """On a new link: who belongs to the group, and since which entry (0: since the configuration)."""

    index: Number
    members: tuple[str, ...]


class HandOver(Struct, tag="hand_over", tag_field="type", forbid_unknown_fields=True):
    """The leader of this term to a member that has its whole log: campaign now."""

    term: Number


class Ping(Struct, tag="ping", tag_field="type", forbid_unknown_fields=True):
    """Keeps an idle link alive, so that the first vote request after a quiet hour is not lost."""


class Hello(Struct, tag="hello", tag_field="type", forbid_unknown_fields=True):
    """First frame each way. `members_hash` differs while a member list is being changed: a warning only."""

    version: Number
    cluster_id: str
    sender: str
    receiver: str
    members_hash: str


Message = (
    AppendEntries
    | Acknowledgement
    | RequestVote
    | ResponseVote
    | TermHint
    | PreVoteRequest
    | PreVoteGrant
    | Standing
    | WelcomeRequest
    | RosterNote
    | HandOver
    | Ping
    | Hello
)

_encoder = msgspec.msgpack.Encoder()
_message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_command_decoder = msgspec.msgpack.Decoder(tuple[int, tuple[bytes]])


def encode(value: object) -> bytes:
    """A message of this module, a dict of the library, or plain values. TypeError for anything else."""
    return _encoder.encode(value)


def decode_message(frame: bytes) -> Message:
    """Raises CodecError. Log entries must carry a command kind that we use."""
    try:
        message = _message_decoder.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(str(error)) from None
    if isinstance(message, AppendEntries):
        for command, index, _ in message.entries:
            if command[:1] not in (b"\x00", b"\x01"):
                raise CodecError(f"entry {index} has command kind {command[:1]!r}")
    return message


def decode_command(data: bytes) -> tuple[int, tuple[bytes]]:
    """What the library stored for our one replicated method: (method number, (batch,)). Raises CodecError."""
    try:
        return _command_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(f"not a command: {error}") from None


def to_library(message: AppendEntries | Acknowledgement | RequestVote | ResponseVote) -> dict[str, Any]:
    """The dict that pysyncobj's message handler wants."""
    match message:
        case AppendEntries():
            return _append_to_library(message)
        case Acknowledgement():
            return {
                "type": "next_node_idx",
                "next_node_idx": message.next_index,
                "reset": message.reset,
                "success": message.success,
            }
        case RequestVote():
            return {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last_log_index,
                "last_log_term": message.last_log_term,
            }
        case ResponseVote():
            return {"type": "response_vote", "term": message.term}


def _append_to_library(message: AppendEntries) -> dict[str, Any]:
    common = {"type": "append_entries", "term": message.term, "commit_index": message.commit_index}
    if isinstance(message.prev_index, UnsetType):
        return common | {"serialized": message.serialized}
    prev_term = None if isinstance(message.prev_term, UnsetType) else message.prev_term
    return common | {
        "entries": message.entries,
        "prevLogIdx": message.prev_index,
        "prevLogTerm": prev_term,
    }
