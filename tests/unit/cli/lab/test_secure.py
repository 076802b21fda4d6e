"""A lab with everything on: whose the clients of this process are, within the block and after it."""

from pathlib import Path

from cli.credentials import read_credentials
from cli.lab.secure import credentials_path, secured
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Call, Empty, Ok, OperationTable
from keelmq.remoting.operations.controller import GET_METADATA_INFO
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.security.signer import Credentials, signer_of
from tests.support.server_parts import server


async def access_key_of(client: RemotingClient, of: TcpServer, seen: list[str | None]) -> str | None:
    """Of a request of this client."""
    outcome = await client.call("{}:{}".format(*of.address), GET_METADATA_INFO, Empty())
    await client.close()
    assert isinstance(outcome, Ok), outcome
    return seen[-1]


async def test_clients_sign_within_the_block_only(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def serve(header: Empty, call: Call) -> Empty:
        seen.append(call.ext_fields.get("AccessKey"))
        return Empty()

    table = OperationTable()
    table.bind(GET_METADATA_INFO, serve)
    async with server(table) as plain:
        with secured(tmp_path, "KeelCluster") as keys:
            assert keys == {"securityPath": str(tmp_path / "security")}
            found = read_credentials(credentials_path(tmp_path))
            own = RemotingClient(signer=signer_of(Credentials("own", "secret")))
            made = RemotingClient()
            assert made.tls is not None and own.tls is not None
            made.tls = own.tls = None  # the server of this test has none
            assert await access_key_of(made, plain, seen) == found.credentials.access_key
            assert await access_key_of(own, plain, seen) == "own"
        after = RemotingClient()
        assert after.tls is None
        assert await access_key_of(after, plain, seen) is None


def test_an_open_lab_has_no_settings(tmp_path: Path) -> None:
    with secured(tmp_path, "KeelCluster", wanted=False) as keys:
        assert keys == {}
        assert RemotingClient().tls is None
    assert list(tmp_path.iterdir()) == []
