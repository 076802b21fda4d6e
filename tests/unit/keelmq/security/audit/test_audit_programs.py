"""Real programs over a socket: what an administrator does is in the program's audit log, old and new."""

import json
import os
from pathlib import Path
from typing import Any

import httpx

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, OperationTable
from keelmq.remoting.operations import controller as wire
from keelmq.remoting.operations.auth import AUTH_CREATE_USER, AUTH_UPDATE_USER, UserInfo, UserRequest
from keelmq.remoting.operations.broker import DELETE_TOPIC_IN_BROKER, TopicRequest
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    UPDATE_AND_CREATE_TOPIC,
    CreateTopicRequest,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.clients import INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequest
from keelmq.security.server_access import ServerAccess
from namesrv.app import Namesrv
from tests.support.server_parts import until
from tests.unit.broker.app.test_broker_app import config
from tests.unit.keelmq.security.parts import control, tables
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    GROUP,
    address_of,
    group_in_sync,
    members,
)
from tests.unit.namesrv.test_namesrv_app import config as namesrv_config
from tests.unit.namesrv.test_namesrv_app import connect
from tests.unit.namesrv.test_namesrv_requests import announce, body_of


def lines_of(directory: Path, *, refused: bool = False) -> list[dict[str, Any]]:
    files = [each for each in directory.glob("*.log") if (".refused." in each.name) is refused]
    return [json.loads(line) for each in files for line in each.read_text().splitlines()]


def topic(perm: int, name: str = "orders") -> CreateTopicRequest:
    return CreateTopicRequest(topic=name, read_queue_nums=4, write_queue_nums=4, perm=perm, default_topic="x")


async def test_a_broker_records_what_changes_its_topics_and_groups(tmp_path: Path) -> None:
    client = RemotingClient()
    async with Broker(config(tmp_path)) as broker:

        async def call(operation: Operation[Any, Any], header: Any, body: Any = None) -> None:
            assert isinstance(await client.call(broker.address, operation, header, body), Ok)

        await call(UPDATE_AND_CREATE_TOPIC, topic(6))
        await call(UPDATE_AND_CREATE_TOPIC, topic(4))
        group = SubscriptionGroupConfig(group_name="g")
        await call(UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Empty(), group)
        reset = ResetOffsetRequest(topic="orders", group="g", timestamp=-1, is_force=True, queue_id=1)
        await call(INVOKE_BROKER_TO_RESET_OFFSET, reset)
        await call(UPDATE_BROKER_CONFIG, Empty(), b"brokerPermission=4\n")
        await call(DELETE_TOPIC_IN_BROKER, TopicRequest(topic="orders"))
        address, port = broker.address, broker.listeners.port
    await client.close()
    directory = tmp_path / "store" / "audit"
    assert [each.name for each in directory.iterdir()] == [f"mqbroker-{port}.log"]
    created, changed, grouped, reset_line, configured, deleted = lines_of(directory)
    assert created["changes"]["topic orders"]["old"] is None
    assert created["changes"]["topic orders"]["new"]["perm"] == 6
    assert changed["changes"] == {"topic orders": {"old": {"perm": 6}, "new": {"perm": 4}}}
    assert (created["node"], created["operation"]) == (f"b-{address}", "UPDATE_AND_CREATE_TOPIC")
    assert created["address"].startswith("127.0.0.1:") and created["outcome"] == "ok"
    assert grouped["resources"] == ["Group:g"]
    assert grouped["changes"]["group g"]["new"]["retryMaxTimes"] == 16
    assert reset_line["changes"] == {"offset by queue": {"old": {"1": None}, "new": {"1": 0}}}
    assert configured["changes"] == {"brokerPermission": {"old": 6, "new": 4}}
    assert deleted["changes"]["topic orders"]["new"] is None
    assert deleted["changes"]["offsets of group g in topic orders"] == {"old": {"1": 0}, "new": None}


