"""Codec: the messages between members and the commands in the journal, as MessagePack; never a pickle.

Messages are decoded to typed values, so that wrong types, unknown kinds and unknown fields are refused here.
Arrays are decoded to tuples, as the library expects (it checks isinstance and compares with ==). The field
names on the wire are pysyncobj's, because its dicts are encoded without a conversion. Tags stay as the first
release named them, also where the class has the term of Raft or etcd: members refuse a tag that they do not
know.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

NUMBER_MAX = 2**62
Number = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Entry = tuple[bytes, Number, Number]  # (command, index, term)

COMMAND_REGULAR, COMMAND_NO_OP = 0, 1  # first byte of a command; the other kinds of the library are not used


class CodecError(Exception):
    """A correct member never sends or stores these bytes."""


class AppendEntries(Struct, tag="append_entries", tag_field="type", forbid_unknown_fields=True):
    """Regular append (prev_index set), or snapshot chunk / heartbeat (prev_index UNSET, serialized set)."""

    term: Number
    commit_index: Number
    entries: tuple[Entry, ...] = ()
    prev_index: Number | UnsetType | None = field(name="prevLogIdx", default=UNSET)
    prev_term: Number | UnsetType | None = field(name="prevLogTerm", default=UNSET)
    serialized: tuple[bytes, bool, bool] | None = None  # (chunk, is_first, is_last)


class Acknowledgement(Struct, tag="next_node_idx", tag_field="type", forbid_unknown_fields=True):
    """`term` is added here: the library sends acknowledgements without it (guard rule 2)."""

    next_index: Number = field(name="next_node_idx")
    reset: bool
    success: bool
    term: Number = field(name="t")


class RequestVote(Struct, tag="request_vote", tag_field="type", forbid_unknown_fields=True):
    """RequestVote of the raft paper; the sender is the candidate."""

    term: Number
    last_log_index: Number
    last_log_term: Number


class ResponseVote(Struct, tag="response_vote", tag_field="type", forbid_unknown_fields=True):
    """A granted vote; a refused one is not answered."""

    term: Number


class TermHint(Struct, tag="term_hint", tag_field="type", forbid_unknown_fields=True):
    """Not in the library: sends the newer term to a leader of an old term, which the library ignores."""

    term: Number


class PreVoteRequest(Struct, tag="pre_vote_request", tag_field="type", forbid_unknown_fields=True):
    """Asks whether the sender could win an election in the next term (Raft dissertation, 9.6)."""

    term: Number
    last_log_index: Number
    last_log_term: Number


class PreVoteGrant(Struct, tag="pre_vote_grant", tag_field="type", forbid_unknown_fields=True):
    """A granted pre-vote; a refused one is not answered."""

    term: Number


class VoteEligibility(Struct, frozen=True, tag="standing", tag_field="type", forbid_unknown_fields=True):
    """Whether the sender may vote; the file raft.standing has the same content."""

    incarnation: str
    state: Literal["new", "promised", "member"]
    member_list: tuple[tuple[str, str], ...]  # (member, incarnation) that it promised, or is a member by


class RejoinRequest(Struct, tag="welcome_request", tag_field="type", forbid_unknown_fields=True):
    """Asks the leader to commit the rejoin of this incarnation: the sender's directory was empty."""

    incarnation: str


class MemberListNote(Struct, tag="roster", tag_field="type", forbid_unknown_fields=True):
    """Sent on a new link: the sender's member list, and the index of its last change (0: configuration)."""

    index: Number
    members: tuple[str, ...]


class TimeoutNow(Struct, tag="hand_over", tag_field="type", forbid_unknown_fields=True):
    """The leader of this term asks a member that has its whole log to campaign at once (Raft, 3.10)."""

    term: Number


class VerifyLeader(Struct, tag="verify_leader", tag_field="type", forbid_unknown_fields=True):
    """The leader of this term asks whether it still leads (read_index.py). Older releases drop it."""

    term: Number
    check: Number


class LeaderVerified(Struct, tag="leader_verified", tag_field="type", forbid_unknown_fields=True):
    """The sender may vote, and had elected no leader in a later term when it got this check."""

    term: Number
    check: Number


class Ping(Struct, tag="ping", tag_field="type", forbid_unknown_fields=True):
    """Keeps an idle link open, so that the first vote request after a while is not lost."""


class Hello(Struct, tag="hello", tag_field="type", forbid_unknown_fields=True):
    """The first frame in each direction. A different `members_hash` is only logged."""

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
    | VoteEligibility
    | RejoinRequest
    | MemberListNote
    | TimeoutNow
    | VerifyLeader
    | LeaderVerified
    | Ping
    | Hello
)

_encoder = msgspec.msgpack.Encoder()
_message_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
_command_decoder = msgspec.msgpack.Decoder(tuple[int, tuple[bytes]])


def encode(value: object) -> bytes:
    """Encodes a message of this module, a dict of the library, or plain values. Raises TypeError."""
    return _encoder.encode(value)


def decode_message(frame: bytes) -> Message:
    """Parses a message. Raises CodecError; a log entry with an unused command kind is refused as well."""
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
    """Returns the stored call of our one replicated method: (method number, (batch,)). Raises CodecError."""
    try:
        return _command_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CodecError(f"not a command: {error}") from None


def to_library(message: AppendEntries | Acknowledgement | RequestVote | ResponseVote) -> dict[str, Any]:
    """Returns the dict that pysyncobj's message handler expects."""
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
