"""The captured requests of Java brokers and tools, played to our controller: it answers what Java's answered.

And what no Java program sends: missing and garbled fields and bodies are answered 2005, never with silence.
"""

import asyncio
import struct
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand, decode, decode_body, encode
from keelmq.remoting.dispatch import Dispatcher
from keelmq.remoting.lenient_json import load_lenient
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.route import BROKER_HEARTBEAT, BrokerHeartbeatRequest
from tests.support.controller_fakes import Bench, FakePeer

FRAMES = Path(__file__).parents[4] / "fixtures" / "frames"
FX = {"cluster_name": "FxCluster", "broker_name": "broker-a"}
OURS = {
    1004: {"syncStateSetEpoch"},  # what a broker of ours reads beside the set
    1005: {"selfId", "raftAddress", "keelmqVersion"},  # for addController, and for status
}


def captured(name: str) -> RemotingCommand:
    data = (FRAMES / f"{name}.bin").read_bytes()
    (length,) = struct.unpack_from(">i", data)
    assert length == len(data) - 4
    return decode(data[4:])


class Stage:
    """One controller, as the captured one was configured, and the connections of its callers."""

    def __init__(self, tmp_path: Path) -> None:
        self.bench = Bench(tmp_path, controllerDLegerPeers="n0-127.0.0.1:18778")
        self.peer = Connection(1)
        self.dispatcher = Dispatcher(
            self.bench.plugin.table, name="test", bad_request_code=ResponseCode.CONTROLLER_INVALID_REQUEST
        )

    async def send(self, command: RemotingCommand) -> RemotingCommand:
        self.peer.frames.clear()
        frame = self.dispatcher.request(command, self.peer)
        if frame is not None:
            return decode(frame[4:])
        answers: list[RemotingCommand] = []
        for _ in range(50):
            await asyncio.sleep(0)
            answers += [each for each in self.peer.pushed() if each.is_response]  # not the 1008s
        (answer,) = answers
        return answer

    async def heartbeat(self, broker_id: int, address: str) -> None:
        header = BrokerHeartbeatRequest(
            **FX,
            broker_id=broker_id,
            broker_addr=address,
            heartbeat_timeout_mills=10_000,
            epoch=1,
            min_in_sync_replicas=1,
        )
        await self.bench.ask(BROKER_HEARTBEAT, None, self.peer, **header.model_dump())

    async def play(self, name: str) -> None:
        """The captured request gets the captured answer."""
        want, got = captured(f"{name}.resp"), await self.send(captured(f"{name}.req"))
        assert (got.code, got.opaque) == (want.code, want.opaque), name
        extra = got.ext_fields.keys() - want.ext_fields.keys()
        assert extra <= OURS.get(captured(f"{name}.req").code, set()), name
        assert {key: got.ext_fields[key] for key in want.ext_fields} == dict(want.ext_fields), name
        assert plain(got.body) == plain(want.body), name
        if want.remark is not None:
            assert got.remark is not None and got.remark.startswith(want.remark), name


class Connection(FakePeer):
    """A FakePeer that a Dispatcher serves."""

    in_flight = in_flight_bytes = 0


def plain(body: bytes) -> Any:
    """Java writes number keys without quotes."""
    if not body:
        return None
    value = load_lenient(body)
    group = value.get("brokerMemberGroup") if isinstance(value, dict) else None
    if group:
        group["brokerAddrs"] = {str(key): each for key, each in group["brokerAddrs"].items()}
    return value


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


async def test_a_java_group_lives_its_captured_life(stage: Stage) -> None:
    await stage.play("1005-controller-metadata-broker")
    await stage.play("1012-get-next-broker-id-broker-1")
    await stage.play("1013-apply-broker-id-broker-1")
    await stage.play("1003-register-broker-to-controller-broker-1")
    for name in ("904-broker-heartbeat-broker-1", "904-broker-heartbeat-broker-2"):
        assert stage.dispatcher.request(captured(f"{name}.req"), stage.peer) is None  # oneway
        await asyncio.sleep(0)
    await stage.play("1002-elect-master-broker-1")
    await stage.play("1004-get-replica-info-broker-1")
    await stage.play("1012-get-next-broker-id-broker-2")
    await stage.play("1013-apply-broker-id-broker-2")
    await stage.heartbeat(2, "127.0.0.1:18821")
    await stage.play("1003-register-broker-to-controller-broker-2")
    await stage.play("1004-get-replica-info-broker-2")
    await stage.play("1001-alter-sync-state-set-broker-1")
    await stage.play("1006-get-sync-state-data-mqadmin")
    await stage.play("1002-elect-master-mqadmin-1")
    await stage.play("1001-alter-sync-state-set-broker-rc2002-1")
    await stage.play("1001-alter-sync-state-set-broker-2")
    await stage.play("1002-elect-master-mqadmin-rc2011-1")
    await stage.play("1002-elect-master-mqadmin-rc2012-1")
    await stage.play("1005-controller-metadata-mqadmin")


