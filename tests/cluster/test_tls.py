"""A cluster whose ports speak TLS only: producers, consumers, fail-over, tools, renewal of certificates."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from keelmq import Message, Producer, PullConsumer, SendError, TlsSettings, TraceHook
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import connect_with
from keelmq.runtime.tls.contexts import ClientTls
from tests.support.harness import LONG_GRACE, SAFE, Harness
from tests.support.raft_certificates import Authority, mutual_tls

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@contextlib.asynccontextmanager
async def enforcing(directory: Path, authority: Authority, **options: bool) -> AsyncIterator[Harness]:
    """The harness's own clients use TLS, too."""
    keys = mutual_tls(authority, "cluster-member")
    connect_with(ClientTls.of(TlsSettings(ca=authority.path)))
    try:
        async with Harness(
            directory, broker_settings={**SAFE, **keys}, namesrv_settings=keys | LONG_GRACE, **options
        ) as running:
            yield running
    finally:
        connect_with(None)


async def test_a_fail_over_loses_nothing(tmp_path: Path, authority: Authority) -> None:
    async with enforcing(tmp_path, authority) as running:
        running.produce()
        await running.acked(200)
        master = await running.fail_over()
        running.cluster.start_program(master)
        report = await running.compare()
        assert report.lost == 0 and report.damaged == 0, report
        assert report.kills == 1 and max(report.gaps_ms) < 3_000, report
        assert running.reasons("(connection_refused)")


async def test_clients_and_tools(tmp_path: Path, authority: Authority) -> None:
    async with enforcing(tmp_path, authority, http=True) as running:
        namesrv_addr = running.cluster.namesrv_addr
        connect_with(None)  # from here on each client says itself what it wants

        hook = TraceHook()
        async with Producer(namesrv_addr, "g", tls=True, hooks=[hook]) as producer:
            result = await producer.send(Message("encrypted", b"body"))
        assert hook.sent > 0 and hook.failed == 0  # its producer uses TLS as well
        async with PullConsumer(namesrv_addr, tls=TlsSettings(ca=authority.path)) as consumer:
            queues = await consumer.fetch_queues("encrypted")
            (queue,) = [each for each in queues if each.queue_id == result.queue_id]
            found = await consumer.pull(queue, result.queue_offset)
            assert [message.body for message in found.messages] == [b"body"]

        async with Producer(namesrv_addr) as producer:
            with pytest.raises(SendError):
                await producer.send(Message("encrypted", b"plain"), timeout_ms=1_000)
        async with AdminClient(
            timeout_ms=1_000, tls=TlsSettings(ca=Authority(tmp_path / "no").path)
        ) as admin:
            with pytest.raises(AdminError, match=r"certificate is not signed by TlsSettings\.ca"):
                await admin.name_servers.cluster_info(namesrv_addr.split(";")[0])

        command = [sys.executable, "-m", "cli.mqadmin.main"]
        command += ["--tls-ca", str(authority.path), "clusterList", "-n", namesrv_addr]
        told = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert told.returncode == 0 and running.cluster.broker_name in told.stdout, told.stderr

        for program in running.cluster.programs:
            async with httpx.AsyncClient(verify=False) as http:
                answer = await http.get(f"https://{program.http_address}/livez")
                assert answer.status_code == 200
                with pytest.raises(httpx.TransportError):
                    await http.get(f"http://{program.http_address}/livez")


async def test_certificates_are_renewed_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    """A CA of the same name could not replace the old one at once, so clients trust both for a while."""
    async with enforcing(tmp_path, authority) as running:
        running.produce()
        await running.acked(100)
        new = Authority(tmp_path / "new")
        authority.path.write_bytes(authority.pem + new.pem)
        renewed = new.issue("localhost", "cluster-member")
        shutil.copy(renewed.certificate, tmp_path / "ca" / "localhost.crt")
        shutil.copy(renewed.key, tmp_path / "ca" / "localhost.key")
        only_new = ClientTls.of(TlsSettings(ca=new.path))

        async def taken() -> bool | None:
            async with AdminClient(tls=only_new, timeout_ms=1_000) as admin:
                for server in running.cluster.namesrv_addr.split(";"):
                    try:
                        await admin.name_servers.cluster_info(server)
                    except AdminError:
                        return None
                return True

        await running.cluster.until("the new certificate", taken, timeout_s=30)
        await running.acked(100)
        report = await running.compare()
        assert report.lost == 0 and report.unacknowledged == 0, report
