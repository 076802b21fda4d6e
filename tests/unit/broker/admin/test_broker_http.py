"""The broker's HTTP door: readiness by role, metrics of a real broker, a taken port."""

import asyncio
import base64
import hashlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from broker.admin import metrics
from broker.admin.group_metrics import OTHERS
from broker.admission.send_gate import DISK, HAND_OVER
from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.core.readiness import BrokerReadiness, not_ready
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker import GET_BROKER_RUNTIME_INFO, SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.servers.health import HEALTH_TABLE, LIBRARY_TABLE
from keelmq.remoting.servers.metrics import documented
from keelmq.runtime.config import ConfigError
from keelmq.security.metrics import TABLE as SECURITY
from tests.support.http_parts import ask, samples, shapes, value
from tests.unit.broker.app.test_broker_app import broker_without_role

DEADLINE_S = 10.0
GOOD = BrokerReadiness(
    serving=True, role="slave", name_servers=("a:1", "b:1"), registered=("b:1",), disk_fault=""
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, []),
        ({"role": "master"}, []),
        ({"role": "none"}, ["no role yet"]),
        ({"out_of_sync": "it has no link to the master"}, ["not in sync with the master: it has no link"]),
        ({"role": "none", "out_of_sync": "it has no link"}, ["no role yet"]),
        ({"registered": ()}, ["not registered with any name server: it is in no route; a:1: "]),
        ({"name_servers": (), "registered": ()}, ["namesrvAddr is empty"]),
        ({"disk_fault": "No space left on device"}, ["the store cannot write: No space left"]),
        ({"role": "none", "ha_fault": "no common epoch"}, ["replication is stopped: no common epoch"]),
        ({"role": "none", "registered": ()}, ["no role yet", "not registered"]),
        ({"serving": False, "role": "none"}, ["starting or stopping"]),
        (
            {"role": "master", "refusal": "in-sync replicas not enough"},
            ["refuses messages: in-sync replicas"],
        ),
        ({"role": "slave", "refusal": "this broker is slave of 10.0.0.2:10911"}, []),
        ({"role": "master", "refusal": "the disk is full", "disk_fault": "ENOSPC"}, ["cannot write: ENOSPC"]),
        ({"role": "master", "permits_write": False}, []),
    ],
)
def test_who_is_ready(changes: dict[str, Any], says: list[str]) -> None:
    reasons = not_ready(replace(GOOD, **changes))
    assert len(reasons) == len(says)
    assert all(said in reason for said, reason in zip(says, map(str, reasons), strict=True))


def config(tmp_path: Path, **more: object) -> BrokerConfig:
    return BrokerConfig.model_validate(
        {
            "broker_name": "b",
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "store_path_root_dir": tmp_path / "store",
            "mapped_file_size_commit_log": 65_536,
            "mapped_file_size_consume_queue": 2_000,
            **more,
        }
    )


async def send(broker: Broker, topic: str, count: int) -> None:
    client = RemotingClient()
    header = SendMessageRequestV2(a="g", b=topic, e=0, g=1)
    for _ in range(count):
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, header, b"body"), Ok)
    await client.close()


async def test_a_lone_broker_without_name_server_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        assert (await ask(broker.http_address, "/livez")).status_code == 200
        ready = await ask(broker.http_address, "/readyz")
        assert (ready.status_code, ready.json()["reasons"]) == (503, ["namesrvAddr is empty"])
        told = (await ask(broker.http_address, "/v1/health")).json()
        assert told["role"] == "master" and told["writable"] is True and told["notWritable"] == ""
        assert told["reasons"] == [
            {"reason": "namesrvAddr is empty", "detail": "no client can find this broker"}
        ]
        assert str(broker.http_address[1] if broker.http_address else "") in broker.status.describe()
    assert len(asyncio.all_tasks()) == 1


