"""The HTTP port with TLS: what programs, browsers and probes of an orchestrator get."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from keelmq.remoting.servers.http import HttpServer
from keelmq.runtime.tls.contexts import Mode, PortTls, ServerTls
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import client_hello, closed, server_files
from tests.unit.keelmq.remoting.servers.test_http_limits import BIG, app


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@asynccontextmanager
async def http_server(tls: PortTls) -> AsyncIterator[HttpServer]:
    made = HttpServer(app(), host="127.0.0.1", port=0, tls=tls)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def verifying(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.path))
    context.check_hostname = False
    return context


async def status(of: HttpServer, scheme: str, verify: ssl.SSLContext | bool = False) -> int | None:
    """None: the connection was closed."""
    base = f"{scheme}://{of.address[0]}:{of.address[1]}"
    async with httpx.AsyncClient(base_url=base, verify=verify) as client:
        try:
            return (await client.get("/livez")).status_code
        except httpx.TransportError:
            return None


@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"),
    [("disabled", 200, None), ("permissive", 200, 200), ("enforcing", None, 200)],
)
async def test_who_is_served_in_each_mode(
    mode: Mode, plain: int | None, encrypted: int | None, authority: Authority
) -> None:
    tls = ServerTls(mode, server_files(authority))
    async with http_server(tls.http) as of:
        assert await status(of, "http") == plain
        assert await status(of, "https", verifying(authority)) == encrypted
        assert await status(of, "https") == encrypted  # a probe of Kubernetes does not verify


async def test_probes_have_no_certificate_and_need_none(authority: Authority) -> None:
    tls = ServerTls("enforcing", server_files(authority), client_auth="require")
    async with http_server(tls.http) as of:
        assert await status(of, "https") == 200


async def test_plain_probes_while_the_other_ports_enforce_tls(authority: Authority) -> None:
    tls = ServerTls("enforcing", server_files(authority), http_mode="permissive")
    async with http_server(tls.http) as of:
        assert await status(of, "http") == 200
        assert await status(of, "https", verifying(authority)) == 200


async def test_a_large_answer_and_one_connection_for_many_requests(authority: Authority) -> None:
    tls = ServerTls("enforcing", server_files(authority))
    async with http_server(tls.http) as of:
        base = f"https://{of.address[0]}:{of.address[1]}"
        async with httpx.AsyncClient(base_url=base, verify=verifying(authority)) as client:
            for _ in range(5):
                assert (await client.get("/livez")).json() == {"alive": True}
            assert (await client.get("/big")).content == BIG


async def test_quiet_handshakes_do_not_stop_probes_or_the_end(authority: Authority) -> None:
    """Twice as many as the port has connections; they end when the server does."""
    tls = ServerTls("enforcing", server_files(authority))
    anonymous_clients = []
    async with http_server(tls.http) as of:
        for _ in range(512):
            reader, writer = await asyncio.open_connection(*of.address)
            writer.write(client_hello()[:50])
            anonymous_clients.append((reader, writer))
        assert await status(of, "https") == 200
    for reader, writer in anonymous_clients:
        assert await closed(reader) == b""
        writer.close()
