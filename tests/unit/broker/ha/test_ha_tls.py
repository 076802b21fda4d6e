"""HA links over TLS: real masters and slaves, catch-up, fail-over, and peers that break handshakes."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvloop
from msgspec.structs import replace

from broker.config.broker_config import BrokerConfig
from broker.controller_mode.replication_settings import ha_security
from broker.ha import master_server
from broker.ha.catch_up import SendfileBatch
from broker.ha.core import hello
from broker.ha.security import HaSecurity
from broker.ha.slave_protocol import SlaveProtocol
from keelmq.runtime.config import ConfigError
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.core.address_patterns import parse_pattern
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import client_files, client_hello, server_tls, trusting
from tests.unit.broker.ha.test_ha_membership import (
    FIRST,
    MEMBER,
    PLAIN,
    AnonymousPeer,
    follow_at,
    java_like,
    listening,
    members,
)
from tests.unit.broker.ha.test_ha_service import same, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def over_tls(authority: Authority, security: HaSecurity = MEMBER, *names: str) -> HaSecurity:
    """Both directions; `names` of the certificate that a slave shows."""
    client = trusting(authority, *names) if names else trusting(authority)
    return replace(security, tls=server_tls(authority, "enforcing", "optional"), client_tls=client)


async def replicate(tmp_path: Path, authority: Authority) -> None:
    secure = over_tls(authority)
    async with members(tmp_path, secure, secure) as (one, two):
        one.put(count=700)  # more than one file
        await two.follow(one, 1)
        await until(lambda: one.in_sync() == [1, 2], "joins")
        end = one.put()
        await until(lambda: one.replicated[-1] == end, "acks")
        await until(lambda: same(one, two), "same logs")
        await two.service.stop()
        one.put(b"lost" * 30, 3)
        await two.restart()
        await two.lead(2)
        two.put(b"new", 4)
        await one.follow(two, 2)
        await until(lambda: same(two, one), "the old master truncates its log, and follows")
        assert b"lost" not in one.log_bytes()
        assert not one.service.server.refused and not two.service.server.refused


async def test_members_replicate_and_fail_over(tmp_path: Path, authority: Authority) -> None:
    await replicate(tmp_path, authority)


def test_members_replicate_on_the_loop_of_production(tmp_path: Path, authority: Authority) -> None:
    uvloop.run(replicate(tmp_path, authority))


async def test_a_far_replica_catches_up_without_sendfile(
    tmp_path: Path, authority: Authority, sent: list[SendfileBatch]
) -> None:
    """sendfile would send the log as it is on the disk: in plain."""
    secure = replace(over_tls(authority), tls=server_tls(authority, "permissive"))
    plain = replace(MEMBER, client_tls=None)
    async with members(tmp_path, secure, secure, plain) as (master, slave, third):
        for _ in range(10):
            master.put(bytes(1_000), 60)
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "caught up")
        assert not sent
        await third.follow(master, 1)
        await until(lambda: same(master, third), "the other one, which is plain")
        assert sent


# -- the port ----------------------------------------------------------------------------------------------


async def test_a_handshake_that_ends_after_the_reports_have_sends_nothing(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave was elected meanwhile: its old master would count what it gets."""
    begun, goes_on, transport = asyncio.Event(), asyncio.Event(), Mock(asyncio.Transport)

    async def held(tls: ClientTls, make_protocol: Callable[[], SlaveProtocol], *_: object) -> Mock:
        begun.set()
        await goes_on.wait()
        protocol = make_protocol()
        protocol.connection_made(transport)
        protocol.connection_lost(None)
        return Mock(protocol=protocol)

    monkeypatch.setattr("broker.ha.slave_client.open_tls", held)
    secure = over_tls(authority)
    async with members(tmp_path, secure, secure) as (one, two):
        await two.follow(one, 1)
        await begun.wait()
        assert two.service.client is not None
        await two.service.client.end_reports()
        goes_on.set()
        await until(lambda: bool(transport.method_calls), "connected")
        transport.write.assert_not_called()
        transport.abort.assert_called_once()


