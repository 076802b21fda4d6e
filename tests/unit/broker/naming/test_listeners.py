"""Further listeners of a broker (docs/adr/0077): settings, ports, and what name servers are told."""

import logging
from pathlib import Path

import pytest
from pydantic import ValidationError

from broker.app.broker import Broker
from broker.config.broker_config import BrokerConfig
from broker.naming.registration import missing_listeners
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import header_fields
from keelmq.remoting.operation import Ok, OperationTable
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2
from keelmq.remoting.operations.route import RegisterBrokerRequest, RegisterBrokerResponse
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import Credentials, signer_of
from namesrv.config import NamesrvConfig
from tests.support.ports import free_port
from tests.unit.broker.naming.test_route_registration import FakeNameServer, Registrations, registering
from tests.unit.broker.naming.test_vip_port import config, two_apart

OUTER = "external://0.0.0.0:20001"


# ---- settings ----


def test_without_an_entry_the_address_in_listeners_is_announced() -> None:
    settings = {
        "listeners": "external://10.0.0.5:20001;vpn://[::1]:20003",
        "advertisedListeners": "external://mq.example.com:31001",
    }
    loaded = BrokerConfig.model_validate(settings)
    assert loaded.advertised == {"external": ("mq.example.com", 31001), "vpn": ("::1", 20003)}
    assert loaded.further_listeners == {"external": ("10.0.0.5", 20001), "vpn": ("::1", 20003)}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listeners": OUTER}, "no client can connect to 0.0.0.0 of external"),
        ({"listeners": "external:20001"}, "'external:20001' is not NAME://HOST:PORT"),
        ({"listeners": "internal://h:1"}, "internal is listenPort at bindAddress, announced as brokerIP1"),
        ({"listeners": "a://h:1;a://h:2"}, "a is there twice"),
        ({"advertisedListeners": "vpn://h:1"}, "advertisedListeners: vpn is not in listeners"),
        ({"listeners": "a://h:1", "advertisedListeners": "a"}, "advertisedListeners: 'a' is not NAME"),
        ({"listeners": "a://h:10911"}, "listeners: a has port 10911, which is that of listenPort"),
        ({"listeners": "a://h:20911"}, "which is that of httpPort"),
        ({"listeners": "a://h:9", "fastListenPort": 9}, "which is that of fastListenPort"),
        ({"listeners": "a://h:9;b://h:9"}, "listeners: b has port 9, which is that of listener a"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BrokerConfig.model_validate(settings)
    assert why in str(refused.value)


def test_one_port_at_two_interfaces_is_fine() -> None:
    two = {"bindAddress": "10.0.0.1", "listeners": "a://10.0.0.2:10911"}
    assert BrokerConfig.model_validate(two).further_listeners == {"a": ("10.0.0.2", 10911)}


def test_a_name_server_checks_its_ports_as_well() -> None:
    with pytest.raises(ValidationError, match="external has port 9876, which is that of listenPort"):
        NamesrvConfig.model_validate({"listeners": "external://0.0.0.0:9876"})


# ---- ports ----


async def test_a_listener_serves_what_listen_port_serves_and_has_a_fast_port(tmp_path: Path) -> None:
    low, port = two_apart()
    low.close()
    settings = {
        "listenPort": 0,
        "listeners": f"external://127.0.0.1:{port}",
        "advertisedListeners": "external://mq.example.com:31001",
    }
    async with Broker(config(tmp_path, **settings)) as broker:
        client = RemotingClient(OperationTable())
        header = SendMessageRequestV2(a="P", b="TopicA", c="TBW102", d=4, e=0, g=wall_ms())
        try:
            for at in (broker.address, f"127.0.0.1:{port}", f"127.0.0.1:{port - 2}"):
                assert isinstance(await client.call(at, SEND_MESSAGE_V2, header, b"body"), Ok), at
            assert broker.listeners.connection_count == 3
        finally:
            await client.close()
        assert "listener external announced as mq.example.com:31001" in broker.status.describe()
        registrations = await broker.status.registrations()
        assert registrations is not None
        told = registrations.requests[0][0]
        assert told.broker_addr == broker.address
        assert told.advertised_listeners == "external://mq.example.com:31001"


async def test_a_listener_whose_port_is_taken_stops_the_start(tmp_path: Path) -> None:
    low, port = two_apart()
    with low, pytest.raises(ConfigError, match=rf"listener external: cannot listen on .*:{port - 2}"):
        async with Broker(config(tmp_path, listenPort=0, listeners=f"external://127.0.0.1:{port - 2}")):
            pass


async def test_tls_can_be_enforced_at_listeners_and_not_inside(tmp_path: Path) -> None:
    low, port = two_apart()
    low.close()
    settings = {"listeners": f"external://127.0.0.1:{port}", "listenersTlsMode": "enforcing"}
    async with Broker(config(tmp_path, listenPort=0, **settings)) as broker:
        plain, encrypted = RemotingClient(OperationTable()), RemotingClient(OperationTable(), tls=ClientTls())
        header = SendMessageRequestV2(a="P", b="TopicA", c="TBW102", d=4, e=0, g=wall_ms())
        try:
            for client, at, served in (
                (plain, broker.address, True),
                (plain, f"127.0.0.1:{port}", False),
                (plain, f"127.0.0.1:{port - 2}", False),
                (encrypted, f"127.0.0.1:{port}", True),
                (encrypted, f"127.0.0.1:{port - 2}", True),
            ):
                assert isinstance(await client.call(at, SEND_MESSAGE_V2, header, b"body"), Ok) is served, at
        finally:
            await plain.close()
            await encrypted.close()


async def test_signatures_can_be_required_at_listeners_and_not_inside(tmp_path: Path) -> None:
    low, port = two_apart()
    low.close()
    settings = {
        "listeners": f"external://127.0.0.1:{port}",
        "listenersAuthenticationEnabled": True,
        "initAuthenticationUser": '{"username":"admin","password":"admin-pass-1"}',
    }
    async with Broker(config(tmp_path, listenPort=0, **settings)) as broker:
        anonymous = RemotingClient(OperationTable())
        signed = RemotingClient(OperationTable(), signer=signer_of(Credentials("admin", "admin-pass-1")))
        header = SendMessageRequestV2(a="P", b="TopicA", c="TBW102", d=4, e=0, g=wall_ms())
        try:
            for client, at, served in (
                (anonymous, broker.address, True),
                (anonymous, f"127.0.0.1:{port}", False),
                (anonymous, f"127.0.0.1:{port - 2}", False),
                (signed, f"127.0.0.1:{port}", True),
                (signed, f"127.0.0.1:{port - 2}", True),
            ):
                outcome = await client.call(at, SEND_MESSAGE_V2, header, b"body")
                assert isinstance(outcome, Ok) is served, at
                assert served or outcome.code == ResponseCode.NO_PERMISSION
        finally:
            await anonymous.close()
            await signed.close()
        (outside,) = broker.security.accesses
        assert (broker.security.access, outside.refusals["unsigned"]) == (None, 2)


# ---- registration ----


async def test_without_listeners_a_registration_is_the_same_to_the_byte(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, listenPort=free_port(), fastListenPort=-1)) as broker:
        registrations = await broker.status.registrations()
    assert registrations is not None
    fields = header_fields(registrations.requests[0][0])
    assert set(fields) == {
        "brokerName", "brokerAddr", "clusterName", "haServerAddr", "brokerId", "enableActingMaster",
        "compressed", "bodyCrc32",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("announced", "present", "missing"),
    [
        ("external://h:1", "external", []),
        ("external://h:1;vpn://h:2", "external", ["vpn"]),
        ("external://h:1", None, ["external"]),  # RocketMQ's
        (None, None, []),
    ],
)
def test_missing_listeners(announced: str | None, present: str | None, missing: list[str]) -> None:
    request = RegisterBrokerRequest(
        broker_name="b", broker_addr="h:9", cluster_name="c", broker_id=0, advertised_listeners=announced
    )
    assert missing_listeners(request, RegisterBrokerResponse(listeners=present)) == missing


async def test_a_listener_that_a_name_server_lacks_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeNameServer()
    header = RegisterBrokerRequest(
        broker_name="b", broker_addr="h:9", cluster_name="c", broker_id=0, advertised_listeners=OUTER
    )

    async def registration() -> Registrations:
        return Registrations([(header, b"{}")])

    with caplog.at_level(logging.WARNING):
        async with registering(registration, server) as routes:
            await server.seen.get()
            routes.trigger()
            await server.seen.get()
            routes.trigger()
            await server.seen.get()
    assert caplog.text.count("has no listener external (its key listeners)") == 1
