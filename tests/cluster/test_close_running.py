"""docs/security.md, from open to closed without downtime: its rounds at a cluster under traffic, one server
after the other. No acknowledged message is lost, and nobody is refused before the last round."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.credentials import read_credentials
from cli.init_security import SecurityOptions, create
from cli.lab.cluster import Program
from keelmq import Message, Producer, SendError
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import connect_with
from keelmq.runtime.tls.contexts import ClientTls
from tests.support.harness import SAFE, Harness
from tests.support.pages import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

SETTING = re.compile(r"^ +([\w.]+)=(\S*)$", re.MULTILINE)


def rounds() -> tuple[dict[str, str], dict[str, str], list[str]]:
    """The settings of round 1: for all, and for brokers too; and those that round 2 takes back."""
    text = (ROOT / "docs" / "security.md").read_text()
    section = text.partition("## From open to closed without downtime")[2].partition("\n## ")[0]
    first, second = section.split("2. Remove ")
    of_all, of_brokers = re.findall(r"```properties\n(.*?)```", first, re.DOTALL)
    return (
        dict(SETTING.findall(of_all)),
        dict(SETTING.findall(of_brokers)),
        re.findall(r"`([\w.]+)=false`", second.partition(" and restart")[0]),
    )


@pytest.fixture(autouse=True)
def _tls_for_our_clients() -> Iterator[None]:
    """Every server serves it in each round; an open one has a self-signed certificate."""
    connect_with(ClientTls.of(True))
    yield
    connect_with(None)


async def restart_all(running: Harness) -> None:
    """One after the other, each when the cluster is whole again."""
    for program in running.cluster.programs:
        program.write()
        await asyncio.to_thread(running.cluster.stop_program, program, 20)
        running.cluster.start_program(program)
        await running.all_in_sync()
        await running.acked(20)


async def anonymous_client_sends(namesrv_addr: str) -> bool:
    """As the clients of an open cluster: plain and unsigned."""
    async with Producer(namesrv_addr, tls=False) as producer:
        try:
            await producer.send(Message("unknown", b"plain"), timeout_ms=3_000)
        except SendError:
            return False
    return True


async def test_a_running_cluster_is_closed_in_three_rounds(tmp_path: Path) -> None:
    directory = tmp_path / "security"
    create(directory, SecurityOptions("KeelCluster", ("127.0.0.1",)))
    admin = read_credentials(directory / "admin" / "credentials.yml").credentials
    of_all, of_brokers, taken_back = rounds()
    assert of_all["securityPath"] and {"tls.enable", "haTlsEnable"} == set(taken_back)
    of_all["securityPath"] = str(directory)
    async with Harness(tmp_path / "cluster", broker_settings=SAFE, rate=100, credentials=admin) as running:
        cluster = running.cluster
        before = {program.name: dict(program.settings) for program in cluster.programs}

        def settings(program: Program) -> dict[str, str]:
            return {**of_all, **(of_brokers if program in cluster.brokers else {})}

        running.produce()
        await running.acked(50)
        for program in cluster.programs:
            program.settings.update(settings(program))
        await restart_all(running)
        assert await anonymous_client_sends(cluster.namesrv_addr)

        for program in cluster.programs:
            for key in taken_back:
                program.settings.pop(key, None)
        await restart_all(running)
        assert await anonymous_client_sends(cluster.namesrv_addr)

        for program in cluster.programs:
            program.settings.clear()
            program.settings.update(before[program.name], securityPath=str(directory))
        await restart_all(running)
        assert not await anonymous_client_sends(cluster.namesrv_addr)
        for program in cluster.programs:
            async with AdminClient(timeout_ms=2_000) as anonymous:
                with pytest.raises(AdminError, match="username cannot be null"):
                    await anonymous.brokers.broker_config(program.address)
        report = await running.compare()
        assert report.lost == 0 and report.damaged == 0, report
