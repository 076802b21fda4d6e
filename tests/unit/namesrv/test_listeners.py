"""What a name server answers at each of its listeners (docs/adr/0077)."""

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import RequestCode as Code
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.route import GET_ROUTEINFO_BY_TOPIC, RouteRequest
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Credentials, signer_of
from namesrv.core.aliases import AliasLimits
from namesrv.core.routes import RouteTable
from namesrv.core.topics import NAME_CHARS_MAX
from namesrv.core.values import Registration, RegistrationRefused
from tests.support.ports import free_port
from tests.unit.namesrv.test_namesrv_app import Wire
from tests.unit.namesrv.test_namesrv_requests import announce, body_of, serving
from tests.unit.namesrv.test_routes import registration

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
OUTER_A, OUTER_B = "mq.example.com:31001", "[2001:db8::1]:31002"


def ours(addr: str, broker_id: int, outer: str, *, name: str = "b-a", counter: int = 1) -> Registration:
    made = registration(addr, broker_id, name=name, counter=counter, topics=("T1",), filters=("filter:1",))
    return replace(made, advertised_listeners=f"external://{outer}" if outer else "", forwards_sends=True)


def group(*brokers: tuple[str, int, str], limits: AliasLimits | None = None) -> RouteTable:
    table = RouteTable() if limits is None else RouteTable(aliases=limits)
    for addr, broker_id, outer in brokers:
        table.register(ours(addr, broker_id, outer))
    return table


def addresses(table: RouteTable, listener: str, *, aliases: bool = False) -> dict[str, dict[int, str]]:
    route = table.pick_up_route("T1", listener=listener, aliases=aliases)
    return {} if route is None else {each.broker_name: each.broker_addrs for each in route.broker_datas}


# ---- the table ----


def test_each_listener_has_its_own_addresses() -> None:
    table = group((A, 0, OUTER_A), (B, 1, OUTER_B))
    assert addresses(table, "internal") == {"b-a": {0: A, 1: B}}
    assert addresses(table, "external") == {"b-a": {0: OUTER_A, 1: OUTER_B}}
    assert table.cluster_info("external").broker_addr_table["b-a"].broker_addrs == {0: OUTER_A, 1: OUTER_B}
    assert table.member_group("C1", "b-a", "external").broker_addrs == {0: OUTER_A, 1: OUTER_B}
    assert (table.system_topics().broker_addr, table.system_topics("external").broker_addr) == (A, OUTER_A)
    route = table.pick_up_route("T1", listener="external")
    assert route is not None
    assert route.filter_server_table == {OUTER_A: ["filter:1"], OUTER_B: ["filter:1"]}


def test_a_broker_without_listeners_is_shown_everywhere_with_its_one_address() -> None:
    table = group((A, 0, ""), (B, 1, OUTER_B))
    assert addresses(table, "external") == {"b-a": {0: A, 1: OUTER_B}}


def test_a_broker_with_listeners_is_shown_only_at_those() -> None:
    table = group((A, 0, OUTER_A), (B, 1, ""))
    table.register(ours(C, 0, OUTER_B, name="b-b"))
    assert addresses(table, "vpn") == {"b-a": {1: B}}
    shown = table.cluster_info("vpn")
    assert (set(shown.broker_addr_table), shown.cluster_addr_table) == ({"b-a"}, {"C1": ["b-a"]})
    route = table.pick_up_route("T1", listener="vpn")
    assert route is not None and [each.broker_name for each in route.queue_datas] == ["b-a"]
    assert table.member_group("C1", "b-b", "vpn").broker_addrs == {}


def test_without_any_broker_at_the_listener_there_is_no_route() -> None:
    table = group((A, 0, OUTER_A))
    assert addresses(table, "vpn") == {}
    assert table.cluster_info("vpn").cluster_addr_table == {}
    assert table.system_topics("vpn").broker_addr is None


def test_aliases_and_the_elected_master_are_those_of_the_inside() -> None:
    table = group((A, 0, OUTER_A), (B, 1, OUTER_B), limits=AliasLimits(per_group=1))
    assert addresses(table, "external", aliases=True) == {
        "b-a": {0: OUTER_A, 1: OUTER_B},
        "b-a%alias1": {0: OUTER_B},
    }
    table.elected.elect("C1", "b-a", B, 7)
    assert addresses(table, "external") == {"b-a": {0: OUTER_B}}
    assert addresses(table, "internal") == {"b-a": {0: B}}


def test_a_changed_address_changes_the_version_of_the_answers() -> None:
    table = group((A, 0, OUTER_A))
    before = table.version
    table.register(ours(A, 0, OUTER_A))
    assert table.version == before
    table.register(ours(A, 0, OUTER_B))
    assert table.version > before
    assert addresses(table, "external") == {"b-a": {0: OUTER_B}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("external://mq", "'mq' is not host:port"),
        ("mq:1", "'mq:1' is not NAME://HOST:PORT"),
        ("internal://mq:1", "internal is listenPort at bindAddress, announced as brokerIP1"),
        ("a://mq:1;a://mq:2", "a is there twice"),
        (";".join(f"l{each}://mq:1" for each in range(9)), "9 listeners; 8 is the limit"),
        (f"external://{'m' * NAME_CHARS_MAX}:1", "an address has more than"),
    ],
)
def test_malformed_listeners_are_refused(text: str, why: str) -> None:
    table = group((A, 0, OUTER_A))
    refused = table.register(replace(ours(A, 0, ""), advertised_listeners=text))
    assert isinstance(refused, RegistrationRefused) and why in refused.remark
    assert addresses(table, "external") == {"b-a": {0: OUTER_A}}


