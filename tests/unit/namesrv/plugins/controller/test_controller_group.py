"""Operators and real controllers: settings reach all and stay, whoever is asked; the state moves house."""

import shutil
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations import controller as wire
from namesrv.app import Namesrv
from namesrv.plugins.controller.config import ControllerConfig
from tests.unit.namesrv.plugins.controller.test_controller_plugin import (
    GROUP,
    address_of,
    brokers,
    free_ports,
    in_sync,
    members,
    plugin_of,
    server,
    until,
)


def a_leader(servers: dict[str, Namesrv]) -> str | None:
    return next((each for each in servers if plugin_of(servers[each]).replicator.is_active), None)


def everywhere(servers: dict[str, Namesrv]) -> list[int]:
    return [plugin_of(each).config.controller_grace_ms for each in servers.values()]


async def run(stack: AsyncExitStack, configs: dict[str, ControllerConfig]) -> dict[str, Namesrv]:
    servers = {each: server(config) for each, config in configs.items()}
    for each in servers.values():
        await stack.enter_async_context(each)
    await until(lambda: a_leader(servers) is not None, "a leader")
    await until(
        lambda: all(plugin_of(each).replicator.leader_id is not None for each in servers.values()),
        "everybody knows it",
    )
    return servers


async def test_settings_reach_all_controllers_and_survive_restart_and_file(tmp_path: Path) -> None:
    """As updateControllerConfig does it: one request to each controller, followers first if it happens so."""
    configs = members(tmp_path, ["n0", "n1", "n2"])
    async with AsyncExitStack() as stack:
        servers = await run(stack, configs)
        leader = a_leader(servers)
        client = RemotingClient()
        stack.push_async_callback(client.close)
        for each in sorted(configs, key=lambda name: name == leader):
            outcome = await client.call(
                address_of(configs[each]),
                wire.UPDATE_CONTROLLER_CONFIG,
                wire.UpdateConfigRequest(),
                b"controllerGraceMs=1234",
            )
            assert isinstance(outcome, Ok), outcome
        await until(lambda: everywhere(servers) == [1234] * 3, "in force everywhere")
        follower = next(each for each in configs if each != leader)
        outcome = await client.call(
            address_of(configs[follower]),
            wire.UPDATE_CONTROLLER_CONFIG,
            wire.UpdateConfigRequest(),
            b"controllerGraceMs=-1",
        )
        assert isinstance(outcome, Failed) and "greater than or equal to 0" in outcome.remark
    changed = {each: config.model_copy(update={"controller_grace_ms": 9}) for each, config in configs.items()}
    async with AsyncExitStack() as stack:
        servers = await run(stack, changed)
        await until(lambda: everywhere(servers) == [1234] * 3, "over the new files, after a restart")


