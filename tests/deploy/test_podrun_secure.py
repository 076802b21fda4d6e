"""The pods of the overlay secure, run as declared: they read the Secret as the declared user, find each
other, and refuse anonymous clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.credentials import Found, read_credentials
from keelmq import Message, Producer, PullConsumer, SendError
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.client import RemotingClient
from keelmq.runtime.tls.contexts import ClientTls
from keelmq.security.signer import signer_of
from tests.deploy import podrun
from tests.deploy.objects import Objects
from tests.deploy.podrun import Lab
from tests.deploy.test_podrun import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TOPIC = "podrun"


@pytest.fixture
def lab(rendered: dict[str, Objects], tmp_path: Path) -> Iterator[Lab]:
    if reason := podrun.missing():
        pytest.skip(reason)
    with Lab(rendered["secure"], tmp_path) as running:
        yield running


@pytest.fixture
def admin(secure_directory: Path) -> Found:
    """What the Secret keelmq-admin has."""
    return read_credentials(secure_directory / "security" / "admin" / "credentials.yml")


def test_closed_pods_find_each_other_and_refuse_anonymous_clients(lab: Lab, admin: Found) -> None:
    async def scenario() -> None:
        tls = ClientTls.of(admin.tls)
        signer = signer_of(admin.credentials, proof=True)
        async with Cluster(lab, RemotingClient(connect_timeout_ms=500, tls=tls, signer=signer)) as cluster:
            await cluster.start()  # probes over TLS; every replica in the SyncStateSet
            mine = {"credentials": admin.credentials, "tls": tls}
            async with Producer(cluster.name_servers, **mine) as producer:
                await producer.send(Message(TOPIC, b"signed"))
            async with PullConsumer(cluster.name_servers, "podrun", **mine) as consumer:
                pulled = [await consumer.pull(each, 0) for each in await consumer.fetch_queues(TOPIC)]
            assert [message.body for each in pulled for message in each.messages] == [b"signed"]
            await anonymous_clients_are_refused(cluster, tls)
            for pod in [*cluster.brokers, *cluster.servers]:
                assert lab.terminate(pod) == 0, lab.tail(pod)
                assert "open to other machines" not in lab.tail(pod)

    lab.run(scenario)


async def anonymous_clients_are_refused(cluster: Cluster, tls: ClientTls | None) -> None:
    ports = {"broker": 10911, "namesrv": 9876}
    for component, port in ports.items():
        for pod in cluster.lab.of(component):
            address = f"{pod.address}:{port}"
            async with AdminClient(tls=tls, timeout_ms=2_000) as anonymous:
                with pytest.raises(AdminError, match="username cannot be null"):
                    await anonymous.brokers.broker_config(address)
            async with AdminClient(timeout_ms=2_000) as plain:
                with pytest.raises(AdminError, match="lost"):
                    await plain.brokers.broker_config(address)
    async with Producer(cluster.name_servers, tls=tls) as producer:
        with pytest.raises(SendError, match="username cannot be null"):
            await producer.send(Message(TOPIC, b"unknown"))
