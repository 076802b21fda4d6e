"""SlaveSync: which HA address a slave believes."""

import socket
from pathlib import Path

from broker.ha.ports import MasterDoor
from broker.slave_sync import SlaveSync
from remoting.client import RemotingClient
from tests.unit.metadata_parts import open_metadata


async def test_what_a_name_server_says_counts_only_for_the_same_master(tmp_path: Path) -> None:
    """Namesrv pitfall 24: name servers may disagree; the controller says who is master."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        master = f"127.0.0.1:{gone.getsockname()[1]}"
    client = RemotingClient()
    sync = SlaveSync(client, open_metadata(tmp_path), broker_name="b-a")
    sync.route_ha_address = ("10.0.0.9:10911", "10.0.0.9:10912")
    assert await sync.find_master(master) is None
    sync.route_ha_address = (master, "10.0.0.1:10912")
    assert await sync.find_master(master) == MasterDoor("10.0.0.1:10912")
    await client.close()
