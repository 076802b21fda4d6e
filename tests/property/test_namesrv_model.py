"""Random histories of a name server against a dumb model of it: lists that are searched from end to end.

The model knows brokers and topics as rows, nothing is indexed or kept; the real handlers run on real tables.
"""

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keelmq.remoting.command import parse_header
from keelmq.remoting.lenient_json import load_lenient
from keelmq.remoting.operation import Call, CommandError, Reply
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from namesrv.core.liveness import RouteKey
from tests.support.slices import share

TIMEOUT_MS = 1_000
WRITE = 2


@dataclass
class Peer:
    connection_id: int
    address: str = "test"

    def is_closing(self) -> bool:
        return False

    def send(self, frame: bytes) -> bool:
        return True


@dataclass(frozen=True)
class Broker:
    """One row: a registration that is alive."""

    cluster: str
    name: str
    broker_id: int
    addr: str
    version: tuple[int, int]
    connections: frozenset[int]
    heartbeat_ms: int


@dataclass
class Model:
    brokers: list[Broker] = field(default_factory=list)
    queues: list[tuple[str, str, int, int]] = field(default_factory=list)  # topic, brokerName, nums, perm
    acting: dict[str, bool] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # addr -> newest connection

    def members(self, name: str) -> list[Broker]:
        return sorted((each for each in self.brokers if each.name == name), key=lambda each: each.broker_id)

    def register(self, new: Broker, topics: Mapping[str, int], acting: bool | None) -> bool:
        if any(each.name == new.name and each.cluster != new.cluster for each in self.brokers):
            return False
        for each in self.members(new.name):
            if each.broker_id == new.broker_id and each.addr != new.addr and each.version[0] > new.version[0]:
                return True  # stale: success, and nothing happens
        before = [each for each in self.brokers if (each.cluster, each.addr) == (new.cluster, new.addr)]
        for each in before:
            if each.name != new.name:
                self.remove([each])
                before = []
        first = all(each.broker_id != new.broker_id for each in self.members(new.name))
        changed = first or not before or before[0].version != new.version
        connections = new.connections.union(*(each.connections for each in before))
        self.brokers = [
            each
            for each in self.brokers
            if each.name != new.name or (each.addr != new.addr and each.broker_id != new.broker_id)
        ]
        self.brokers.append(replace(new, connections=connections))
        self.newest[new.addr] = max([self.newest.get(new.addr, 0) if before else 0, *new.connections])
        self.acting[new.name] = bool(acting)
        lowest = self.members(new.name)[0].broker_id == new.broker_id
        if new.broker_id == 0 or (acting is not None and lowest):
            clear = WRITE if acting and new.broker_id else 0
            for topic, nums in topics.items():
                known = any(row[:2] == (topic, new.name) for row in self.queues)
                if changed or not known:
                    self.queues = [row for row in self.queues if row[:2] != (topic, new.name)]
                    self.queues.append((topic, new.name, nums, 6 & ~clear))
        return True

    def remove(self, leaving: list[Broker]) -> None:
        for broker in leaving:
            self.brokers.remove(broker)
            left = self.members(broker.name)
            if not left:
                self.queues = [row for row in self.queues if row[1] != broker.name]
            elif self.acting[broker.name] and all(each.broker_id for each in left):
                self.set_perm(broker.name, clear=WRITE, add=0)

    def set_perm(self, name: str, *, clear: int, add: int) -> int:
        self.queues = [
            (topic, at, nums, perm & ~clear | add if at == name else perm)
            for topic, at, nums, perm in self.queues
        ]
        return sum(row[1] == name for row in self.queues)

    def scan(self, now_ms: int) -> None:
        self.remove([each for each in self.brokers if each.heartbeat_ms + TIMEOUT_MS < now_ms])

    def close(self, connection: int) -> None:
        lost = [each for each in self.brokers if each.connections == {connection}]
        self.brokers = [
            replace(each, connections=each.connections - {connection}) if each not in lost else each
            for each in self.brokers
        ]
        self.remove(lost)

    def route(self, topic: str) -> dict[str, Any] | None:
        rows = sorted((row for row in self.queues if row[0] == topic), key=lambda row: row[1])
        if not rows:
            return None
        return {
            "queueDatas": [(row[1], row[2], row[3]) for row in rows],
            "brokerAddrs": [self.shown(row[1], writable=bool(row[3] & WRITE)) for row in rows],
        }

    def shown(self, name: str, *, writable: bool) -> dict[str, str]:
        addrs = {each.broker_id: each.addr for each in self.members(name)}
        if self.acting[name] and 0 not in addrs and not writable:
            addrs[0] = addrs.pop(min(addrs))
        return {str(broker_id): addr for broker_id, addr in sorted(addrs.items())}