async def test_what_a_broker_refuses(tmp_path: Path) -> None:
    client = RemotingClient()
    async with Broker(config(tmp_path, audit_path=tmp_path / "elsewhere")) as broker:
        outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), b"configStorePath=/etc/x")
        assert isinstance(outcome, Failed)
        outcome = await client.call(broker.address, UPDATE_AND_CREATE_TOPIC, topic(9))
        assert isinstance(outcome, Failed)
        directory = tmp_path / "elsewhere"
        await until(lambda: any(lines_of(directory)) and any(lines_of(directory, refused=True)))
    (failed,), (refused,) = lines_of(directory), lines_of(directory, refused=True)
    assert (failed["outcome"], failed["answer"], failed["fields"]["perm"]) == ("failed", 29, "9")
    assert "perm 9" in failed["remark"]
    assert (refused["outcome"], refused["remark"]) == ("refused", "Can not update config in black list.")


async def test_a_name_server_records_permissions_kv_and_settings(tmp_path: Path) -> None:
    keys = {"kv_config_path": tmp_path / "kvConfig.json"}
    async with Namesrv(namesrv_config(**keys)) as server:
        wire = await connect(server)
        await announce(wire, body=body_of({"t": {}}))
        for code, fields, body in (
            (205, {"brokerName": "broker-a"}, b""),
            (100, {"namespace": "n", "key": "k", "value": "1"}, b""),
            (100, {"namespace": "n", "key": "k", "value": "2"}, b""),
            (102, {"namespace": "n", "key": "k"}, b""),
            (318, {}, b"supportActingMaster=true"),
            (105, {"topic": "t"}, b""),
        ):
            assert (await wire.ask(code, fields, body)).code == 0
        await wire.close()
        port = server.address[1]
    lines = lines_of(tmp_path / "audit")
    assert [line["code"] for line in lines] == [205, 100, 100, 102, 318]
    assert [line["changes"] for line in lines] == [
        {"perm of topics at broker-a": {"old": {"t": 6}, "new": {"t": 4}}},
        {"value": {"old": None, "new": "1"}},
        {"value": {"old": "1", "new": "2"}},
        {"value": {"old": "2", "new": None}},
        {"supportActingMaster": {"old": False, "new": True}},
    ]
    assert {line["program"] for line in lines} == {"mqnamesrv"}
    assert {path.name for path in (tmp_path / "audit").iterdir()} == {f"mqnamesrv-{port}.log"}


async def test_a_request_that_the_access_check_refuses(tmp_path: Path) -> None:
    """Of a member, too, and it is not the handler that says so."""
    server = Namesrv(namesrv_config(kv_config_path=tmp_path / "kvConfig.json"))
    server.table.access = ServerAccess(control(tables()))
    async with server:
        wire = await connect(server)
        answer = await wire.ask(103, {"brokerName": "evil", "AccessKey": "bob", "Signature": "c2VjcmV0"})
        assert answer.code == 16
        await wire.close()
    (line,) = lines_of(tmp_path / "audit", refused=True)
    assert (line["operation"], line["claimed"], line["fields"]) == (
        "REGISTER_BROKER",
        "bob",
        {"brokerName": "evil"},
    )
    assert "c2VjcmV0" not in json.dumps(line)
    assert lines_of(tmp_path / "audit") == []


async def test_a_directory_that_cannot_be_written_fails_no_request(tmp_path: Path) -> None:
    (tmp_path / "audit").write_text("a file in its place")
    async with Namesrv(namesrv_config(kv_config_path=tmp_path / "kvConfig.json")) as server:
        wire = await connect(server)
        assert (await wire.ask(318, {}, b"supportActingMaster=true")).code == 0
        audit = server.audit
        assert audit is not None
        await until(lambda: audit.writer.dropped_lines == 1)
        assert audit.writer.fault is not None and os.strerror(17) in audit.writer.fault
        await wire.close()


async def test_without_it_nothing_is_written(tmp_path: Path) -> None:
    keys = {"kv_config_path": tmp_path / "kvConfig.json", "audit_enable": False}
    async with Namesrv(namesrv_config(**keys)) as server:
        wire = await connect(server)
        assert (await wire.ask(318, {}, b"supportActingMaster=true")).code == 0
        await wire.close()
        assert server.table.audit is None
    assert not (tmp_path / "audit").exists()
    assert OperationTable().audit is None


