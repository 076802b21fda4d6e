"""Replies to sends: templates of the JSON of a success, in which only a few values change, and refusals."""

import re
import struct
from binascii import hexlify
from collections.abc import Sequence
from typing import Final

from broker.admission.send_gate import PutRefused
from broker.put.send_commands import SendCommand
from broker.put.success_frames import Texts
from keelmq.remoting.codes import VERSION
from keelmq.remoting.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, encode

ALWAYS: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
"""extFields that every reply has."""
_HEAD: Final = b'{"code":0,"extFields":{"msgId":"'
_TAIL: Final = b'","queueId":"%d","queueOffset":"%d","transactionId":"%b",' + (
    b'"MSG_REGION":"DefaultRegion","TRACE_ON":"true"},"flag":1,"language":"PYTHON","opaque":%%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
)
BATCH_REPLY: Final = _HEAD + b"%b" + _TAIL
"""Header of a batch's success, to be formatted with (message ids, queueId, queueOffset, key, opaque)."""

_VALUE = re.compile(rb"%(?:016X|b|d)")


def reply_template(store_host: bytes) -> bytes:
    """Returns the header of a success, to format with (log offset, queueId, queueOffset, key, opaque)."""
    return _HEAD + store_host.hex().upper().encode() + b"%016X" + _TAIL


def reply_texts(store_host: bytes) -> Texts:
    """Returns the pieces of that template, for success_frames()."""
    one, two, three, four, five, six = _VALUE.split(reply_template(store_host))
    return one, two, three, four, five, six


def message_ids(store_host: bytes, offsets: Sequence[int]) -> bytes:
    """Returns the message ids of a batch, joined by commas; each as record.offset_message_id() makes it."""
    host = hexlify(store_host).upper()
    places = hexlify(struct.pack(f">{len(offsets)}q", *offsets), b",", 8).upper()
    return host + places.replace(b",", b"," + host)


def refusal(command: SendCommand, refused: PutRefused) -> bytes | None:
    """Returns the refusal as a frame; None: the request was oneway."""
    if command.flag & FLAG_ONEWAY:
        return None
    code, remark = refused
    return encode(RemotingCommand(int(code), command.opaque, FLAG_RESPONSE, remark, dict(ALWAYS)))