async def test_role_endpoints_of_a_lone_broker(tmp_path: Path) -> None:
    """503 while it is master and not ready, for GET and HEAD alike, with nothing but the role."""
    async with Broker(config(tmp_path)) as broker:
        master, slave = [await ask(broker.http_address, path) for path in ("/master", "/slave")]
        async with httpx.AsyncClient() as http:
            head = await http.head(str(slave.url))
    role = {"role": "master", "brokerName": "b", "brokerId": 0, "masterEpoch": 0}
    assert master.status_code == slave.status_code == head.status_code == 503 and head.content == b""
    assert role.items() <= master.json().items() and role.items() <= slave.json().items()
    assert master.json()["detail"] == "not ready: namesrvAddr is empty"
    assert slave.json()["detail"] == "its role is master"


async def test_a_lone_broker_replicates_nothing(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        answer = await ask(broker.http_address, "/v1/haStatus")
    assert answer.status_code == 404 and "enableControllerMode" in answer.json()["detail"]


async def test_settings_are_shown_and_changed(tmp_path: Path) -> None:
    """PATCH does what 25 does: at once, stored, all or nothing, with a warning of a weaker promise."""
    conf = tmp_path / "broker.conf"
    conf.write_text("# ours\n")
    async with Broker(config(tmp_path), ConfigSources(conf)) as broker:
        base = "http://{}:{}".format(*(broker.http_address or ("", 0)))
        async with httpx.AsyncClient(base_url=base) as http:
            bad = await http.patch("/v1/config", json={"maxMessageSize": 5, "listenPort": 1})
            assert bad.status_code == 409 and "listenPort is read at start only" in bad.json()["detail"]
            assert broker.config.max_message_size == 4_194_304
            done = await http.patch("/v1/config", json={"maxMessageSize": 5, "flushDiskType": "SYNC_FLUSH"})
            assert done.status_code == 200, done.text
            assert done.json()["changed"] == {"maxMessageSize": "5", "flushDiskType": "SYNC_FLUSH"}
            assert "now RPO at a power cut: an acknowledged message is on the disk" in done.json()["remark"]
            shown = (await http.get("/v1/config?changed=true")).json()["settings"]
        assert (
            broker.commit.is_on and conf.read_text() == "# ours\nmaxMessageSize=5\nflushDiskType=SYNC_FLUSH\n"
        )
    (size,) = [each for each in shown if each["key"] == "maxMessageSize"]
    assert (size["value"], size["atRunTime"]) == (5, True) and "changed at run time" in size["source"]


async def test_what_a_lone_broker_measures(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, broker_cluster_name="c")) as broker:
        await send(broker, "T", 3)
        await send(broker, "rmq_sys_x", 1)
        text = (await ask(broker.http_address, "/metrics")).text
    found = samples(text)
    labels = {"cluster": "c", "node_type": "broker", "node_id": "b", "broker_name": "b", "broker_id": "0"}
    assert value(found, "rocketmq_messages_in_total", topic="T", is_system="false", **labels) == 3
    assert value(found, "rocketmq_messages_in_total", topic="rmq_sys_x", is_system="true") == 1
    assert value(found, "rocketmq_broker_role") == 1
    assert value(found, "rocketmq_broker_fenced") == 0
    assert value(found, "rocketmq_broker_permission") == 6
    assert value(found, "rocketmq_max_offset") == value(found, "rocketmq_confirm_offset") > 0
    assert value(found, "rocketmq_storage_dispatch_behind_bytes") == 0
    assert 0 <= value(found, "rocketmq_storage_message_reserve_time_milliseconds") < 60_000
    assert value(found, "rocketmq_storage_size_bytes") > 0
    known = documented([metrics.TABLE, SECURITY, HEALTH_TABLE, LIBRARY_TABLE])
    assert shapes(text).items() <= known.items()


