"""Broker and name server together: every topic has a route, whatever their number, or is refused; and the
broker is not ready while it is in no route."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.app import status
from broker.app.broker import Broker
from broker.core.readiness import not_ready
from broker.naming import registration
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Failed, Ok
from keelmq.remoting.operations.broker_metadata import UPDATE_AND_CREATE_TOPIC, CreateTopicRequest
from keelmq.remoting.operations.route import TopicConfig
from namesrv.app import Namesrv
from tests.support.ports import free_port
from tests.unit.broker.app.test_broker_app import config, send
from tests.unit.broker.naming.test_route_registration import FakeNameServer
from tests.unit.namesrv.test_namesrv_app import config as namesrv_config


async def until(condition: Callable[[], bool], timeout_s: float = 5) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the conditions are states of a server, not events
            await asyncio.sleep(0.005)


def create(broker: Broker, *names: str) -> None:
    broker.topics.change({name: TopicConfig(topic_name=name) for name in names})


async def test_topics_come_and_go_in_parts(tmp_path: Path) -> None:
    server = Namesrv(
        namesrv_config(kv_config_path=tmp_path / "kv.json", delete_topic_with_broker_registration=True)
    )
    async with server:
        keys = {"namesrv_addr": "{}:{}".format(*server.address), "enable_split_registration": True}
        async with Broker(config(tmp_path, split_registration_size=2, **keys)) as broker:

            def is_routed() -> bool:
                return server.routes.topics_of_broker("b") == broker.topics.topics.keys()

            await until(is_routed)
            create(broker, *(f"T{number}" for number in range(7)))
            await until(is_routed)
            assert len(broker.topics.topics) > 14
            broker.topics.delete(["T1", "T5"], 1)
            assert not is_routed()
            await until(is_routed)
            create(broker, "T1")
            await until(is_routed)


@pytest.mark.slow
async def test_70_000_topics(tmp_path: Path) -> None:
    """19 MB of registration. Such a broker was registered nowhere, and ready all the same."""
    async with Namesrv(namesrv_config(kv_config_path=tmp_path / "kv.json")) as server:
        address = "{}:{}".format(*server.address)
        async with Broker(config(tmp_path, namesrv_addr=address)) as broker:
            create(
                broker, *(f"region-{n % 50}-service-orders-and-payments-topic-{n:06}" for n in range(70_000))
            )
            topics = await broker.topics.encoder.encoded()
            assert not registration.fits_one_request(topics)
            await until(lambda: server.routes.counts()["topics"] == len(broker.topics.topics), 30)
            assert server.routes.topics_of_broker("b") == broker.topics.topics.keys()
            await until(lambda: broker.status.readiness.registered == (address,), 30)  # the answer


async def test_a_topic_that_no_longer_fits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an administrator and by a message, with the limit; topics that exist can still be changed."""
    for module in (registration, status):
        monkeypatch.setattr(module, "ONE_REQUEST_BYTES_MAX", 6_000)
    monkeypatch.setattr(status, "UNREGISTERED_BYTES", 200)
    server = FakeNameServer()
    server.settings = b"deleteTopicWithBrokerRegistration=true"
    client = RemotingClient()
    async with Broker(config(tmp_path, namesrv_addr=await server.start())) as broker:

        async def create_by_request(name: str) -> Failed | None:
            request = CreateTopicRequest(
                topic=name, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
                topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
            )  # fmt: skip
            outcome = await client.call(broker.address, UPDATE_AND_CREATE_TOPIC, request)
            assert isinstance(outcome, Ok | Failed)
            return outcome if isinstance(outcome, Failed) else None

        number, refused = 0, None
        while refused is None:
            await server.seen.get()
            number += 1
            assert number < 50
            refused = await create_by_request(f"T{number}")
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "6000 bytes" in refused.remark and "deleteTopicWithBrokerRegistration=true" in refused.remark
        assert registration.fits_one_request(await broker.topics.encoder.encoded())
        assert broker.status.readiness.registered, "what is there stays registered"
        sent = await send(client, broker, b"creates T")
        assert isinstance(sent, Failed) and "6000 bytes" in sent.remark
        assert await create_by_request("T1") is None
    await client.close()
    await server.listener.close()


async def test_a_broker_in_no_route_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.naming.route_registration.UNREGISTERED_PERIOD_MS", 20)
    port, refuses = free_port(), FakeNameServer()
    refuses.refuse = True
    addresses = f"127.0.0.1:{port}", await refuses.start()
    async with Broker(config(tmp_path, namesrv_addr=";".join(addresses))) as broker:
        await until(lambda: "refused" in str(broker.status.readiness.not_registered.get(addresses[0])))
        await until(lambda: "older" in str(broker.status.readiness.not_registered.get(addresses[1])))
        (reason,) = not_ready(broker.status.readiness)
        assert reason.reason == "not registered with any name server"
        assert "it is in no route" in reason.detail and all(address in reason.detail for address in addresses)
        assert "stateVersion is older" in reason.detail
        settings = namesrv_config(kv_config_path=tmp_path / "kv.json")
        async with Namesrv(settings.model_copy(update={"listen_port": port})):
            await until(lambda: not not_ready(broker.status.readiness))
            assert list(broker.status.readiness.not_registered) == [addresses[1]]
        await until(lambda: bool(not_ready(broker.status.readiness)))
    await refuses.listener.close()
