"""A container with real brokers in this process: requests, quarantine, what stays over a restart."""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from broker.admission.send_gate import ROLE
from broker.app.broker import Broker
from broker.container.app import ContainerServer
from broker.container.config import ContainerConfig
from broker.container.core.identity import BrokerIdentity
from broker.container.local_host import LocalHost
from broker.container.metrics import TABLE
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.config_store import ConfigSources
from keelmq.remoting.operation import Empty, Failed, Ok, Operation, Wire
from keelmq.remoting.operations.broker import (
    GET_BROKER_CONFIG,
    GET_MAX_OFFSET,
    SEND_MESSAGE_V2,
    QueueRequest,
    SendMessageRequestV2,
)
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.operations.clients import CONSUMER_SEND_MSG_BACK, SendBackRequest
from keelmq.remoting.operations.container import (
    ADD_BROKER,
    CONTAINER_PLAN,
    CONTAINER_STATUS,
    MOVE_BROKER,
    REMOVE_BROKER,
    RESTART_WORKER,
    AddBrokerRequest,
    BrokerState,
    ContainerPlan,
    ContainerStatus,
    InnerBroker,
    MoveBrokerRequest,
    PlanRequest,
    RemoveBrokerRequest,
    RestartWorkerRequest,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.log_context import ContextFormatter
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.ports import free_port
from tests.support.server_parts import until
from tests.unit.broker.container.parts import broker_file, container_config

NO_BROKER = ResponseCode.BROKER_NOT_EXIST


class Asker:
    """What tools ask a container."""

    def __init__(self, server: ContainerServer) -> None:
        self.server, self.client = server, RemotingClient()

    async def ask(self, operation: Operation, header: Wire, body: object = None) -> Ok | Failed:  # type: ignore[type-arg]
        outcome = await self.client.call(self.server.address, operation, header, body)
        assert isinstance(outcome, Ok | Failed), outcome
        return outcome

    async def status(self) -> ContainerStatus:
        outcome = await self.ask(CONTAINER_STATUS, Empty())
        assert isinstance(outcome, Ok)
        return ContainerStatus.model_validate(outcome.body)

    async def brokers(self) -> dict[str, InnerBroker]:
        return {each.canonical_name: each for each in (await self.status()).brokers}

    def broker(self, cluster: str, name: str) -> Broker:
        """A broker itself."""
        (host,) = self.server.hosts
        assert isinstance(host, LocalHost)
        return host.broker(BrokerIdentity(cluster, name, 0))

    async def ready(self, name: str) -> InnerBroker:
        """Waits until a broker is registered with the name server."""
        return await self.seen(name, lambda found: found.is_ready)

    async def seen(self, name: str, is_wanted: Callable[[InnerBroker], bool]) -> InnerBroker:
        """Waits until the status shows a broker as it is wanted."""
        async with asyncio.timeout(30):
            while True:
                found = (await self.brokers())[name]
                if is_wanted(found):
                    return found
                await asyncio.sleep(0.01)

    async def add(self, path: object) -> Ok | Failed:  # type: ignore[type-arg]
        return await self.ask(ADD_BROKER, AddBrokerRequest(config_path=None if path is None else str(path)))

    async def remove(self, name: str, broker_id: int = 0) -> Ok | Failed:  # type: ignore[type-arg]
        request = RemoveBrokerRequest(broker_cluster_name="c1", broker_name=name, broker_id=broker_id)
        return await self.ask(REMOVE_BROKER, request)

    async def send(self, address: str, body: bytes) -> str:
        header = SendMessageRequestV2(a="g", b="T", e=0, g=1)
        outcome = await self.client.call(address, SEND_MESSAGE_V2, header, body)
        assert isinstance(outcome, Ok), outcome
        return str(outcome.header.msg_id)


class Starter:
    """Starts containers of one name server."""

    def __init__(self, namesrv_addr: str) -> None:
        self._namesrv_addr = namesrv_addr
        self.open: list[Asker] = []

    async def __call__(self, config: ContainerConfig, config_sources: ConfigSources | None = None) -> Asker:
        server = ContainerServer(
            config.model_copy(update={"namesrv_addr": self._namesrv_addr}), config_sources
        )
        await server.__aenter__()
        self.open.append(Asker(server))
        return self.open[-1]

    async def end(self, asker: Asker) -> None:
        self.open.remove(asker)
        await asker.client.close()
        await asker.server.__aexit__(None, None, None)


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Starter]:
    config = NamesrvConfig(
        listen_port=0, bind_address="127.0.0.1", http_port=-1, kv_config_path=tmp_path / "kv.json"
    )
    async with Namesrv(config) as namesrv:
        host, port = namesrv.address
        starter = Starter(f"{host}:{port}")
        yield starter
        for asker in list(starter.open):
            await starter.end(asker)