class Real:
    """The handlers of a Namesrv, called as a door calls them."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = 0
        config = NamesrvConfig(
            listen_port=0, http_port=-1, support_acting_master=True, kv_config_path=directory / "kv.json"
        )
        self.server = Namesrv(config, clock=lambda: self.now_ms)

    def ask(
        self, code: int, fields: Mapping[str, Any], body: bytes = b"", connection: int = 0
    ) -> Reply | None:
        """None: refused."""
        operation, handler = self.server.table.handlers[code]
        ext = {key: str(value) for key, value in fields.items() if value is not None}
        call = Call(Peer(connection), None, 479, ext, body)
        try:
            result = asyncio.run(_awaited(handler(parse_header(operation.request, ext), call)))
        except CommandError:
            return None
        return result if isinstance(result, Reply) else Reply(result)

    def count(self, code: int, name: str) -> int:
        reply = self.ask(code, {"brokerName": name})
        assert reply is not None and reply.header is not None
        (count,) = reply.header.model_dump().values()
        return int(count)

    def json(self, code: int, **fields: Any) -> Any:
        reply = self.ask(code, fields)
        if reply is None:
            return None
        body = reply.body
        return load_lenient(body) if isinstance(body, bytes) else body.model_dump(by_alias=True)  # type: ignore


async def _awaited(coroutine: Any) -> Any:
    return await coroutine


def check(real: Real, model: Model) -> None:
    real.server.routes.check_invariants()
    real.server.liveness.check_invariants()
    for topic in ("T1", "T2", "T3"):
        answer = real.json(105, topic=topic)
        route = answer and {
            "queueDatas": [(q["brokerName"], q["readQueueNums"], q["perm"]) for q in answer["queueDatas"]],
            "brokerAddrs": [each["brokerAddrs"] for each in answer["brokerDatas"]],
        }
        assert route == model.route(topic)
    clusters = real.json(106)
    assert {name: data["brokerAddrs"] for name, data in clusters["brokerAddrTable"].items()} == {
        broker.name: {str(each.broker_id): each.addr for each in model.members(broker.name)}
        for broker in model.brokers
    }
    assert {(cluster, name) for cluster, names in clusters["clusterAddrTable"].items() for name in names} == {
        (each.cluster, each.name) for each in model.brokers
    }
    assert real.json(206)["topicList"] == sorted({row[0] for row in model.queues})
    alive = {(each.cluster, each.addr) for each in model.brokers}
    known = list(real.server.liveness.keys())
    assert {(key.cluster_name, key.broker_addr) for key in known if isinstance(key, RouteKey)} == alive
    assert len(known) == len(alive)


CLUSTERS = st.sampled_from(["C1", "C1", "C1", "C2"])
NAMES = st.sampled_from(["b-a", "b-b"])
ADDRS = st.sampled_from(["h1:1", "h2:1", "h3:1"])
CONNECTIONS = st.integers(0, 4)
TOPICS = st.dictionaries(st.sampled_from(["T1", "T2", "T3"]), st.integers(1, 2), max_size=3)
STEPS = st.one_of(
    st.tuples(
        st.just("register"), CLUSTERS, NAMES, ADDRS, st.integers(0, 2),
        st.tuples(st.integers(0, 2), st.integers(0, 1)), TOPICS,
        st.sampled_from([None, False, True, True]), CONNECTIONS,
    ),
    st.tuples(st.just("unregister"), CLUSTERS, NAMES, ADDRS, CONNECTIONS),
    st.tuples(st.just("close"), st.integers(1, 4)),
    st.tuples(st.just("wait"), st.integers(1, 700)),
    st.tuples(st.just("heartbeat"), CLUSTERS, ADDRS),
    st.tuples(st.just("wipe"), NAMES),
    st.tuples(st.just("add"), NAMES),
    st.tuples(st.just("delete"), st.sampled_from(["T1", "T2"]), st.sampled_from([None, "C1", "C2"])),
)  # fmt: skip


@settings(max_examples=share(200), deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_histories(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        real, model = Real(Path(directory)), Model()
        closed: set[int] = set()
        for step in steps:
            take(real, model, step, closed)
            check(real, model)


def take(real: Real, model: Model, step: tuple[Any, ...], closed: set[int]) -> None:
    """Connection 0 is HTTP; a closed one says nothing any more."""
    match step:
        case ("register", cluster, name, addr, broker_id, (epoch, counter), topics, acting, connection):
            connection = 0 if connection in closed else connection
            register(
                real, model, cluster, name, addr, broker_id, (epoch, counter), topics, acting, connection
            )
        case ("unregister", cluster, name, addr, connection):
            connection = 0 if connection in closed else connection
            header = {"clusterName": cluster, "brokerName": name, "brokerAddr": addr, "brokerId": 0}
            real.ask(104, header, connection=connection)
            for each in list(model.brokers):
                if (each.cluster, each.name, each.addr) == (cluster, name, addr):
                    outdated = 0 < connection < model.newest[addr] and connection not in each.connections
                    model.remove([] if outdated else [each])
        case ("close", connection):
            closed.add(connection)
            real.server.connection_closed(connection)
            real.server.scan()
            model.close(connection)
            model.scan(real.now_ms)
        case ("wait", delay_ms):
            real.now_ms += delay_ms
            real.server.scan()
            model.scan(real.now_ms)
        case ("heartbeat", cluster, addr):
            real.ask(904, {"clusterName": cluster, "brokerName": "x", "brokerAddr": addr})
            model.brokers = [
                replace(each, heartbeat_ms=real.now_ms)
                if (each.cluster, each.addr) == (cluster, addr)
                else each
                for each in model.brokers
            ]
        case ("wipe", name):
            assert real.count(205, name) == model.set_perm(name, clear=WRITE, add=0)
        case ("add", name):
            assert real.count(327, name) == model.set_perm(name, clear=0, add=6)
        case ("delete", topic, cluster):
            real.ask(216, {"topic": topic, "clusterName": cluster})
            of = {each.name for each in model.brokers if cluster in (None, each.cluster)}
            model.queues = [row for row in model.queues if row[0] != topic or row[1] not in of]


def register(
    real: Real,
    model: Model,
    cluster: str,
    name: str,
    addr: str,
    broker_id: int,
    version: tuple[int, int],
    topics: Mapping[str, int],
    acting: bool | None,
    connection: int,
) -> None:
    header = {"clusterName": cluster, "brokerName": name, "brokerAddr": addr, "brokerId": broker_id}
    flag = None if acting is None else str(acting).lower()
    wrapper = {
        "dataVersion": {"stateVersion": version[0], "counter": version[1], "timestamp": 7},
        "topicConfigTable": {
            topic: {"readQueueNums": nums, "writeQueueNums": nums, "perm": 6}
            for topic, nums in topics.items()
        },
    }
    body = json.dumps({"topicConfigSerializeWrapper": wrapper}).encode()
    fields = {**header, "heartbeatTimeoutMillis": TIMEOUT_MS, "enableActingMaster": flag}
    done = real.ask(103, fields, body, connection) is not None
    connections = frozenset({connection} - {0})
    new = Broker(cluster, name, broker_id, addr, version, connections, real.now_ms)
    assert done == model.register(new, topics, acting)
