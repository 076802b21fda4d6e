"""The replies to sends. Successes are bytes whose JSON is the same each time, but for a few values."""

import re
import struct
from binascii import hexlify
from collections.abc import Sequence
from typing import Final

import msgspec

from broker.handlers.send_commands import SendCommand
from broker.handlers.success_frames import Texts
from broker.handlers.writer import Refused
from remoting.codes import VERSION
from remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, encode

ALWAYS: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""extFields of every reply."""
_HEAD: Final = b'{"code":0,"extFields":{"msgId":"'
_TAIL: Final = b'","queueId":"%d","queueOffset":"%d","transactionId":"%b",' + (
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)
OF_A_BATCH: Final = _HEAD + b"%b" + _TAIL
"""For % (message ids, queueId, queueOffset, key, opaque)."""

_VALUE = re.compile(rb"%(?:016X|b|d)")


def of_one(store_host: bytes) -> bytes:
    """For % (CommitLog offset, queueId, queueOffset, key, opaque)."""
    return _HEAD + store_host.hex().upper().encode() + b"%016X" + _TAIL


def of_many(store_host: bytes) -> Texts:
    """The same in pieces."""
    one, two, three, four, five, six = _VALUE.split(of_one(store_host))
    return one, two, three, four, five, six


def message_ids(store_host: bytes, offsets: Sequence[int]) -> bytes:
    """Of a batch: each as record.offset_message_id() has it, with commas between them."""
    host = hexlify(store_host).upper()
    places = hexlify(struct.pack(f">{len(offsets)}q", *offsets), b",", 8).upper()
    return host + places.replace(b",", b"," + host)


def key_text(key: bytes) -> bytes:
    """As it stands in JSON, without the quotation marks."""
    if key.isalnum():  # of bytes: the test of text looks every character up
        return key
    return msgspec.json.encode(key.decode("utf-8", "replace"))[1:-1]


def refusal(command: SendCommand, refused: Refused) -> bytes | None:
    """None: oneway."""
    if command.flag & FLAG_ONEWAY:
        return None
    code, remark = refused
    return encode(RemotingCommand(int(code), command.opaque, FLAG_RESPONSE, remark, dict(ALWAYS)))
