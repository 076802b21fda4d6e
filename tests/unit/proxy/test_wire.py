"""The generated messages: up to date, and compatible with RocketMQ's on the wire."""

import subprocess
import sys
from pathlib import Path

import pytest

from proxy.wire import messaging_pb2 as pb
from tests.support.imports import ROOT

WIRE = Path("proxy", "wire")
UNARY, SERVER, BOTH = (False, False), (False, True), (True, True)
"""Which side of an RPC streams: (client, server)."""


def test_generating_again_changes_nothing(tmp_path: Path) -> None:
    """`make stubs` after a change of messaging.proto."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={tmp_path}"]
    command += [f"--pyi_out={tmp_path}", str(WIRE / "messaging.proto")]
    subprocess.run(command, cwd=ROOT, check=True)
    for name in ("messaging_pb2.py", "messaging_pb2.pyi"):
        assert (tmp_path / WIRE / name).read_text() == (ROOT / WIRE / name).read_text(), name


def test_every_rpc_is_there() -> None:
    methods = pb.DESCRIPTOR.services_by_name["MessagingService"].methods
    assert len(methods) == 17
    streaming = {each.name: (each.client_streaming, each.server_streaming) for each in methods}
    assert {name: kind for name, kind in streaming.items() if kind != UNARY} == {
        "PullMessage": SERVER,
        "ReceiveMessage": SERVER,
        "Telemetry": BOTH,
    }


@pytest.mark.parametrize(
    ("name", "fields"),
    {
        "SystemProperties": 22,
        "Settings": 9,
        "Subscription": 7,
        "ReceiveMessageRequest": 8,
        "ChangeInvisibleDurationRequest": 7,
        "TelemetryCommand": 9,
        "SendResultEntry": 5,
        "SyncLiteSubscriptionRequest": 6,
    }.items(),
)
def test_the_field_numbers_have_no_gaps(name: str, fields: int) -> None:
    found = pb.DESCRIPTOR.message_types_by_name[name].fields
    assert [field.number for field in found] == list(range(1, fields + 1))


def test_a_message_is_these_bytes() -> None:
    """Written by hand from the field numbers. Message: topic 1 (name 2), user_properties 2, system_properties
    3, body 4. SystemProperties: tag 1, keys 2, message_id 3, message_type 6, queue_id 13, message_group 17,
    priority 22."""
    message = pb.Message(
        topic=pb.Resource(name="T"),
        user_properties={"a": "b"},
        system_properties=pb.SystemProperties(
            tag="g",
            keys=["k"],
            message_id="m",
            message_type=pb.FIFO,
            queue_id=5,
            message_group="o",
            priority=0,
        ),
        body=b"x",
    )
    system = b"\x0a\x01g\x12\x01k\x1a\x01m\x30\x02\x68\x05\x8a\x01\x01o\xb0\x01\x00"
    expected = (
        b"\x0a\x03\x12\x01T\x12\x06\x0a\x01a\x12\x01b" + b"\x1a%c" % len(system) + system + b"\x22\x01x"
    )
    assert message.SerializeToString(deterministic=True) == expected
    assert pb.Message.FromString(expected) == message


def test_no_symbol_is_one_of_rocketmqs_package() -> None:
    """Two definitions of one symbol in a process are refused by protobuf."""
    assert pb.DESCRIPTOR.package == "keelmq.rocketmq.v2"
    assert pb.DESCRIPTOR.name == "proxy/wire/messaging.proto"