async def test_enforcing_refuses_plain_peers(tmp_path: Path, authority: Authority) -> None:
    secure = over_tls(authority)
    async with members(tmp_path, secure, replace(secure, client_tls=None)) as (master, slave):
        assert await (await AnonymousPeer.at(master, FIRST)).told() == b""
        await slave.follow(master, 1)
        await until(lambda: master.service.server.refused["tls_plain_refused"] > 2, "the slave, too")
        assert slave.log_bytes() == b"" and not master.service.links


async def test_permissive_serves_both(tmp_path: Path, authority: Authority) -> None:
    secure = replace(over_tls(authority), tls=server_tls(authority, "permissive"))
    async with members(tmp_path, secure, secure, MEMBER) as (master, slave, plain):
        await slave.follow(master, 1)
        await plain.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2, 3], "both join")


async def test_a_slave_with_tls_and_a_master_without(tmp_path: Path, authority: Authority) -> None:
    async with members(tmp_path, MEMBER, over_tls(authority)) as (master, slave):
        await slave.follow(master, 1)
        await until(lambda: "haTlsMode" in slave.last_reason, "a reason that names the key")
        assert master.service.server.refused[hello.NOT_CONFIGURED] > 0


async def test_a_master_of_another_ca_is_not_followed(tmp_path: Path, authority: Authority) -> None:
    other = trusting(Authority(tmp_path / "other"))
    secure = over_tls(authority)
    async with members(tmp_path, secure, replace(secure, client_tls=other)) as (master, slave):
        await slave.follow(master, 1)
        await until(lambda: "not signed by" in slave.last_reason, "refused")
        assert not master.service.links and master.service.server.refused["tls_failed"] > 0


async def test_half_handshakes_neither_stay_nor_keep_a_slave_out(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_server, "LINKS_MAX", 4)
    monkeypatch.setattr(master_server, "DEADLINE_MS", 500)
    secure = over_tls(authority)
    async with members(tmp_path, secure, secure) as (master, slave):
        half = [await AnonymousPeer.at(master, client_hello()) for _ in range(6)]
        silent = [await AnonymousPeer.at(master) for _ in range(6)]
        await slave.follow(master, 1)
        await until(lambda: master.in_sync() == [1, 2], "joins")
        for anonymous in half + silent:
            told = await anonymous.told()
            assert not told or told[0] == 0x16, "no more than the handshake of TLS"
        assert (
            master.service.server.refused["tls_evicted"] > 0
            and master.service.server.refused["tls_timed_out"] > 0
        )
        assert list(master.service.links) == [2]


async def test_an_anonymous_client_with_tls_gets_nothing_either(tmp_path: Path, authority: Authority) -> None:
    async with members(tmp_path, over_tls(authority)) as (master,):
        context = trusting(authority).context
        reader, writer = await asyncio.open_connection(*master.service.address, ssl=context)
        writer.write(FIRST)
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()
        assert master.service.server.refused == {hello.NO_CREDENTIALS: 1}


# -- who is at the other end -------------------------------------------------------------------------------


@pytest.mark.parametrize("to_master", ["TLS", "plain"])
async def test_nobody_in_between_can_end_tls_and_pass_the_proofs_on(
    tmp_path: Path, authority: Authority, to_master: str
) -> None:
    """No certificate is verified here, and the one in between has a copy of every byte."""
    blind = replace(
        over_tls(authority), tls=server_tls(authority, "permissive"), client_tls=ClientTls(verify=False)
    )
    files = authority.issue("in-between")
    to_slave = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    to_slave.load_cert_chain(files.certificate, files.key)
    context = ClientTls(verify=False).context if to_master == "TLS" else None
    async with members(tmp_path, blind, blind) as (master, slave):

        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            its_reader, its_writer = await asyncio.open_connection(*master.service.address, ssl=context)
            its_writer.write(await reader.read(65_536))
            writer.write(await its_reader.read(65_536))
            writer.close()
            its_writer.close()

        async with listening(pass_on, ssl=to_slave) as address:
            await follow_at(slave, address)
            await until(lambda: master.service.server.refused[hello.WRONG_CREDENTIALS] > 1, "refused")
        assert slave.log_bytes() == b"" and not master.service.links
        await slave.follow(master, 1)
        await until(lambda: same(master, slave), "directly it does")


