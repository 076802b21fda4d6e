"""The offset message id: where a message was stored, as upper-case hex.

4 or 16 address bytes | i32 port | i64 CommitLog offset
"""

import ipaddress
import struct

from keelmq.remoting.address_text import join_address

_TAIL = struct.Struct(">iq")
_ADDRESS_BYTES = (4, 16)


def encode_offset_message_id(store_host: str, offset: int) -> str:
    """Returns the id, 32 hex digits or 56 for IPv6. store_host: "address:port", an IPv6 address in
    brackets."""
    address, _, port = store_host.rpartition(":")
    packed = ipaddress.ip_address(address.strip("[]")).packed
    return (packed + _TAIL.pack(int(port), offset)).hex().upper()


def decode_offset_message_id(text: str) -> tuple[str, int]:
    """Returns ("address:port", CommitLog offset). ValueError: the text is not an offset message id."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    address = raw[: -_TAIL.size]
    if len(address) not in _ADDRESS_BYTES:
        raise ValueError(f"{text!r} is not an offset message id of 32 or 56 hex digits")
    port, offset = _TAIL.unpack(raw[-_TAIL.size :])
    if not 0 < port <= 65_535 or offset < 0:
        raise ValueError(f"{text!r} is not an offset message id: port {port}, offset {offset}")
    host = str(ipaddress.ip_address(address))
    return join_address(host, port), offset