async def test_a_master_that_refuses_messages_is_fenced(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        broker.gate.close(DISK, "the disk failed")
        found = samples((await ask(broker.http_address, "/metrics")).text)
    assert value(found, "rocketmq_broker_role") == 1 and value(found, "rocketmq_broker_fenced") == 1


def _fill_disk(broker: Broker) -> None:
    broker.retention._usage, broker.retention._is_full = lambda path: 1.0, True
    broker.retention.watch_room()


@pytest.mark.parametrize(
    ("refuse", "says"),
    [
        (
            lambda broker: setattr(broker.gate, "min_in_sync", 2),
            "in-sync replicas not enough: 1 of at least 2",
        ),
        (lambda broker: setattr(broker.gate, "lease", lambda now_ms: True), "this master hears neither"),
        (lambda broker: broker.gate.close(DISK, "cannot make it durable"), "cannot make it durable"),
        (_fill_disk, "the disk is full: above diskSpaceWarningLevelRatio"),
        (lambda broker: broker.gate.close(HAND_OVER, "hands over to 2"), "hands over to 2"),
        (
            lambda broker: broker.gate.configure(permits_write=True, accept_from_ms=1 << 60),
            "startAcceptSendRequestTimeStamp",
        ),
    ],
)
async def test_readiness_and_sends_have_one_rule(
    tmp_path: Path, refuse: Callable[[Broker], None], says: str
) -> None:
    async with Broker(config(tmp_path)) as broker:
        client = RemotingClient()
        header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        assert isinstance(await client.call(broker.address, SEND_MESSAGE_V2, header, b"body"), Ok)
        refuse(broker)
        refused = await client.call(broker.address, SEND_MESSAGE_V2, header, b"body")
        assert isinstance(refused, Failed) and says in refused.remark
        ready = (await ask(broker.http_address, "/readyz")).json()
        told = (await ask(broker.http_address, "/v1/health")).json()
        status = await client.call(broker.address, GET_BROKER_RUNTIME_INFO, Empty())
        found = samples((await ask(broker.http_address, "/metrics")).text)
        await client.close()
    assert not told["writable"] and told["notWritable"] == refused.remark
    assert ready["reasons"][-1] == "the master refuses messages"
    assert told["reasons"][-1]["detail"] == refused.remark
    assert isinstance(status, Ok)
    table = status.body.table
    assert (table["writable"], table["notWritable"]) == ("false", refused.remark)
    assert value(found, "rocketmq_broker_fenced") == 1


async def test_a_broker_without_write_permission_is_ready_and_not_writable(tmp_path: Path) -> None:
    """By its operator's will: it serves reads, and routes send producers elsewhere."""
    async with Broker(config(tmp_path, broker_permission=4)) as broker:
        told = (await ask(broker.http_address, "/v1/health")).json()
    assert not told["writable"] and "brokerPermission is without write" in told["notWritable"]
    assert [each["reason"] for each in told["reasons"]] == ["namesrvAddr is empty"]


async def test_topics_beyond_the_limit_are_one_series(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, metrics_otel_cardinality_limit=2)) as broker:
        for topic, count in (("A", 1), ("B", 1), ("C", 2), ("D", 3)):
            await send(broker, topic, count)
        found = samples((await ask(broker.http_address, "/metrics")).text)
    assert len(found["rocketmq_messages_in_total"]) == 3
    assert value(found, "rocketmq_messages_in_total", topic=OTHERS) == 5