async def test_a_certificate_of_a_member_needs_no_hello(tmp_path: Path, authority: Authority) -> None:
    by_name = replace(
        MEMBER,
        certificate_names=frozenset({"member.example"}),
        tls=server_tls(authority, "enforcing", "optional"),
    )
    good = replace(PLAIN, client_tls=trusting(authority, "member.example", "a"))
    other = replace(PLAIN, client_tls=trusting(authority, "other.example"))
    none = replace(PLAIN, client_tls=trusting(authority))
    unverified = ClientTls(client_files(Authority(tmp_path / "self-made"), "member.example"))
    false = replace(PLAIN, client_tls=unverified)
    async with members(tmp_path, by_name, good, other, none, false) as (master, *slaves):
        master.put()
        for slave in slaves:
            await slave.follow(master, 1)
        await until(lambda: same(master, slaves[0]), "with the name")
        await until(lambda: master.service.server.refused[hello.NO_CREDENTIALS] > 3, "without it")
        await until(lambda: master.service.server.refused["tls_failed"] > 1, "of an unknown CA")
        assert list(master.service.links) == [2]
        assert all(slave.log_bytes() == b"" for slave in slaves[1:])


async def test_a_slave_of_rocketmq_is_plain(tmp_path: Path, authority: Authority) -> None:
    secure = replace(
        over_tls(authority),
        tls=server_tls(authority, "permissive"),
        plain_slaves=(parse_pattern("127.0.0.1"),),
    )
    async with members(tmp_path, secure) as (master,):
        java = await AnonymousPeer.at(master, java_like(3))
        await until(lambda: list(master.service.links) == [3], "connected")
        java.writer.close()


# -- the keys ----------------------------------------------------------------------------------------------


INNER = '{"accessKey":"member","secretKey":"the secret"}'


def config(**keys: object) -> BrokerConfig:
    return BrokerConfig.model_validate({"brokerName": "b", "brokerClusterName": "c", **keys})


def test_nothing_is_closed_by_default() -> None:
    security = ha_security(config())
    assert (security.required, security.group, security.tls, security.client_tls) == (False, None, None, None)


def test_credentials_close_the_port() -> None:
    security = ha_security(config(innerClientAuthenticationCredentials=INNER))
    assert security.required and not security.plain_master
    assert security.group == MEMBER.group
    lenient = ha_security(
        config(innerClientAuthenticationCredentials=INNER, haAuthenticationRequired=False, haPlainMaster=True)
    )
    assert not lenient.required and lenient.plain_master and lenient.group == MEMBER.group


def test_addresses_are_patterns() -> None:
    found = ha_security(config(haPlainSlaves="10.0.0.{1,2}; 192.168.*,fe80::1 ;")).plain_slaves
    assert [each.text for each in found] == ["10.0.0.{1,2}", "192.168.*,fe80::1"]
    with pytest.raises(ValueError, match="address pattern"):
        config(haPlainSlaves="10.0.0.300")


def test_tls_of_the_ha_port_is_a_mode_of_its_own(authority: Authority) -> None:
    files = authority.issue("localhost")
    keys = {
        "tls.server.mode": "disabled",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.server.need.client.auth": "optional",
        "tls.server.trustCertPath": str(files.trust),
        "memberCertificateNames": "localhost",
    }
    security = ha_security(config(**keys, haTlsMode="enforcing", haTlsEnable=True))
    assert security.tls is not None and security.tls.mode == "enforcing" and security.tls.is_made
    assert security.client_tls is not None
    assert security.required, "certificates prove membership, too"
    assert not ha_security(config(**keys)).required
    with pytest.raises(ConfigError, match="haAuthenticationRequired=true needs"):
        ha_security(config(**keys, haAuthenticationRequired=True))
    with pytest.raises(ConfigError, match=r"tls\.server\.certPath"):
        ha_security(config(haTlsMode="enforcing", **{"tls.test.mode.enable": False}))