async def test_the_state_moves_to_new_controllers_and_the_group_goes_on(tmp_path: Path) -> None:
    """Over HTTP, as a person does it: look at the election, export, import, look at the history."""
    (config,) = members(tmp_path / "old", ["n0"]).values()
    address = address_of(config)
    async with server(config, http_port=free_ports(1)[0]) as old:
        await until(lambda: plugin_of(old).replicator.is_active, "active")
        async with brokers([address]) as (one, two), httpx.AsyncClient() as http:
            await one.join(address)
            await two.join(address)
            await in_sync(one, address)
            base = f"http://127.0.0.1:{(old.http_address or ('', 0))[1]}/v1"
            asked = {"brokerName": GROUP, "brokerId": 2, "designateElect": True}
            dry = await http.post(f"{base}/electMaster", json={**asked, "dryRun": True})
            explained = dry.json()["body"]["explanation"]
            assert (explained["newMasterBrokerId"], explained["isChange"]) == (2, True)
            assert (await http.post(f"{base}/explainElection", json=asked)).json() == dry.json()
            assert plugin_of(old).machine.state.brokers[GROUP].master_broker_id == 1
            assert (await http.post(f"{base}/electMaster", json=asked)).status_code == 200
            exported = (await http.post(f"{base}/exportState", json={})).json()["body"]
    (config,) = members(tmp_path / "new", ["n0"]).values()
    async with server(config, http_port=free_ports(1)[0]) as new:
        await until(lambda: plugin_of(new).replicator.is_active, "active")
        base = f"http://127.0.0.1:{(new.http_address or ('', 0))[1]}/v1"
        async with httpx.AsyncClient() as http:
            imported = await http.post(f"{base}/importState", json={"body": exported})
            assert imported.json() == {"groups": 1}
            history = (await http.post(f"{base}/getElections", json={"brokerName": GROUP})).json()["body"]
            assert [each["newMasterBrokerId"] for each in history["elections"]] == [2, 1]
            assert [each["reason"] for each in history["elections"]] == ["designated", "first election"]
            bad = await http.post(f"{base}/importState", json={"body": {"v": 99}})
            assert (bad.status_code, bad.json()["code"]) == (409, 2005)
            cleaned = await http.post(
                f"{base}/cleanBrokerData",
                json={"brokerName": GROUP, "brokerControllerIdsToClean": "9"},
            )
            assert (cleaned.status_code, cleaned.json()["code"]) == (409, 2009)
        async with brokers([address_of(config)]) as (_one, two):
            await two.heartbeat()
            await two.client.call(
                address_of(config),
                wire.ELECT_MASTER,
                wire.ElectMasterRequest(broker_name=GROUP),
                good=(2011,),
            )
            group = plugin_of(new).machine.state.brokers[GROUP]
            assert (group.master_broker_id, group.master_epoch) == (2, 2), "nobody is deposed by the move"


@pytest.mark.slow
async def test_the_log_keeps_its_name_until_the_directories_are_deleted(tmp_path: Path) -> None:
    """The same at all controllers, over a restart and a change of the leader."""
    configs = members(tmp_path, ["n0", "n1", "n2"])

    async def set_grace(servers: dict[str, Namesrv], text: bytes) -> set[str]:
        """Changes a setting, and returns the names that the controllers then have for the log."""
        client, address = RemotingClient(), address_of(configs[a_leader(servers) or ""])
        outcome = await client.call(address, wire.UPDATE_CONTROLLER_CONFIG, wire.UpdateConfigRequest(), text)
        assert isinstance(outcome, Ok), outcome
        await client.close()
        await until(lambda: everywhere(servers) == [int(text.partition(b"=")[2])] * 3, "everywhere")
        return {plugin_of(each).machine.state.log_id for each in servers.values()}

    async with AsyncExitStack() as stack:
        servers = await run(stack, configs)
        (name,) = await set_grace(servers, b"controllerGraceMs=1001")
        assert name
    async with AsyncExitStack() as stack:
        servers = await run(stack, configs)
        assert await set_grace(servers, b"controllerGraceMs=1002") == {name}
        leader = a_leader(servers) or ""
        follower = next(each for each in configs if each != leader)
        await plugin_of(servers[leader]).replicator.transfer_leadership(follower)
        await until(lambda: a_leader(servers) == follower, "another leader")
        assert await set_grace(servers, b"controllerGraceMs=1003") == {name}
    for config in configs.values():
        shutil.rmtree(config.directory)
    async with AsyncExitStack() as stack:
        servers = await run(stack, configs)
        (other,) = await set_grace(servers, b"controllerGraceMs=1004")
        assert other and other != name


async def test_1005_is_answered_by_all_and_leads_to_one(tmp_path: Path) -> None:
    configs = members(tmp_path, ["n0", "n1", "n2"])
    async with AsyncExitStack() as stack:
        servers = await run(stack, configs)
        client = RemotingClient()
        stack.push_async_callback(client.close)
        answers = []
        for config in configs.values():
            outcome = await client.call(address_of(config), wire.GET_METADATA_INFO, Empty())
            assert isinstance(outcome, Ok)
            answers.append(outcome.header)
        leader = a_leader(servers)
        assert leader is not None
        assert {each.controller_leader_id for each in answers} == {leader}
        assert {each.controller_leader_address for each in answers} == {address_of(configs[leader])}
        assert [each.is_leader for each in answers] == [name == leader for name in configs]
