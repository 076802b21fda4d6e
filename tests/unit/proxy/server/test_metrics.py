"""What a proxy shows of itself: in a broker, and as mqproxy at its HTTP port."""

import asyncio
from pathlib import Path

import pytest

from keelmq.remoting.servers.metrics import documented
from keelmq.runtime.config import ConfigError
from proxy.server.app import ProxyProgram
from proxy.server.config import ProxyConfig
from proxy.server.metrics import TABLE
from proxy.wire import messaging_pb2 as pb
from tests.support.http_parts import ask, samples, shapes, value
from tests.support.server_parts import until
from tests.unit.proxy.core.test_handles import GOOD
from tests.unit.proxy.server.parts import HOST, receive_request, serving

CONSUMER = pb.Settings(
    client_type=pb.PUSH_CONSUMER,
    subscription=pb.Subscription(group=pb.Resource(name="g")),
    user_agent=pb.UA(language=pb.PYTHON),
)
UNKNOWN = pb.Settings(client_type=99, user_agent=pb.UA(language=99), publishing=pb.Publishing())


async def test_a_broker_shows_its_clients_and_their_calls(tmp_path: Path) -> None:
    async with serving(tmp_path, httpPort=0) as (broker, client):
        await client.send("one")
        await client.ack(GOOD.replace("K1 g", "K1 h"))
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=CONSUMER))
        assert (await stream.read()).status.code == pb.OK
        waiting = client.receiving(receive_request(topic=pb.Resource(name="empty")))
        assert [each async for each in waiting]
        text = (await ask(broker.http_address, "/metrics")).text
        found = samples(text)
        assert value(found, "rocketmq_proxy_up", proxy_mode="local", node_type="proxy") == 1
        kind = {"client_type": "PUSH_CONSUMER", "language": "PYTHON"}
        assert value(found, "rocketmq_proxy_clients", **kind) == 1
        ended = "rocketmq_proxy_requests_total"
        assert value(found, ended, rpc="SendMessage", status="OK") == 1
        assert value(found, ended, rpc="AckMessage", status="INVALID_RECEIPT_HANDLE") == 1
        assert value(found, ended, rpc="ReceiveMessage", status="MESSAGE_NOT_FOUND") == 1
        assert value(found, "rocketmq_proxy_request_latency_seconds_count", rpc="SendMessage") == 1
        assert not any(got for _, got in found["rocketmq_proxy_calls"])
        known = documented([TABLE])
        shown = {name: each for name, each in shapes(text).items() if name.startswith("rocketmq_proxy")}
        assert {name: (kind, labels) for name, (kind, labels) in known.items() if name in shown} == shown
        info = broker.services.runtime_info.table()
        assert broker.listeners.proxy is not None
        proxy = broker.listeners.proxy
        assert (info["grpcServerPort"], info["grpcClients"]) == (str(proxy.port), "1")
        stream.cancel()
        await until(lambda: not any(metric.name == "rocketmq_proxy_clients" for metric in proxy.scrape()))


async def test_what_a_client_makes_up_is_no_label(tmp_path: Path) -> None:
    async with serving(tmp_path) as (broker, client):
        stream = client.telemetry()
        await stream.write(pb.TelemetryCommand(settings=UNKNOWN))
        await stream.read()
        assert broker.listeners.proxy is not None
        [clients] = [
            each for each in broker.listeners.proxy.scrape() if each.name == "rocketmq_proxy_clients"
        ]
        labels = clients.samples[0].labels
        assert labels["language"] == "LANGUAGE_UNSPECIFIED"
        assert labels["client_type"] == "CLIENT_TYPE_UNSPECIFIED"
        stream.cancel()


async def test_a_call_that_waits_and_is_cancelled(tmp_path: Path) -> None:
    settings = {"grpcClientConsumerMinLongPollingTimeoutMillis": 5_000}
    async with serving(tmp_path, **settings) as (broker, client):
        await client.send("one")
        await client.receive()
        proxy = broker.listeners.proxy
        assert proxy is not None

        def calls(name: str, **labels: str) -> float:
            return sum(
                sample.value
                for family in proxy.scrape()
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )

        waiting = asyncio.ensure_future(client.receive())
        await until(lambda: calls("rocketmq_proxy_calls", rpc="ReceiveMessage") == 1)
        waiting.cancel()
        await until(lambda: calls("rocketmq_proxy_calls", rpc="ReceiveMessage") == 0)
        broken = {"rpc": "ReceiveMessage", "status": "BROKEN"}
        assert calls("rocketmq_proxy_requests_total", **broken) == 1


def config_of(**settings: object) -> ProxyConfig:
    known = {"namesrvAddr": f"{HOST}:1", "bindAddress": HOST, "grpcServerPort": 0}
    return ProxyConfig.model_validate(known | settings)


async def test_mqproxy_has_an_http_port() -> None:
    async with ProxyProgram(config_of()) as running:
        ready = await ask(running.http_address, "/readyz")
        assert ready.json() == {"ready": True, "reasons": []}
        health = (await ask(running.http_address, "/v1/health")).json()
        assert (health["address"], health["clients"]) == (f"{HOST}:{running.server.port}", {})
        found = samples((await ask(running.http_address, "/metrics")).text)
        assert value(found, "rocketmq_proxy_up", proxy_mode="cluster", node_id=health["address"]) == 1


async def test_mqproxy_without_http() -> None:
    async with ProxyProgram(config_of(httpPort=-1)) as running:
        assert running.http_address is None


async def test_an_http_port_that_is_in_use_ends_the_start() -> None:
    async with ProxyProgram(config_of()) as other:
        assert other.http_address is not None
        with pytest.raises(ConfigError, match="http: cannot listen"):
            async with ProxyProgram(config_of(httpPort=other.http_address[1])):
                pass