# ---- the ports ----


async def ask_outside(port: int, code: int, **fields: object) -> RemotingCommand:
    wire = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        return await wire.ask(code, fields)
    finally:
        await wire.close()


async def test_the_port_decides_not_the_request(tmp_path: Path) -> None:
    port = free_port()
    async with serving(tmp_path, listeners=f"external://127.0.0.1:{port}") as (server, wire):
        body = body_of({"T1": {}})
        answer = await announce(wire, A, body=body, advertisedListeners=f"external://{OUTER_A}")
        assert (answer.code, answer.ext_fields["listeners"]) == (0, "external")
        inside = await wire.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1", "listener": "external"})
        outside = await ask_outside(port, Code.GET_ROUTEINFO_BY_TOPIC, topic="T1", listener="internal")
        assert json.loads(inside.body)["brokerDatas"][0]["brokerAddrs"] == {"0": A}
        assert json.loads(outside.body)["brokerDatas"][0]["brokerAddrs"] == {"0": OUTER_A}
        for code, fields in (
            (Code.GET_BROKER_CLUSTER_INFO, {}),
            (Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "FxCluster", "brokerName": "broker-a"}),
            (Code.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}),
        ):
            text = (await ask_outside(port, code, **fields)).body.decode()
            assert OUTER_A in text and A not in text, code
        assert server.listener_addresses == [("127.0.0.1", port)]


async def test_tls_can_be_enforced_at_listeners_and_not_inside(tmp_path: Path) -> None:
    port = free_port()
    keys = {"listeners": f"external://127.0.0.1:{port}", "listeners_tls_mode": "enforcing"}
    async with serving(tmp_path, **keys) as (_, wire):
        assert (await announce(wire, A, body=body_of({"T1": {}}))).code == 0
        plain, encrypted = RemotingClient(), RemotingClient(tls=ClientTls())
        try:
            for client, served in ((plain, False), (encrypted, True)):
                outcome = await client.call(
                    f"127.0.0.1:{port}", GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic="T1")
                )
                assert isinstance(outcome, Ok) is served
        finally:
            await plain.close()
            await encrypted.close()


async def test_rights_can_be_required_at_listeners_and_not_inside(tmp_path: Path) -> None:
    port = free_port()
    keys = {
        "listeners": f"external://127.0.0.1:{port}",
        "listeners_authentication_enabled": True,
        "listeners_authorization_enabled": True,
        "users_path": tmp_path / "users",
        "init_authentication_user": '{"username":"admin","password":"admin-pass-1"}',
    }
    async with serving(tmp_path, **keys) as (server, wire):
        assert (await announce(wire, A, body=body_of({"T1": {}}))).code == 0
        signed = RemotingClient(signer=signer_of(Credentials("admin", "admin-pass-1")))
        try:
            refused = await ask_outside(port, Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
            assert refused.code == ResponseCode.NO_PERMISSION
            route = RouteRequest(topic="T1")
            assert isinstance(await signed.call(f"127.0.0.1:{port}", GET_ROUTEINFO_BY_TOPIC, route), Ok)
            assert (await wire.ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T1"})).code == 0
        finally:
            await signed.close()
        (outside,) = server.security.accesses
        assert (server.security.access, outside.refusals["unsigned"]) == (None, 1)


async def test_brokers_use_listen_port_only(tmp_path: Path) -> None:
    port = free_port()
    async with serving(tmp_path, listeners=f"external://127.0.0.1:{port}") as (server, _):
        for code in (Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.BROKER_HEARTBEAT, 322):
            answer = await ask_outside(port, code, brokerName="b", brokerAddr=A, clusterName="c", brokerId=0)
            assert answer.code == 3
            assert answer.remark == "brokers register at listenPort, not at listener external"
        assert server.routes.counts()["brokers"] == 0


async def test_a_stale_registration_is_told_the_listeners_too(tmp_path: Path) -> None:
    """A deposed master that comes back logged that this name server has none of its listeners."""
    async with serving(tmp_path, listeners=f"external://127.0.0.1:{free_port()}") as (_, wire):
        newer = {"counter": 1, "stateVersion": 4, "timestamp": 1}
        body = body_of({"T1": {}}, dataVersion=newer)
        await announce(wire, B, body=body, advertisedListeners=f"external://{OUTER_B}")
        answer = await announce(
            wire, A, body=body_of({"T1": {}}), advertisedListeners=f"external://{OUTER_A}"
        )
        assert (answer.code, answer.ext_fields) == (0, {"listeners": "external"})


async def test_a_registration_without_listeners_is_answered_as_ever(tmp_path: Path) -> None:
    async with serving(tmp_path, listeners=f"external://127.0.0.1:{free_port()}") as (_, wire):
        answer = await announce(wire, A, body=body_of({"T1": {}}))
        assert (answer.code, answer.ext_fields) == (0, {})


async def test_routes_are_refused_at_every_listener_until_the_service_begins(tmp_path: Path) -> None:
    port = free_port()
    keys = {"need_wait_for_service": True, "listeners": f"external://127.0.0.1:{port}"}
    async with serving(tmp_path, **keys):
        answer = await ask_outside(port, Code.GET_ROUTEINFO_BY_TOPIC, topic="T1")
        assert (answer.code, answer.remark) == (1, "name server not ready")