async def test_brokers_of_one_container_are_as_independent_as_processes(
    tmp_path: Path, start: Starter
) -> None:
    files = [broker_file(tmp_path, name) for name in "ab"]
    asker = await start(container_config(tmp_path, *files))
    a, b = [await asker.ready(name) for name in ("c1_a_0", "c1_b_0")]
    assert (a.state, a.role) == (BrokerState.SERVING, "master")
    for number in range(3):
        await asker.send(a.address, b"%d" % number)
    message_id = await asker.send(b.address, b"x")
    ends = []
    for each in (a, b):
        outcome = await asker.client.call(each.address, GET_MAX_OFFSET, QueueRequest(topic="T", queue_id=0))
        assert isinstance(outcome, Ok)
        ends.append(outcome.header.offset)
    assert ends == [3, 1]
    port = int(b.address.rpartition(":")[2])
    assert int(message_id[8:16], 16) == port, "the id leads to the broker, and not to the container"


async def test_add_and_remove_while_others_serve(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    new = broker_file(tmp_path, "b")
    assert isinstance(await asker.add(new), Ok)
    brokers = await asker.brokers()
    assert list(brokers) == ["c1_a_0", "c1_b_0"]
    await asker.send(brokers["c1_b_0"].address, b"kept")
    again = await asker.add(new)
    assert isinstance(again, Failed) and "already been added to current broker container" in again.remark
    assert isinstance(await asker.remove("b"), Ok)
    assert list(await asker.brokers()) == ["c1_a_0"]
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", int(brokers["c1_b_0"].address.rpartition(":")[2])), 5)
    gone = await asker.remove("b")
    assert isinstance(gone, Failed) and (gone.code, gone.remark) == (NO_BROKER, "Broker not exist")
    wrong = await asker.remove("a", 5)
    assert isinstance(wrong, Failed) and wrong.remark == "Broker not exist; of this group there is c1_a_0"
    assert isinstance(await asker.add(new), Ok)
    b = (await asker.brokers())["c1_b_0"]
    outcome = await asker.client.call(b.address, GET_MAX_OFFSET, QueueRequest(topic="T", queue_id=0))
    assert isinstance(outcome, Ok) and outcome.header.offset == 1, "its store stayed"


async def test_a_bad_broker_is_quarantined_and_the_others_serve(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.container.container.RETRIES", 0)
    blocked = socket.create_server(("127.0.0.1", 0))
    port = blocked.getsockname()[1]
    (tmp_path / "file").write_text("")
    bad = {
        "typo": ({"listenPrt": "1"}, "did you mean 'listenPort'"),
        "port": ({"listenPort": port}, "Address already in use"),
        "store": ({"storePathRootDir": tmp_path / "file"}, "storePathRootDir"),
        "twin": ({"storePathRootDir": tmp_path / "store-good"}, "is the same as"),
        "long": ({"storePathRootDir": tmp_path / ("x" * 300)}, "File name too long"),
        "loop": (
            {"storePathRootDir": tmp_path / "loop"},
            "Symlink loop" if sys.version_info < (3, 13) else "not a directory",
        ),
    }
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    files = [broker_file(tmp_path, "good")]
    files += [broker_file(tmp_path, name, **changes) for name, (changes, _) in bad.items()]
    asker = await start(container_config(tmp_path, *files, tmp_path / "missing.conf"))
    brokers = {Path(each.config_path).stem: each for each in (await asker.status()).brokers}
    assert brokers["good"].state is BrokerState.SERVING
    for name, (_, why) in bad.items():
        assert brokers[name].state is BrokerState.QUARANTINED
        assert why in brokers[name].reason, brokers[name].reason
    assert "No such file" in brokers["missing"].reason
    assert asker.server.container.states() == {"serving": 1, "quarantined": 7}
    blocked.close()
    assert isinstance(await asker.add(tmp_path / "port.conf"), Ok), "the same request tries it again"
    assert await asker.ready("c1_port_0")
    still = await asker.add(tmp_path / "typo.conf")
    assert isinstance(still, Failed) and "did you mean 'listenPort'" in still.remark
    assert isinstance(await asker.remove("store"), Ok), "a quarantined broker can be removed"
    assert "c1_store_0" not in await asker.brokers()
    missing = str(tmp_path / "missing.conf")
    assert isinstance(await asker.remove(missing), Ok), "also one of which only the file is known"
    assert missing not in await asker.brokers()


async def test_what_could_not_start_with_the_container_is_tried_again(
    tmp_path: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier run that was killed may have the ports for a moment."""
    monkeypatch.setattr("broker.container.container.RETRY", Backoff(first_ms=20, max_ms=20))
    monkeypatch.setattr("broker.container.container.RETRIES", 1_000)
    with socket.create_server(("127.0.0.1", 0)) as blocked:
        path = broker_file(tmp_path, "a", listenPort=blocked.getsockname()[1])
        asker = await start(container_config(tmp_path, path))
        # Each of its attempts shows it as starting for a moment.
        before = await asker.seen("c1_a_0", lambda found: found.state is BrokerState.QUARANTINED)
    assert "Address already in use" in before.reason
    await asker.ready("c1_a_0")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        (None, "addBroker config path is empty"),
        ("", "addBroker config path is empty"),
        ("a.conf", "not an absolute path below"),
        ("/etc/passwd", "not an absolute path below"),
        ("{inside}/../../etc/passwd", "not an absolute path below"),
        ("{inside}/link/passwd", "not an absolute path below"),
        ("{inside}/a\x00b", "is not a path"),
        ("{inside}/" + "x" * 5_000, "File name too long"),
        ("{inside}/none.conf", "addBroker properties empty"),
        ("{inside}", "addBroker properties empty"),
    ],
)
async def test_files_that_requests_must_not_name(
    tmp_path: Path, start: Starter, path: str | None, why: str
) -> None:
    (tmp_path / "link").symlink_to("/etc")
    asker = await start(container_config(tmp_path))
    outcome = await asker.add(None if path is None else path.format(inside=tmp_path))
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.SYSTEM_ERROR
    assert why in outcome.remark, outcome.remark
    assert not await asker.brokers()


async def test_what_requests_change_stays_over_a_restart(tmp_path: Path, start: Starter) -> None:
    files = [broker_file(tmp_path, name) for name in "abc"]
    config = container_config(tmp_path, *files[:2])
    asker = await start(config)
    assert isinstance(await asker.remove("a"), Ok)
    assert isinstance(await asker.add(files[2]), Ok)
    await start.end(asker)
    asker = await start(config)
    assert list(await asker.brokers()) == ["c1_b_0", "c1_c_0"]
    await start.end(asker)
    asker = await start(container_config(tmp_path, *files[:2], containerStatePath=tmp_path / "other.json"))
    assert list(await asker.brokers()) == ["c1_a_0", "c1_b_0"]


async def test_what_cannot_be_kept_is_not_done(tmp_path: Path, start: Starter) -> None:
    new = broker_file(tmp_path, "b")
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    (tmp_path / "state").write_text("a file where the directory should be")
    for outcome in (await asker.add(new), await asker.remove("a")):
        assert isinstance(outcome, Failed) and "the change cannot be kept in" in outcome.remark
    assert list(await asker.brokers()) == ["c1_a_0"]


async def test_plan_says_everything_and_adds_nothing(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    port = free_port()
    files = [
        broker_file(tmp_path, "b", listenPort=port, namesrvAddr="x:1"),
        broker_file(tmp_path, "c", listenPort=port + 1),
        tmp_path / "none.conf",
        Path("/etc/passwd"),
    ]
    outcome = await asker.ask(CONTAINER_PLAN, Empty(), PlanRequest(config_paths=list(map(str, files))))
    assert isinstance(outcome, Ok)
    b, c, missing, outside = ContainerPlan.model_validate(outcome.body).brokers
    assert (b.problems, b.ports) == ([], [port, port + 1])
    assert b.notes == ["namesrvAddr has no effect: the container's value counts"]
    assert "is the haListenPort of c1_b_0" in c.problems[0]
    assert "No such file" in missing.problems[0] and "below the directories" in outside.problems[0]
    assert list(await asker.brokers()) == ["c1_a_0"]
    assert not (tmp_path / "store-b").exists()


async def test_settings_of_the_container(tmp_path: Path, start: Starter) -> None:
    path = tmp_path / "container.conf"
    path.write_text("# mine\npersistBrokers=true\n")
    asker = await start(container_config(tmp_path), ConfigSources(path, {}, {}))
    outcome = await asker.ask(GET_BROKER_CONFIG, Empty())
    assert isinstance(outcome, Ok)
    lines = outcome.body.decode().splitlines()
    assert lines == sorted(lines) and f"listenPort={asker.server.port}" in lines
    assert json.loads(outcome.header.version)["counter"] == 0
    assert isinstance(await asker.ask(UPDATE_BROKER_CONFIG, Empty(), b"persistBrokers=false"), Ok)
    assert path.read_text() == "# mine\npersistBrokers=false\n"
    assert not asker.server.config.persist_brokers
    for key in ("brokerConfigPaths", "brokerConfigDirectories", "containerStatePath", "configBlackList"):
        refused = await asker.ask(UPDATE_BROKER_CONFIG, Empty(), f"{key}=/etc".encode())
        assert isinstance(refused, Failed) and refused.code == ResponseCode.NO_PERMISSION


async def test_one_process_has_nothing_to_move_or_restart(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    name = {"broker_cluster_name": "c1", "broker_name": "a", "broker_id": 0}
    assert isinstance(await asker.ask(MOVE_BROKER, MoveBrokerRequest(**name, worker=0)), Ok)
    outcome = await asker.ask(MOVE_BROKER, MoveBrokerRequest(**name, worker=1))
    assert (
        isinstance(outcome, Failed)
        and "there is no worker 1: this container has one process" in outcome.remark
    )
    outcome = await asker.ask(RESTART_WORKER, RestartWorkerRequest(worker=0))
    assert isinstance(outcome, Failed) and "containerProcesses=1" in outcome.remark
    assert (await asker.brokers())["c1_a_0"].state is BrokerState.SERVING


async def test_another_request_is_answered(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path))
    outcome = await asker.ask(GET_MAX_OFFSET, QueueRequest(topic="T", queue_id=0))
    assert isinstance(outcome, Failed) and outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_http_of_a_container(tmp_path: Path, start: Starter) -> None:
    files = [broker_file(tmp_path, name) for name in "ab"]
    bad = broker_file(tmp_path, "bad", listenPrt="1")
    asker = await start(container_config(tmp_path, *files, bad, httpPort=free_port()))
    await asker.ready("c1_a_0")
    assert asker.server.http_address is not None
    host, port = asker.server.http_address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=30) as http:
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/readyz")).json() == {"ready": True, "reasons": []}
        told = (await http.get("/v1/health")).json()
        assert told["ready"] and told["brokers"] == {"serving": 2, "quarantined": 1}
        assert (await http.get("/readyz/c1_a_0")).json() == {"ready": True, "reasons": []}
        assert (await http.get("/readyz/c1_a")).status_code == 200, "an id need not be known beforehand"
        assert (await http.get("/master/c1_a")).json() == {
            "role": "master",
            "brokerName": "a",
            "brokerId": 0,
            "masterEpoch": 0,
        }
        assert (await http.get("/slave/c1_a_0")).status_code == 503
        assert (await http.head("/master/c1_a_0")).status_code == 200
        assert (await http.head("/master/c1_none_0")).status_code == 404
        quarantined = await http.get("/readyz/all")
        assert quarantined.status_code == 503
        assert quarantined.json()["reasons"] == ["the broker is quarantined"], "those that serve are ready"
        kept_out = await http.get(f"/readyz/{bad}")
        assert kept_out.status_code == 404, "a path is no name"
        assert (await http.get("/readyz/c1_none_0")).status_code == 404
        status = (await http.post("/v1/containerStatus", json={})).json()
        assert [each["canonicalName"] for each in status["body"]["brokers"]][:2] == ["c1_a_0", "c1_b_0"]
        text = (await http.get("/metrics")).text
        roles = [line for line in text.splitlines() if line.startswith("rocketmq_broker_role{")]
        assert len(roles) == 2 and len(set(roles)) == 2
        heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(heads) == len(set(heads)), "one head for each name"
        own = {metric.name for metric in TABLE.metrics if "_event_loop_" not in metric.name}
        own.remove("rocketmq_container_unread_connections_total")
        assert all(f"\n{name}{{" in text for name in own), "every metric of a container"
        assert f'config_path="{bad}"' in text
        gone = await http.post(
            "/v1/removeBroker", json={"brokerClusterName": "c1", "brokerName": "b", "brokerId": 0}
        )
        assert gone.status_code == 200
        assert (await http.get("/readyz/c1_b_0")).status_code == 404
        refused = await http.post("/v1/addBroker", json={"configPath": "/etc/passwd"})
        assert refused.status_code == 409 and "below the directories" in refused.json()["detail"]


async def test_nothing_is_left_after_many_adds_and_removes(tmp_path: Path, start: Starter) -> None:
    asker = await start(container_config(tmp_path, broker_file(tmp_path, "a")))
    new = broker_file(tmp_path, "b")

    async def cycle() -> None:
        assert isinstance(await asker.add(new), Ok)
        b = (await asker.brokers())["c1_b_0"]
        await asker.send(b.address, b"x")
        assert isinstance(await asker.remove("b"), Ok)

    def held() -> tuple[int, int, int]:
        gc.collect()
        # The pool of the container is bounded, and has as many threads as were ever busy at once.
        threads = [each for each in threading.enumerate() if not each.name.startswith("brokers_")]
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(threads)

    for _ in range(3):  # imports
        await cycle()
    before = held()
    for _ in range(7):
        await cycle()
    after = held()
    # The client has a connection for each of the broker's addresses; a closed one may wait for its end.
    assert all(now <= was + 2 for was, now in zip(before, after, strict=True)), (before, after)


async def test_each_line_of_the_log_says_which_broker_it_is_about(
    tmp_path: Path, start: Starter, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = tmp_path / "logs"
    own = {"isolateLogEnable": "true", "logPath": logs}
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ContextFormatter())
    logging.getLogger("broker").addHandler(handler)
    logging.getLogger("broker").setLevel(logging.INFO)
    try:
        asker = await start(
            container_config(tmp_path, broker_file(tmp_path, "a"), broker_file(tmp_path, "b", **own))
        )
        await asker.ready("c1_b_0")
        await start.end(asker)
    finally:
        logging.getLogger("broker").removeHandler(handler)
        logging.getLogger("broker").setLevel(logging.NOTSET)
    lines = capsys.readouterr().err.splitlines()
    stored = [line for line in lines if "store loaded" in line or "store closed" in line]
    assert len(stored) == 4
    assert [sum(f"#c1_{name}_0# " in line for line in stored) for name in "ab"] == [2, 2]
    file = logs / "c1_b_0" / "broker.log"
    await until(lambda: "store closed" in file.read_text(), "the thread has written the last lines")
    text = file.read_text()
    assert "store loaded" in text and "#" not in text.split("store loaded")[0].splitlines()[-1]
    assert not (logs / "c1_a_0").exists()


async def test_what_a_store_uses_of_its_quota(tmp_path: Path, start: Starter) -> None:
    quota = {"replicasPerDiskPartition": "4"}
    asker = await start(
        container_config(tmp_path, broker_file(tmp_path, "a", **quota), broker_file(tmp_path, "b"))
    )
    a, b = (await asker.brokers()).values()
    assert a.quota_bytes == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize // 4
    assert b.quota_bytes == 0
    await asker.send(a.address, b"x")
    assert (await asker.brokers())["c1_a_0"].store_bytes >= 65_536


async def test_a_retry_lands_at_a_master_of_the_container_while_its_own_is_away(
    tmp_path: Path, start: Starter
) -> None:
    """RocketMQ's local escape: what a consumer of a replica could not handle waits for no fail-over."""
    files = [broker_file(tmp_path, name) for name in "ab"]
    elsewhere = broker_file(tmp_path, "c", brokerClusterName="c2")
    asker = await start(container_config(tmp_path, *files, elsewhere))
    addresses = {name: each.address for name, each in (await asker.brokers()).items()}
    message_id = await asker.send(addresses["c1_a_0"], b"failed")
    asker.broker("c1", "a").gate.close(ROLE, "its master is away")
    header = SendBackRequest(offset=int(message_id[16:], 16), group="g", delay_level=0)
    outcome = await asker.client.call(addresses["c1_a_0"], CONSUMER_SEND_MSG_BACK, header)
    assert isinstance(outcome, Ok), outcome
    ends = {}
    for name, address in addresses.items():
        topic = QueueRequest(topic="SCHEDULE_TOPIC_XXXX", queue_id=2)
        found = await asker.client.call(address, GET_MAX_OFFSET, topic)
        assert isinstance(found, Ok)
        ends[name] = found.header.offset
    assert ends == {"c1_a_0": 0, "c1_b_0": 1, "c2_c_0": 0}, "not at the broker of another cluster"
    asker.broker("c1", "b").gate.close(ROLE, "this one, too")
    refused = await asker.client.call(addresses["c1_a_0"], CONSUMER_SEND_MSG_BACK, header)
    assert isinstance(refused, Failed)