async def test_the_notification_is_java_s(stage: Stage) -> None:
    """1008, field by field; the group's name is ours, since one connection may serve several."""
    await stage.bench.ask(
        wire.APPLY_BROKER_ID, **FX, applied_broker_id=1, register_check_code="127.0.0.1:18811;1"
    )
    await stage.heartbeat(1, "127.0.0.1:18811")
    stage.peer.frames.clear()
    await stage.bench.ask(wire.ELECT_MASTER, **FX, broker_id=1)
    (push,) = stage.peer.pushed()
    want = captured("1008-notify-role-changed-controller-1.req")
    assert (push.code, push.flag) == (want.code, want.flag)
    assert push.ext_fields == {**want.ext_fields, "brokerName": "broker-a"}
    assert plain(push.body) == plain(want.body)


async def test_1010_shows_what_java_s_tool_reads(stage: Stage) -> None:
    answer = await stage.send(captured("1010-get-controller-config-mqadmin.req"))
    ours = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
    java = captured("1010-get-controller-config-mqadmin.resp").body.decode()
    theirs = dict(line.split("=", 1) for line in java.splitlines())
    for key in ("controllerDLegerGroup", "enableElectUncleanMaster", "scanInactiveMasterInterval"):
        assert ours[key] == theirs[key]
    assert "controllerRaftSecret" not in ours


REQUESTS: list[tuple[int, dict[str, str], bytes]] = [
    (1001, {"brokerName": "b", "masterBrokerId": "1", "masterEpoch": "1"}, b'{"syncStateSet":[1]}'),
    (1002, {"brokerName": "b"}, b""),
    (1003, {"clusterName": "c", "brokerName": "b", "brokerId": "1", "brokerAddress": "a:1"}, b""),
    (1004, {"brokerName": "b"}, b""),
    (1011, {"brokerName": "b", "isCleanLivingBroker": "false"}, b""),
    (1012, {"clusterName": "c", "brokerName": "b"}, b""),
    (
        1013,
        {"clusterName": "c", "brokerName": "b", "appliedBrokerId": "1", "registerCheckCode": "a:1;1"},
        b"",
    ),
    (904, {"clusterName": "c", "brokerName": "b", "brokerAddr": "a:1", "brokerId": "1"}, b""),
]
MISSING = [
    (code, {key: value for key, value in fields.items() if key != left_out}, body)
    for code, fields, body in REQUESTS
    for left_out in fields
    if left_out != "isCleanLivingBroker"
]
GARBLED = [
    (code, {**fields, key: value}, body)
    for code, fields, body in REQUESTS
    for key, old in fields.items()
    for value in ("", "x", "99999999999999999999")
    if old.isdigit() or (value == "" and key != "isCleanLivingBroker")
]
BODIES = [
    *[(1001, REQUESTS[0][1], body) for body in (b"", b"null", b"[]", b"{", b'{"syncStateSet":["x"]}')],
    *[(1006, dict[str, str](), body) for body in (b"", b"[]", b"{}", b"[[]]", b"\xff")],
]


@pytest.mark.parametrize(("code", "fields", "body"), [*MISSING, *GARBLED, *BODIES])
async def test_what_is_missing_or_garbled_is_answered_2005(
    stage: Stage, code: int, fields: dict[str, str], body: bytes
) -> None:
    """Pitfalls 5, 8 and 46: no null pointer, no code of another request, no silence."""
    answer = await stage.send(RemotingCommand(code, 7, ext_fields=fields, body=body))
    assert (answer.code, answer.opaque) == (ResponseCode.CONTROLLER_INVALID_REQUEST, 7), answer.remark
    assert answer.remark
    assert stage.bench.replicator.events == []


@pytest.mark.parametrize(("code", "fields", "body"), REQUESTS)
async def test_invoke_time_and_unknown_fields_are_nobody_s_business(
    stage: Stage, code: int, fields: dict[str, str], body: bytes
) -> None:
    """Senders before 5.2 have no invokeTime; later ones may have more."""
    plainly = await Stage(Path("/nonexistent")).send(RemotingCommand(code, ext_fields=fields, body=body))
    more = {**fields, "invokeTime": "1700000000000", "newInJava6": "x"}
    answer = await stage.send(RemotingCommand(code, ext_fields=more, body=body))
    assert (answer.code, answer.remark, answer.body) == (plainly.code, plainly.remark, plainly.body)


async def test_codes_that_are_not_ours_3(stage: Stage) -> None:
    """Java's own internal ones (1014-1018) too."""
    for code in (1000, 1007, 1014, 1015, 1018, 19_999):
        assert (await stage.send(RemotingCommand(code))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_both_header_encodings_say_the_same(stage: Stage) -> None:
    from keelmq.remoting.command import SerializeType

    command = captured("1012-get-next-broker-id-broker-1.req")
    command.serialize_type = SerializeType.ROCKETMQ
    again = decode(encode(command)[4:])
    assert (await stage.send(again)).ext_fields["nextBrokerId"] == "1"


def test_bodies_are_read_as_java_writes_them() -> None:
    assert decode_body(list[str], b'["broker-a"]') == ["broker-a"]
