"""`::` is both families, whatever the machine's default is; every other address is what it says."""

import asyncio
import socket
from pathlib import Path

import pytest

from keelmq.remoting.servers import http_port
from keelmq.remoting.servers.listening import create_server
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.plugin import raft_settings
from tests.support.ports import free_port
from tests.support.raft_group import Group, until

REACHED = {
    "::": {"127.0.0.1", "::1"},
    "0.0.0.0": {"127.0.0.1"},
    "127.0.0.1": {"127.0.0.1"},
    "::1": {"::1"},
}
"""Bound -> where a client on this machine connects."""


def reached(port: int) -> set[str]:
    found = set()
    for host in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((host, port), timeout=5).close()
        except OSError:
            continue
        found.add(host)
    return found


@pytest.mark.parametrize("host", REACHED)
async def test_who_reaches_a_port(host: str) -> None:
    server = await create_server(asyncio.Protocol, host, 0, backlog=5)
    assert {sock.proto for sock in server.sockets} == {socket.IPPROTO_TCP}, "no TCP_NODELAY without it"
    port = server.sockets[0].getsockname()[1]
    assert await asyncio.to_thread(reached, port) == REACHED[host]
    with pytest.raises(OSError, match="in use"):
        await create_server(asyncio.Protocol, host, port, backlog=5)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("host", REACHED)
def test_who_reaches_a_port_of_http(host: str) -> None:
    with http_port.listening_socket(host, 0) as sock:
        assert reached(sock.getsockname()[1]) == REACHED[host]


async def test_controllers_meet_at_either_family(tmp_path: Path) -> None:
    async with Group(tmp_path, listen_host="::") as group:
        await until(lambda: any(each.is_active for each in group.running.values()), "a leader")
        ports = [port for _, port in group.members.values()]
        for port in ports:
            assert await asyncio.to_thread(reached, port) == REACHED["::"]


@pytest.mark.parametrize(
    ("bind_address", "host", "listens"),
    [
        ("0.0.0.0", "keelmq-namesrv-0.keelmq-namesrv", None),
        ("::", "keelmq-namesrv-0.keelmq-namesrv", "::"),
        ("::", "10.0.0.4", None),
        ("::", "localhost", None),
    ],
)
def test_a_controller_with_a_name_listens_as_its_name_server(
    bind_address: str, host: str, listens: str | None, tmp_path: Path
) -> None:
    """An address in controllerDLegerPeers stays the one that is bound."""
    config = ControllerConfig.model_validate(
        {
            "controllerDLegerGroup": "g",
            "controllerDLegerPeers": f"n0-{host}:{free_port()}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": tmp_path / "n0",
            "controllerRaftSecret": "0123456789abcdef0123456789abcdef",
        }
    )
    assert raft_settings(config, bind_address).listen_host == listens
