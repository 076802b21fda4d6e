"""The isolation lease at the place where messages are acknowledged (S2); its arithmetic is in
property/test_lease.py."""

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from broker.admission.pending_replies import PendingReplies
from broker.controller_mode.controller_client import OFTEN_MS, Heartbeats
from broker.ha.core.frames import Ack, SlaveHandshake
from broker.ha.master_server import MasterProtocol, MasterServer
from broker.ha.security import HaSecurity
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok, Outcome, Unknown
from keelmq.remoting.operations.route import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from keelmq.runtime.tasks import TaskSet
from tests.support.ha_parts import link_settings
from tests.support.handler_context import send_gate
from tests.support.handler_parts import Broker
from tests.support.store_parts import FakePeer
from tests.unit.broker.ha.test_ha_service import until

pytestmark = pytest.mark.timeout(20)

HEARTBEAT = BrokerHeartbeatRequest(cluster_name="c", broker_addr="a:1", broker_name="b", broker_id=1)


def test_a_master_that_is_cut_off_stores_nothing(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    is_over = [False]
    broker.gate.lease = lambda now_ms: is_over[0]
    assert broker.send() is not None
    broker.tick()
    end = broker.store.commit_log.max_offset
    is_over[0] = True
    answer = broker.send()
    assert answer is not None and answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "hears neither the controllers nor its in-sync replicas" in (answer.remark or "")
    assert broker.send(flag=2) is None, "oneway: dropped"
    assert broker.store.commit_log.max_offset == end
    is_over[0] = False
    answer = broker.send()
    assert answer is not None and answer.code == 0


def test_what_waits_is_not_acknowledged_after_the_lease() -> None:
    """Count mode: a slave on our side of the partition has it; the one that is elected has not."""
    broker_gate = send_gate()
    pending, peer = PendingReplies(broker_gate), FakePeer()
    is_over = [True]
    broker_gate.lease = lambda now_ms: is_over[0]
    frame = b'{"code":0,"opaque":5,"version":1}'
    frame = (len(frame) + 4).to_bytes(4, "big") + len(frame).to_bytes(4, "big") + frame
    for end in (10, 20):
        pending.add(end, peer, frame, 100 * end)
    pending.release(20)
    assert peer.sent == []
    assert pending.expire(4_000, 3_000) == 1, "its time is over"
    assert b'"code":12' in peer.sent[0] and b"cut off" in peer.sent[0]
    is_over[0] = False
    pending.expire(4_001, 3_000)
    assert peer.sent[1] == frame, "it is master still: acknowledged late"


class Client:
    def __init__(self, outcomes: dict[str, Outcome[Any]]) -> None:
        self.outcomes = outcomes
        self.asked = asyncio.Event()

    async def call(self, address: str, *_: object, **__: object) -> Outcome[Any]:
        self.asked.set()
        return self.outcomes[address]


async def test_only_an_answer_says_that_a_controller_has_heard_us() -> None:
    client: Any = Client({"a": Ok(Empty()), "b": Unknown("no answer"), "c": Failed(-1004, "refused")})
    answered: list[tuple[str, bool]] = []
    heartbeats = Heartbeats(
        client,
        ["a", "b", "c"],
        interval_ms=60_000,
        heartbeat=lambda: HEARTBEAT,
        on_answer=lambda controller, sent_ms, now_ms: answered.append((controller, 0 < sent_ms <= now_ms)),
    )
    tasks = TaskSet()
    heartbeats.start(tasks)
    async with asyncio.timeout(5):
        await client.asked.wait()
        await until(lambda: bool(answered))
    await tasks.stop()
    assert answered == [("a", True)]


def test_reports_that_waited_while_the_master_was_stopped_do_not_count_as_of_now() -> None:
    """SIGSTOP: the kernel keeps what the slave sent; the slave may have been elected since then."""
    now_ms = [10_000]
    server = MasterServer(
        MagicMock(file_bytes=1 << 20, min_offset=0),
        check=MagicMock(is_all_whole=True),
        settings=link_settings(),
        clock=lambda: now_ms[0],
        on_ack=lambda link: None,
        on_links_changed=lambda: None,
        catch_up_threads=1,
        security=HaSecurity(),
    )
    server.accept()
    protocol = MasterProtocol(server)
    protocol.connection_made(MagicMock())
    protocol.data_received(SlaveHandshake(2).encode())
    link = server.links[2]
    now_ms[0] = 10_090
    protocol.data_received(Ack(0).encode())
    assert link.heard_ms == link.read_ms == 10_090

    now_ms[0] = 15_000  # stopped meanwhile, and the timer has not run yet
    protocol.data_received(Ack(0).encode())
    assert (link.read_ms, link.heard_ms) == (15_000, 10_000)
    server.pauses.tick(15_001)
    now_ms[0] = 15_002
    protocol.data_received(Ack(0).encode())
    assert (link.read_ms, link.heard_ms) == (15_002, 10_000), "it may have waited as well"
    now_ms[0] = 15_101
    server.pauses.tick(15_101)
    protocol.data_received(Ack(0).encode())
    assert link.heard_ms == 15_101


async def test_a_controller_that_finds_hung_masters_gets_heartbeats_more_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no other one. The call waits for its answer as long as ever."""
    pauses: dict[str, list[float]] = {"a": [], "b": []}
    waits: list[tuple[str, int]] = []

    class Controllers:
        async def call(self, address: str, *_: object, timeout_ms: int) -> Outcome[Any]:
            waits.append((address, timeout_ms))
            return Ok(BrokerHeartbeatResponse(finds_hung_masters=address == "a" or None))

    async def pause(event: asyncio.Event, pause_ms: float) -> None:
        name = asyncio.current_task().get_name()[-1]  # type: ignore[union-attr]
        pauses[name].append(pause_ms)
        await event.wait()

    monkeypatch.setattr("broker.controller_mode.controller_client.wait_for_event", pause)
    client: Any = Controllers()
    heartbeats = Heartbeats(
        client, ["a", "b"], interval_ms=1_000, heartbeat=lambda: HEARTBEAT, on_answer=lambda *_: None
    )
    tasks = TaskSet()
    heartbeats.start(tasks)
    await until(lambda: bool(pauses["a"] and pauses["b"]))
    await tasks.stop()
    assert pauses["a"][0] <= OFTEN_MS < pauses["b"][0] <= 1_000
    assert dict(waits) == {"a": 1_000, "b": 1_000}
