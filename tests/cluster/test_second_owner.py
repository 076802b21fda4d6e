"""A broker that is paused while a copy of its disk takes its place (real processes): one master an epoch."""

import shutil
from pathlib import Path

import pytest

from cli.lab.cluster import Cluster, Program
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Failed, Ok, Outcome
from keelmq.remoting.operations.broker import SEND_MESSAGE_V2, SendMessageRequestV2, SendMessageResponse
from tests.support.ports import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(90)]


async def role_of(admin: AdminClient, broker: Program) -> dict[str, str]:
    try:
        return dict(await admin.brokers.runtime_info(broker.address))
    except AdminError:
        return {}


async def send(broker: Program) -> Outcome[SendMessageResponse]:
    client = RemotingClient()
    try:
        header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        return await client.call(broker.address, SEND_MESSAGE_V2, header, b"m", timeout_ms=10_000)
    finally:
        await client.close()


def copy_of(broker: Program) -> Program:
    """Returns the program that runs over a copy of the broker's disk, at other ports."""
    ha_port, port = free_port(), free_port()
    place = broker.directory / "copy"
    shutil.copytree(broker.settings["storePathRootDir"], place)
    changes = {"listenPort": str(port), "haListenPort": str(ha_port), "storePathRootDir": str(place)}
    made = Program("copy", "broker", broker.directory, {**broker.settings, **changes}, f"127.0.0.1:{port}")
    made.write()
    return made


async def test_a_master_that_was_paused_is_no_second_master(tmp_path: Path) -> None:
    async with AdminClient() as admin:
        with Cluster(tmp_path, name_servers=1, brokers=1) as cluster:
            cluster.start()
            (original,) = cluster.brokers

            async def leads(broker: Program) -> dict[str, str] | None:
                role = await role_of(admin, broker)
                return role if role.get("brokerActive") == "true" else None

            first = await cluster.until("a master", lambda: leads(original), timeout_s=30)
            assert isinstance(await send(original), Ok)
            cluster.pause(original)
            copy = copy_of(original)
            cluster.brokers.append(copy)
            cluster.start_program(copy)
            second = await cluster.until("the copy is master", lambda: leads(copy), timeout_s=30)
            assert int(second["masterEpoch"]) > int(first["masterEpoch"])
            cluster.resume(original)

            async def gave_up() -> bool:
                return (await role_of(admin, original)).get("masterEpoch") == "0"

            await cluster.until("the original serves nothing", gave_up, timeout_s=20)
            refused = await send(original)
            assert isinstance(refused, Failed) and copy.address in refused.remark, refused
            assert isinstance(await send(copy), Ok)
            assert "until a restart" in original.log_path.read_text()


async def test_a_clone_that_tells_the_address_of_the_original_is_no_second_master(tmp_path: Path) -> None:
    """The whole machine was cloned, with brokerIP1 in the configuration."""
    async with AdminClient() as admin:
        with Cluster(tmp_path, name_servers=1, brokers=1) as cluster:
            cluster.start()
            (original,) = cluster.brokers

            async def leads() -> dict[str, str] | None:
                role = await role_of(admin, original)
                return role if role.get("brokerActive") == "true" else None

            first = await cluster.until("a master", leads, timeout_s=30)
            shutil.copytree(original.settings["storePathRootDir"], tmp_path / "clone")
            changes = {"bindAddress": "127.0.0.2", "storePathRootDir": str(tmp_path / "clone")}
            address = original.address.replace("127.0.0.1", "127.0.0.2")
            clone = Program("clone", "broker", tmp_path, {**original.settings, **changes}, address)
            clone.write()
            cluster.brokers.append(clone)
            cluster.start_program(clone)

            async def refused() -> bool:
                return f"is in use at {original.address}" in clone.log_path.read_text()

            await cluster.until("the clone is refused", refused, timeout_s=20)
            assert isinstance(await send(original), Ok) and isinstance(await send(clone), Failed)
            assert (await role_of(admin, original))["masterEpoch"] == first["masterEpoch"]