async def test_a_standalone_controller_records_elections_and_settings(tmp_path: Path) -> None:
    """Its audit log is with its other files. What brokers send all the time is not in it."""
    (controller,) = members(tmp_path, ["n0"]).values()
    address = address_of(controller)
    async with group_in_sync(controller) as (_, one, two):
        for _ in range(3):
            plain = wire.ElectMasterRequest(cluster_name="C1", broker_name=GROUP, broker_id=2)
            await two.client.call(address, wire.ELECT_MASTER, plain)
        designated = plain.model_copy(update={"designate_elect": True})
        await two.client.call(address, wire.ELECT_MASTER, designated)
        for body in (b"enableElectUncleanMaster=true", b"enableElectUncleanMaster="):
            await two.client.call(address, wire.UPDATE_CONTROLLER_CONFIG, wire.UpdateConfigRequest(), body)
        await one.client.close()
        clean = wire.CleanBrokerDataRequest(
            cluster_name="C1",
            broker_name=GROUP,
            broker_controller_ids_to_clean="1",
            is_clean_living_broker=True,
        )
        assert isinstance(await two.client.call(address, wire.CLEAN_BROKER_DATA, clean), Ok)
    directory = tmp_path / "n0" / "audit"
    assert [each.name for each in directory.iterdir()] == [f"mqcontroller-{address.rpartition(':')[2]}.log"]
    first, elected, set_, reset, cleaned = lines_of(directory)
    assert first["fields"]["designateElect"] == "false"  # the first broker of a group asks for it
    assert first["changes"][f"master of {GROUP}"]["new"]["masterBrokerId"] == 1
    master = elected["changes"][f"master of {GROUP}"]
    assert (master["old"]["masterBrokerId"], master["old"]["masterEpoch"]) == (1, 1)
    assert (master["new"]["masterBrokerId"], master["new"]["masterEpoch"]) == (2, 2)
    assert set_["changes"] == {"enableElectUncleanMaster": {"old": False, "new": "true"}}
    assert reset["changes"] == {"enableElectUncleanMaster": {"old": True, "new": None}}
    assert cleaned["changes"] == {
        f"brokers of {GROUP}": {"old": {"1": "10.0.0.1:1", "2": "10.0.0.2:1"}, "new": {"2": "10.0.0.2:1"}}
    }


async def test_a_password_is_never_written(tmp_path: Path) -> None:
    client, password = RemotingClient(), "a-password-of-alice"
    async with Broker(config(tmp_path)) as broker:
        for operation, value in ((AUTH_CREATE_USER, password), (AUTH_UPDATE_USER, f"{password}-2")):
            user = UserInfo(username="alice", password=value, user_type="Normal")
            assert isinstance(
                await client.call(broker.address, operation, UserRequest(username="alice"), user), Ok
            )
        wrong = UserInfo(username="bob", password=password, user_type="Emperor")
        outcome = await client.call(broker.address, AUTH_CREATE_USER, UserRequest(username="bob"), wrong)
        assert isinstance(outcome, Failed)
    await client.close()
    directory = tmp_path / "store" / "audit"
    created, updated = lines_of(directory)
    (refused,) = lines_of(directory, refused=True)
    assert created["changes"]["alice"]["new"]["userType"] == "Normal"
    assert updated["changes"]["password of alice"] == {"old": "old", "new": "new"}
    assert refused["fields"] == {"username": "bob"}
    assert password not in json.dumps([created, updated, refused])


async def test_requests_over_http_are_recorded_as_those_over_tcp(tmp_path: Path) -> None:
    keys = {"kv_config_path": tmp_path / "kvConfig.json", "http_port": 0}
    async with Namesrv(namesrv_config(**keys)) as server:
        assert server.http_address is not None
        async with httpx.AsyncClient(base_url="http://{}:{}".format(*server.http_address)) as http:
            for method, path, body, status in (
                ("PATCH", "/v1/config", {"supportActingMaster": True}, 200),
                ("PATCH", "/v1/config", {"kvConfigPath": "/etc/passwd"}, 409),
                ("POST", "/v1/putKVConfig", {"namespace": "n", "key": "k", "value": "1"}, 200),
            ):
                assert (await http.request(method, path, json=body)).status_code == status
            assert (await http.get("/v1/config")).status_code == 200
    changed, put = lines_of(tmp_path / "audit")
    (refused,) = lines_of(tmp_path / "audit", refused=True)
    assert changed["changes"] == {"supportActingMaster": {"old": False, "new": True}}
    assert changed["address"].startswith("127.0.0.1:")
    assert put["changes"] == {"value": {"old": None, "new": "1"}}
    assert refused["remark"] == "Can not update config in black list."
