"""A fail-over of brokers whose HA links need credentials and TLS, among anonymous clients at the replication
port."""

import asyncio
from pathlib import Path

import pytest

from broker.ha.core.frames import Ack, SlaveHandshake
from cli.lab.cluster import Program
from keelmq.runtime.tls.contexts import ClientTls
from tests.support.harness import SAFE, Harness
from tests.support.raft_certificates import Authority

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SECRET = '{"accessKey":"member","secretKey":"secret of all members"}'


def settings(authority: Authority) -> dict[str, str]:
    files = authority.issue("localhost", "cluster-member")
    files.key.chmod(0o600)
    return {
        "innerClientAuthenticationCredentials": SECRET,
        "haTlsMode": "enforcing",
        "haTlsEnable": "true",
        "tls.server.certPath": str(files.certificate),
        "tls.server.keyPath": str(files.key),
        "tls.client.trustCertPath": str(files.trust),
    }


async def told(broker: Program, data: bytes, *, tls: bool) -> bytes:
    """What the replication port says to an anonymous client."""
    host, port = broker.settings["brokerIP1"], broker.settings["haListenPort"]
    context = ClientTls(verify=False).context if tls else None
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(data)
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()


async def test_a_fail_over_loses_nothing_and_tells_anonymous_clients_nothing(tmp_path: Path) -> None:
    keys = settings(Authority(tmp_path / "ca"))
    inner = {"innerClientAuthenticationCredentials": SECRET}
    async with Harness(tmp_path, broker_settings={**SAFE, **keys}, namesrv_settings=inner) as running:
        running.produce()
        await running.acked(200)
        master = await running.master()
        for broker_id in (1, 2, 3, 9):
            for tls in (False, True):
                assert (
                    await told(master, SlaveHandshake(broker_id).encode() + Ack(0).encode(), tls=tls) == b""
                )
        await running.acked(100)
        assert await running.master() is master, "nobody has lost a link"
        await running.fail_over()
        running.cluster.start_program(master)
        report = await running.compare()
        assert report.lost == 0 and report.damaged == 0, report
        assert report.kills == 1 and max(report.gaps_ms) < 3_000, report