async def test_a_stuck_disk_takes_the_broker_out(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker:
        broker.store.dispatcher.dispatch_fault = "No space left on device"
        reasons = (await ask(broker.http_address, "/v1/health")).json()["reasons"]
        assert reasons[-1] == {"reason": "the store cannot write", "detail": "No space left on device"}
        assert (
            value(samples((await ask(broker.http_address, "/metrics")).text), "rocketmq_storage_fault") == 1
        )
        broker.store.dispatcher.dispatch_fault = ""


async def test_a_broker_without_role_is_measured_and_not_ready(tmp_path: Path) -> None:
    """Its controllers do not answer: nothing is known but its log."""
    async with broker_without_role(tmp_path, http_port=0) as broker:
        ready = await ask(broker.http_address, "/readyz")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == ["no role yet", "not registered with any name server"]
        assert (await ask(broker.http_address, "/v1/health")).json()["role"] == "none"
        found = samples((await ask(broker.http_address, "/metrics")).text)
    assert value(found, "rocketmq_broker_role", broker_id="-1") == -1
    assert value(found, "rocketmq_broker_epoch") == 0
    assert "rocketmq_syncstateset_size" not in found
    assert value(found, "rocketmq_ha_fault") == 0


async def test_a_damaged_epoch_file_takes_the_broker_out(tmp_path: Path) -> None:
    """Pitfall 47: it runs, says why it copies nothing, and what to do."""
    controlled = config(tmp_path, enable_controller_mode=True, controller_addr="127.0.0.1:1")
    controlled.epoch_path.parent.mkdir(parents=True, exist_ok=True)
    controlled.epoch_path.write_bytes(b"")
    async with Broker(controlled) as broker:
        ready = (await ask(broker.http_address, "/readyz")).json()
        told = (await ask(broker.http_address, "/v1/haStatus")).json()
        assert not ready["ready"] and ready["reasons"][0] == "replication is stopped"
        why = (await ask(broker.http_address, "/v1/health")).json()["reasons"][0]["detail"]
        assert told["master"] is False and told["fault"] in why
        assert "keelmq repair" in why
        found = samples((await ask(broker.http_address, "/metrics")).text)
    assert value(found, "rocketmq_ha_fault") == 1


async def test_an_http_port_of_its_own_with_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "http.tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"read ops sha256:{hashlib.sha256(b'token-of-the-operator').hexdigest()}\n")
    made = config(tmp_path, http_bind_address="localhost", http_tokens_file=tokens, http_metrics_open=False)
    async with Broker(made) as broker:
        assert broker.http_address is not None and broker.http_address[0] in ("127.0.0.1", "::1")
        assert (await ask(broker.http_address, "/livez")).status_code == 200
        assert (await ask(broker.http_address, "/readyz")).status_code in (200, 503)
        for path in ("/metrics", "/v1/health", "/v1/haStatus", "/docs", "/openapi.json"):
            assert (await ask(broker.http_address, path)).status_code == 401
            known = await ask(broker.http_address, path, authorization="Bearer token-of-the-operator")
            assert known.status_code == (404 if path == "/v1/haStatus" else 200)


async def test_users_of_the_broker_are_those_of_its_http_port(tmp_path: Path) -> None:
    user = '{"username":"root","password":"swordfish"}'
    made = config(tmp_path, authenticationEnabled=True, initAuthenticationUser=user)
    async with Broker(made) as broker:
        assert (await ask(broker.http_address, "/docs")).status_code == 401
        for password, status in (("wrong", 401), ("swordfish", 200)):
            text = base64.b64encode(f"root:{password}".encode()).decode()
            answer = await ask(broker.http_address, "/docs", authorization=f"Basic {text}")
            assert answer.status_code == status


async def test_http_off(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, http_port=-1)) as broker:
        assert broker.http_address is None and "http" not in broker.status.describe()


async def test_a_taken_http_port_is_a_config_error_and_leaves_the_store_clean(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"^http: cannot listen on 127.0.0.1:{port}: "):
            async with Broker(config(tmp_path, http_port=port)):
                pass
    assert not (tmp_path / "store" / "abort").exists()
    assert len(asyncio.all_tasks()) == 1


async def test_a_broker_that_stops_at_once_leaves_no_http_server(tmp_path: Path) -> None:
    """FastAPI is still being imported, or the door just opened: both end with the broker."""
    async with Broker(config(tmp_path)) as broker:
        address = broker.http_address
    assert address is not None
    with pytest.raises(httpx.ConnectError):
        await ask(address, "/livez")
