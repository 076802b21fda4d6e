"""Real programs over a socket: what an administrator does is in the program's audit log, old and new."""

import json
import os
from pathlib import Path
from typing import Any

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, OperationTable
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
    assert deleted["changes"]["offsets of group g"] == {"old": {"1": 0}, "new": None}


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
