"""Every request of a name server over TCP: what is asked, what is answered, byte for byte where the peer's
bytes are known (namesrv reference §5)."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.command import RemotingCommand, decode, decode_body, encode
from keelmq.remoting.operation import Call, OperationTable
from keelmq.remoting.operations.route import (
    NOTIFY_MIN_BROKER_ID_CHANGE,
    MinBrokerIdChangeRequest,
    TopicRouteData,
)
from keelmq.remoting.servers.tcp import TcpServer
from namesrv.app import Namesrv
from namesrv.handlers import queries
from tests.support.ports import free_port
from tests.unit.namesrv.test_namesrv_app import FRAMES, Wire, config, connect, until

A, B = "127.0.0.1:18811", "127.0.0.1:18821"


@asynccontextmanager
async def serving(tmp_path: Path, **keys: Any) -> AsyncIterator[tuple[Namesrv, Wire]]:
    async with Namesrv(config(kv_config_path=tmp_path / "kvConfig.json", **keys)) as server:
        wire = await connect(server)
        yield server, wire
        await wire.close()
        server.routes.check_invariants()


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[Wire]:
    async with serving(tmp_path) as (_, wire):
        yield wire


def body_of(topics: dict[str, dict[str, int]], *, counter: int = 1, **wrapper: object) -> bytes:
    table = {
        name: {"topicName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, **nums}
        for name, nums in topics.items()
    }
    version = {"counter": counter, "stateVersion": 0, "timestamp": 1}
    full = {"dataVersion": version, "topicConfigTable": table, **wrapper}
    return json.dumps({"topicConfigSerializeWrapper": full}).encode()


async def announce(
    wire: Wire, addr: str = A, broker_id: int = 0, *, name: str = "broker-a", body: bytes = b"", **ext: object
) -> RemotingCommand:
    header = {"clusterName": "FxCluster", "brokerName": name, "brokerId": broker_id, "brokerAddr": addr}
    return await wire.ask(103, {**header, "haServerAddr": f"ha-{addr}", **ext}, body)


def captured(name: str) -> tuple[bytes, RemotingCommand]:
    """A request of the peer's and its name server's answer."""
    request = (FRAMES / f"{name}.req.bin").read_bytes()
    return request, decode((FRAMES / f"{name}.resp.bin").read_bytes()[4:])


async def topics(wire: Wire, code: int, **ext: str) -> list[str]:
    answer = await wire.ask(code, ext)
    assert answer.code == 0, answer.remark
    found: list[str] = json.loads(answer.body)["topicList"]
    return found


# ---- against the peer's bytes ----


async def test_routes_and_permissions_as_captured(wire: Wire) -> None:
    names = {f"T{i}" for i in range(16)} | {"FxNormal"}
    await announce(wire, A, 0, body=body_of({name: {} for name in names}))
    await announce(wire, B, 2, body=body_of({name: {} for name in names}))
    for name in (
        "105-topic-route-mqadmin",
        "105-topic-route-producer-rocketmqser",
        "105-topic-route-mqadmin-rc17",
        "205-wipe-write-perm-mqadmin",
        "327-add-write-perm-mqadmin",
        "100-put-kv-mqadmin",
    ):
        request, theirs = captured(name)
        ours = await wire.frame(request)
        assert (ours.code, ours.remark, ours.ext_fields, ours.body) == (
            theirs.code,
            theirs.remark,
            theirs.ext_fields,
            theirs.body,
        ), name


async def test_the_topic_list_as_captured(wire: Wire) -> None:
    """In another order: theirs is that of a hash table."""
    request, theirs = captured("206-all-topic-list-mqadmin")
    names = json.loads(theirs.body)["topicList"]
    await announce(wire, body=body_of({name: {} for name in names}))
    ours = await wire.frame(request)
    assert json.loads(ours.body) == {"topicList": sorted(names)}


async def test_query_data_version_as_captured(wire: Wire) -> None:
    request, theirs = captured("322-query-data-version-broker")
    asked = decode(request[4:])
    wrapper = json.dumps({"topicConfigSerializeWrapper": {"dataVersion": json.loads(asked.body)}})
    unknown = await wire.frame(request)
    assert (unknown.code, unknown.ext_fields, unknown.body) == (0, {"changed": "true"}, b"")
    await announce(wire, B, 2, body=wrapper.encode())
    ours = await wire.frame(request)
    assert (ours.code, ours.ext_fields, ours.body) == (0, theirs.ext_fields, theirs.body)


@pytest.mark.parametrize("field", ["counter", "stateVersion", "timestamp"])
async def test_any_difference_of_a_data_version_counts(wire: Wire, field: str) -> None:
    """Pitfall 30: equality of all three; a lower counter is a change as well."""
    await announce(wire, body=body_of({"T1": {}}, counter=5))
    version = {"counter": 5, "stateVersion": 0, "timestamp": 1}
    header = {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerId": 0, "brokerAddr": A}
    same = await wire.ask(322, header, json.dumps(version).encode())
    assert same.ext_fields == {"changed": "false"}
    other = await wire.ask(322, header, json.dumps({**version, field: 4}).encode())
    assert other.ext_fields == {"changed": "true"} and json.loads(other.body) == version
    assert (await wire.ask(322, header)).ext_fields == {"changed": "true"}, "no body at all"


async def test_asking_for_the_data_version_keeps_alive(tmp_path: Path) -> None:
    """Pitfall 30: with forceRegister=false a broker sends nothing else."""
    now = 0
    async with Namesrv(config(), clock=lambda: now) as server:
        wire = await connect(server)
        await announce(wire, heartbeatTimeoutMillis=1_000)
        now = 900
        await wire.ask(322, {"clusterName": "FxCluster", "brokerName": "x", "brokerId": 0, "brokerAddr": A})
        now = 1_900
        server.scan()
        assert server.routes.counts()["brokers"] == 1
        now = 1_901
        server.scan()
        assert server.routes.counts()["brokers"] == 0
        await wire.close()


# ---- the register body ----


async def test_a_sender_without_a_version_sends_the_bare_wrapper(wire: Wire) -> None:
    """Version 0, and everything below 3.0.11."""
    bare = json.dumps(json.loads(body_of({"T1": {}}))["topicConfigSerializeWrapper"]).encode()
    header = {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerId": 0, "brokerAddr": A}
    assert (await wire.ask(103, header, bare, version=36)).code == 0
    assert await topics(wire, Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["T1"]


async def test_no_body_is_an_empty_table_of_version_zero(wire: Wire) -> None:
    await announce(wire)
    header = {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerId": 0, "brokerAddr": A}
    answer = await wire.ask(322, header)
    assert json.loads(answer.body) == {"counter": 0, "stateVersion": 0, "timestamp": 0}


@pytest.mark.parametrize("flag", ["true", "false"])
async def test_a_deflated_body_with_and_without_its_flag(wire: Wire, flag: str) -> None:
    """The Java broker always sets compressed=false."""
    from tests.unit.namesrv.test_register_body import DEFLATED

    answer = await announce(wire, body=DEFLATED, compressed=flag, bodyCrc32=121167055)
    assert answer.code == 0
    assert await topics(wire, 206) == ["T1"]


async def test_a_body_that_does_not_fit_is_refused(wire: Wire) -> None:
    answer = await announce(wire, body=b"{}", bodyCrc32=zlib.crc32(b"{}") & 0x7FFFFFFF)
    assert answer.code == 0
    answer = await announce(wire, body=b"{}", bodyCrc32=1)
    assert (answer.code, answer.remark) == (1, "crc32 not match")
    answer = await announce(wire, body=b"{]")
    assert answer.code == 1 and (answer.remark or "").startswith("register body: ")
    too_large = body_of({"T1": {"perm": 2**40}})
    answer = await announce(wire, body=too_large)
    assert answer.code == 1 and "$.topicConfigSerializeWrapper.topicConfigTable" in (answer.remark or "")


async def test_a_one_topic_broker_registers(wire: Wire) -> None:
    """Pitfall 5 (#4522): theirs refuses it for ever."""
    assert (await announce(wire, body=body_of({"only": {}}))).code == 0
    assert await wire.route("only") is not None


async def test_an_unregister_is_applied_when_it_is_answered(wire: Wire) -> None:
    """Pitfall 6 (#4726): there is no queue that could be full, so there is no answer before the deed."""
    for number in range(50):
        await announce(wire, f"h{number}:1", name=f"b{number}")
        header = {"clusterName": "FxCluster", "brokerName": f"b{number}", "brokerAddr": f"h{number}:1"}
        answer = await wire.ask(104, {**header, "brokerId": 0})
        assert (answer.code, answer.remark) == (0, None)
        assert json.loads((await wire.ask(106, {})).body)["brokerAddrTable"] == {}
        assert (await wire.ask(104, {**header, "brokerId": 0})).code == 0, "twice is harmless"


async def test_a_farewell_of_an_earlier_life_removes_nobody(tmp_path: Path) -> None:
    """Pitfall 2 (#11043): the process that ends says 104 on its old connection after the new one said 103."""
    async with serving(tmp_path) as (server, wire):
        older, newer = await connect(server), await connect(server)
        await announce(older, body=body_of({"T1": {}}))
        await announce(newer, body=body_of({"T1": {}}))
        header = {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerAddr": A, "brokerId": 0}
        await older.close()
        await until(lambda: server.connection_count == 2)
        unverified_peer = wire  # the oldest connection of all; this broker never used it
        assert (await unverified_peer.ask(104, header)).code == 0
        assert await wire.route("T1") is not None
        assert (await newer.ask(104, header)).code == 0
        assert await wire.route("T1") is None
        await newer.close()


async def test_a_silent_connection_is_expired_and_may_register_again(tmp_path: Path) -> None:
    """Pitfall 2, the other half: found inactive, removed and forgotten in one step."""
    now = 0
    async with Namesrv(config(), clock=lambda: now) as server:
        wire = await connect(server)
        await announce(wire, body=body_of({"T1": {}}), heartbeatTimeoutMillis=1_000)
        now = 1_001
        server.scan()
        assert await wire.route("T1") is None
        await announce(wire, body=body_of({"T1": {}}), heartbeatTimeoutMillis=1_000)
        server.scan()
        assert await wire.route("T1") is not None
        await wire.close()


async def test_the_first_scan_waits_a_whole_interval() -> None:
    """Pitfall 11 (#9682): after 5 ms nobody can have registered."""
    now = 0
    async with Namesrv(config(), clock=lambda: now) as server:
        assert server._next_scan_ms == server.config.scan_not_active_broker_interval


# ---- topic lists ----


async def test_topic_lists(wire: Wire) -> None:
    await announce(
        wire, body=body_of({"plain": {}, "unit": {"topicSysFlag": 1}, "both": {"topicSysFlag": 3}})
    )
    await announce(wire, B, name="broker-b", body=body_of({"sub": {"topicSysFlag": 2}, "plain": {}}))
    await announce(wire, "h:1", name="broker-c", clusterName="Other", body=body_of({"elsewhere": {}}))
    assert await topics(wire, 206) == ["both", "elsewhere", "plain", "sub", "unit"]
    assert await topics(wire, 224, cluster="FxCluster") == ["both", "plain", "sub", "unit"]
    assert await topics(wire, 224, cluster="nowhere") == [], "pitfall 18: no exception behind it"
    assert await topics(wire, 311) == ["both", "unit"]
    assert await topics(wire, 312) == ["both", "sub"]
    assert await topics(wire, 313) == ["sub"]
    system = json.loads((await wire.ask(304, {})).body)
    assert system == {
        "brokerAddr": A,
        "topicList": ["FxCluster", "Other", "broker-a", "broker-b", "broker-c"],
    }


async def test_topic_lists_can_be_switched_off(tmp_path: Path) -> None:
    async with serving(tmp_path, enable_all_topic_list=False, enable_topic_list=False) as (_, wire):
        for code in (206, 224, 311, 312, 313):
            answer = await wire.ask(code, {"cluster": "FxCluster"})
            assert (answer.code, answer.remark) == (1, "disable"), code
        assert (await wire.ask(304, {})).code == 0, "this one has no switch"


async def test_member_group(wire: Wire) -> None:
    await announce(wire, A, 0)
    await announce(wire, B, 2)
    answer = await wire.ask(901, {"clusterName": "whatever", "brokerName": "broker-a"})
    assert answer.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"127.0.0.1:18811",2:"127.0.0.1:18821"},'
        b'"brokerName":"broker-a","cluster":"whatever"}}'
    )
    answer = await wire.ask(901, {"clusterName": "FxCluster", "brokerName": "nobody"})
    assert answer.code == 0 and json.loads(answer.body)["brokerMemberGroup"]["brokerAddrs"] == {}


