"""Suite codec: headers and bodies to bytes and back, in J."""

import json

import msgspec

from broker.put.send_commands import SendCommandV2
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.command import RemotingCommand, SerializeType, decode, encode, response_frame
from keelmq.remoting.operations.broker import SendMessageResponse
from tests.bench.frames import EXT_FIELDS, send_frame, send_header
from tests.bench.report import Measurement, Results
from tests.bench.units import in_j


def run() -> Results:
    header, payload = send_header(), send_frame(128)[4:]
    typed = msgspec.json.Decoder(SendCommandV2, strict=False).decode
    command = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2, opaque=7, ext_fields=dict(EXT_FIELDS), body=b"x" * 128
    )
    binary = RemotingCommand(
        RequestCode.SEND_MESSAGE_V2,
        opaque=7,
        ext_fields=dict(EXT_FIELDS),
        body=b"x" * 128,
        serialize_type=SerializeType.ROCKETMQ,
    )
    binary_payload = encode(binary)[4:]
    answer = SendMessageResponse(msg_id="7F00000100002A9F0000000000000000", queue_id=0, queue_offset=42)
    works = {
        "typed_header": lambda: typed(header),
        "decode_json": lambda: decode(payload),
        "encode_json": lambda: encode(command),
        "decode_rocketmq": lambda: decode(binary_payload),
        "encode_rocketmq": lambda: encode(binary),
        "response_frame": lambda: response_frame(7, 0, None, answer),
        "stdlib_dumps": lambda: json.dumps(EXT_FIELDS),
    }
    j_us, costs = in_j(*works.values())
    return {name: Measurement(cost, "J", j_us, cost) for name, cost in zip(works, costs, strict=True)}