async def test_answers_that_are_kept_are_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pitfall 14 (#4245)."""
    async with serving(tmp_path) as (_, wire):
        await announce(wire, body=body_of({"T1": {}}))
        assert (await wire.route("T1")) == (await wire.route("T1"))
        await announce(wire, B, 2, body=body_of({"T1": {}}))
        route = await wire.route("T1")
        assert route is not None and route["brokerDatas"][0]["brokerAddrs"] == {"0": A, "2": B}
        await wire.ask(205, {"brokerName": "broker-a"})
        route = await wire.route("T1")
        assert route is not None and route["queueDatas"][0]["perm"] == 4
        monkeypatch.setattr(queries, "ENCODED_BYTES_MAX", 0)
        assert await wire.route("T1") == route


# ---- static topics, order configuration, zones ----

MAPPING = {"bname": "broker-a", "currIdMap": {"0": 3, "1": 4}, "dirty": False, "epoch": 1, "topic": "S"}


@pytest.mark.parametrize("bare", [True, False])
async def test_mappings_of_static_topics(wire: Wire, bare: bool) -> None:
    """Kept as they came, and gone with their broker (pitfall 28)."""
    body = body_of({"S": {}}, topicQueueMappingInfoMap={"S": MAPPING})
    if bare:
        body = body.replace(b' {"0": 3, "1": 4}', b"{0:3,1:4}")
        assert b"{0:3,1:4}" in body
    assert (await announce(wire, body=body)).code == 0
    route = await wire.route("S")
    assert route is not None and route["topicQueueMappingByBroker"] == {"broker-a": MAPPING}
    old = await wire.ask(105, {"topic": "S"}, version=0)
    assert b'"currIdMap":{0:3,1:4}' in old.body
    await wire.ask(
        104, {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerAddr": A, "brokerId": 0}
    )
    await announce(wire, body=body_of({"S": {}}))
    route = await wire.route("S")
    assert route is not None and "topicQueueMappingByBroker" not in route


async def test_order_configuration(tmp_path: Path) -> None:
    async with serving(tmp_path, order_message_enable=True) as (_, wire):
        assert (await announce(wire, body=body_of({"T1": {}, "T2": {}}))).body == b""
        await wire.ask(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T1", "value": "broker-a:4"})
        route = await wire.route("T1")
        assert route is not None and route["orderTopicConf"] == "broker-a:4"
        assert "orderTopicConf" not in (await wire.route("T2") or {})
        assert (await announce(wire, body=body_of({"T1": {}}))).body == b'{"table":{"T1":"broker-a:4"}}'
        await wire.ask(318, {}, b"returnOrderTopicConfigToBroker=false\norderMessageEnable=false")
        assert (await announce(wire, body=body_of({"T1": {}}))).body == b""
        assert "orderTopicConf" not in (await wire.route("T1") or {})


@pytest.mark.parametrize(("version", "key"), [(479, b'{"0":'), (0, b"{0:")])
async def test_zone_routing_keeps_to_the_dialect(wire: Wire, version: int, key: bytes) -> None:
    """Pitfall 15: theirs answers in the legacy style whoever asks."""
    await announce(wire, body=body_of({"T1": {}}), __ZONE_NAME="east")
    zone = {"topic": "T1", "__ZONE_NAME": "east", "__ZONE_MODE": "TRUE"}
    assert b'"brokerAddrs":' + key in (await wire.ask(105, zone, version=version)).body
    other = await wire.ask(105, {**zone, "__ZONE_NAME": "west"}, version=479)
    assert other.code == 0 and json.loads(other.body)["brokerDatas"] == []


async def test_a_register_without_any_field(wire: Wire) -> None:
    """Pitfall 26: no extFields at all, not even for the zone."""
    answer = await wire.frame(encode(RemotingCommand(103)))
    assert answer.code == 1 and "brokerName is missing" in (answer.remark or "")


def test_null_lists_of_filter_servers_are_read() -> None:
    """Pitfall 22: their routes have an entry for every broker as soon as one has filter servers."""
    route = decode_body(TopicRouteData, b'{"filterServerTable":{"h:1":null,"h:2":["f:1"]}}')
    assert route.filter_server_table == {"h:1": None, "h:2": ["f:1"]}


# ---- permissions and topics ----


async def test_write_permission_and_its_other_bits(wire: Wire) -> None:
    """Pitfall 25: PRIORITY (8) and INHERIT (1) stay."""
    await announce(wire, body=body_of({"T1": {"perm": 15}, "T2": {"perm": 0}}))
    assert (await wire.ask(205, {"brokerName": "broker-a"})).ext_fields == {"wipeTopicCount": "2"}
    assert [await perm(wire, "T1"), await perm(wire, "T2")] == [13, 0]
    assert (await wire.ask(327, {"brokerName": "broker-a"})).ext_fields == {"addTopicCount": "2"}
    assert [await perm(wire, "T1"), await perm(wire, "T2")] == [15, 6]
    await wire.ask(205, {"brokerName": "broker-a"})
    await announce(wire, body=body_of({"T1": {"perm": 15}, "T2": {"perm": 0}}))
    assert await perm(wire, "T1") == 13, "an unchanged registration overwrites nothing"
    await announce(wire, body=body_of({"T1": {"perm": 15}, "T2": {"perm": 0}}, counter=2))
    assert [await perm(wire, "T1"), await perm(wire, "T2")] == [15, 0]
    for code, field in ((205, "wipeTopicCount"), (327, "addTopicCount")):
        assert (await wire.ask(code, {"brokerName": "nobody"})).ext_fields == {field: "0"}


async def perm(wire: Wire, topic: str) -> int:
    route = await wire.route(topic)
    assert route is not None
    found: int = route["queueDatas"][0]["perm"]
    return found


async def test_delete_topic(wire: Wire) -> None:
    await announce(wire, body=body_of({"T1": {}, "T2": {}}))
    await announce(wire, B, name="broker-b", clusterName="Other", body=body_of({"T1": {}}))
    await wire.ask(216, {"topic": "T1", "clusterName": "nowhere"})
    await wire.ask(216, {"topic": "unknown"})
    await wire.ask(216, {"topic": "T1", "clusterName": "Other"})
    route = await wire.route("T1")
    assert route is not None and [each["brokerName"] for each in route["queueDatas"]] == ["broker-a"]
    assert (await wire.ask(216, {"topic": "T1"})).code == 0
    assert await wire.route("T1") is None
    await announce(wire, body=body_of({"T1": {}, "T2": {}}))
    assert await wire.route("T1") is not None, "a broker that still has it brings it back"


async def test_register_topic(wire: Wire) -> None:
    await announce(wire, body=body_of({"T1": {}}))
    queue = {"brokerName": "broker-a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 4}
    body = json.dumps({"queueDatas": [queue, {**queue, "brokerName": "nobody"}]}).encode()
    assert (await wire.ask(217, {"topic": "new"}, body)).code == 0
    assert await wire.route("new") is None, "all brokers or nothing"
    assert (await wire.ask(217, {"topic": "new"}, json.dumps({"queueDatas": [queue]}).encode())).code == 0
    route = await wire.route("new")
    assert route is not None and route["queueDatas"] == [{**queue, "topicSysFlag": 0}]
    for empty in (b"", b"{}"):
        assert (await wire.ask(217, {"topic": "empty"}, empty)).code == 0
    assert await wire.route("empty") is None


# ---- KV and settings ----


async def test_kv_configuration_survives_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, wire):
        assert (await wire.ask(100, {"namespace": "N", "key": "k", "value": "v"})).code == 0
        assert (await wire.ask(101, {"namespace": "N", "key": "k"})).ext_fields == {"value": "v"}
        answer = await wire.ask(101, {"namespace": "N", "key": "x"})
        assert (answer.code, answer.remark) == (22, "No config item, Namespace: N Key: x")
        answer = await wire.ask(219, {"namespace": "M"})
        assert (answer.code, answer.remark) == (22, "No config item, Namespace: M")
        answer = await wire.ask(100, {"namespace": "N", "value": "v"})
        assert (answer.code, answer.remark) == (1, "namespace or key is null")
    async with serving(tmp_path) as (_, wire):
        assert (await wire.ask(219, {"namespace": "N"})).body == b'{"table":{"k":"v"}}'
        assert (await wire.ask(102, {"namespace": "N", "key": "k"})).code == 0
        assert (await wire.ask(102, {"namespace": "N", "key": "k"})).code == 0
        assert (await wire.ask(101, {"namespace": "N", "key": "k"})).code == 22


async def test_settings_over_the_wire(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, wire):
        text = (await wire.ask(319, {})).body.decode()
        assert "supportActingMaster=false\n" in text and text.splitlines() == sorted(text.splitlines())
        answer = await wire.ask(318, {}, b"supportActingMaster=true\nscanNotActiveBrokerInterval=60000\n")
        assert answer.code == 0 and "until the next start" in (answer.remark or "")
        assert server.routes.support_acting_master and server.config.scan_not_active_broker_interval == 60_000
        assert "supportActingMaster=true\n" in (await wire.ask(319, {})).body.decode()
        answer = await wire.ask(318, {}, b"supportActingMaster=false\nkvConfigPath=/tmp/x\n")
        assert (answer.code, answer.remark) == (16, "Can not update config in black list.")
        assert server.config.support_acting_master


# ---- acting master and 905 ----


async def test_acting_master(tmp_path: Path) -> None:
    """Namesrv reference §9: shown as master in routes only, and never for the member-group topics."""
    async with serving(tmp_path, support_acting_master=True) as (_, wire):
        body = body_of({"T1": {}, "rmq_sys_SYNC_BROKER_MEMBER_broker-a": {}})
        await announce(wire, A, 0, body=body, enableActingMaster="true")
        await announce(wire, B, 2, body=body, enableActingMaster="true")
        await wire.ask(
            104, {"clusterName": "FxCluster", "brokerName": "broker-a", "brokerAddr": A, "brokerId": 0}
        )
        route = await wire.route("T1")
        assert route is not None
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": B} and route["queueDatas"][0]["perm"] == 4
        route = await wire.route("rmq_sys_SYNC_BROKER_MEMBER_broker-a")
        assert route is not None and route["brokerDatas"][0]["brokerAddrs"] == {"2": B}


@asynccontextmanager
async def listening_broker() -> AsyncIterator[tuple[str, list[MinBrokerIdChangeRequest]]]:
    """The port of a broker that is told about lowest ids."""
    heard: list[MinBrokerIdChangeRequest] = []

    async def notified(request: MinBrokerIdChangeRequest, call: Call) -> None:
        heard.append(request)

    table = OperationTable()
    table.bind(NOTIFY_MIN_BROKER_ID_CHANGE, notified)
    listener = TcpServer(table, host="127.0.0.1", port=0, name="broker")
    await listener.start()
    yield f"127.0.0.1:{listener.address[1]}", heard
    await listener.close()


async def test_members_hear_of_a_new_lowest_id(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, notify_min_broker_id_changed=True) as (server, wire),
        listening_broker() as (slave, heard),
        listening_broker() as (master, heard_by_master),
    ):
        connection = await connect(server)
        await announce(wire, slave, 2, enableActingMaster="true")
        await announce(connection, master, 0, enableActingMaster="true")
        await until(lambda: len(heard) == 1)
        assert heard.pop() == MinBrokerIdChangeRequest(
            min_broker_id=0, min_broker_addr=master, ha_broker_addr=f"ha-{master}", broker_name="broker-a"
        )
        await announce(wire, "127.0.0.1:1", 1, enableActingMaster="true")
        await connection.close()
        await until(lambda: len(heard) == 1)
        assert heard.pop() == MinBrokerIdChangeRequest(
            min_broker_id=1, min_broker_addr="127.0.0.1:1", offline_broker_addr=master, broker_name="broker-a"
        )
        assert heard_by_master == [], "who became the lowest by registering knows it"
        await wire.ask(318, {}, b"notifyMinBrokerIdChanged=false")
        await announce(wire, master, 0, enableActingMaster="true")
        await asyncio.sleep(0)
        assert heard == []


async def test_the_same_over_http(tmp_path: Path) -> None:
    """One declaration, two doors: JSON answers are JSON there, whichever dialect the TCP door writes."""
    port = free_port()
    async with serving(tmp_path, http_port=port) as (_, wire):
        await announce(wire, body=body_of({"T1": {}}))
        await wire.ask(100, {"namespace": "N", "key": "k", "value": "v"})
        assert (await http(port, "getRouteInfoByTopic", {"topic": "T1"}))["body"]["brokerDatas"] == [
            {
                "brokerAddrs": {"0": A},
                "brokerName": "broker-a",
                "cluster": "FxCluster",
                "enableActingMaster": False,
            }
        ]
        clusters = (await http(port, "getBrokerClusterInfo", {}))["body"]
        assert clusters["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": A}
        assert await http(port, "getKVListByNamespace", {"namespace": "N"}) == {"body": {"table": {"k": "v"}}}
        assert await http(port, "wipeWritePermOfBroker", {"brokerName": "broker-a"}) == {"wipeTopicCount": 1}
        assert await http(port, "getTopicsByCluster", {"cluster": "FxCluster"}) == {
            "body": {"topicList": ["T1"]}
        }


async def http(port: int, operation: str, fields: dict[str, str]) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(fields).encode()
    head = (
        f"POST /v1/{operation} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: close\r\nContent-Type: application/json\r\n"
    )
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return json.loads(answer.partition(b"\r\n\r\n")[2])
