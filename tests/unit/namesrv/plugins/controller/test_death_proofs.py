"""What a connection attempt to a broker's address proves: the decision, and the attempt with real sockets."""

import asyncio
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from keelmq.remoting.operation import OperationTable
from keelmq.remoting.peer_limits import Limits, PeerLimits
from keelmq.remoting.servers.tcp import TcpServer
from keelmq.runtime.tls.contexts import Mode, ServerTls
from namesrv.plugins.controller.core.death_proof import (
    ATTEMPTS_MAX,
    ProbeAnswer,
    Verdict,
    probe_target,
    verdict_of,
)
from namesrv.plugins.controller.election.death_proofs import connect_and_close
from tests.support.controller_fakes import Bench, FakePeer, address
from tests.support.server_parts import until

LONG_S, SHORT_S = 20.0, 0.05


@pytest.mark.parametrize(
    ("registered", "heartbeats_from", "target"),
    [
        ("10.0.0.1:10911", "10.0.0.1:50000", ("10.0.0.1", 10911)),
        ("10.0.0.1:10911", "::ffff:10.0.0.1:50000", ("10.0.0.1", 10911)),
        ("[fd00::1]:10911", "fd00::1:50000", ("fd00::1", 10911)),
        ("[FD00:0::1]:10911", "fd00::1:50000", ("fd00::1", 10911)),
        ("10.0.0.1:10911", "10.0.0.2:50000", None),
        ("10.0.0.1:10911", "127.0.0.1:50000", None),
        ("broker-a:10911", "10.0.0.1:50000", None),
        ("broker-a:10911", "broker-a:50000", None),
        ("0.0.0.0:10911", "0.0.0.0:50000", None),
        ("10.0.0.1:0", "10.0.0.1:50000", None),
        ("10.0.0.1:65536", "10.0.0.1:50000", None),
        ("10.0.0.1:9999999999", "10.0.0.1:50000", None),
        ("10.0.0.1:x", "10.0.0.1:50000", None),
        ("10.0.0.1", "10.0.0.1:50000", None),
        ("", "", None),
    ],
)
def test_only_the_host_of_the_heartbeats_can_prove_anything(
    registered: str, heartbeats_from: str, target: tuple[str, int] | None
) -> None:
    """Behind address translation, a proxy or a name, somebody else would answer."""
    assert probe_target(registered, heartbeats_from) == target


def test_only_a_refusal_is_a_proof() -> None:
    assert verdict_of(ProbeAnswer.REFUSED, 1) is Verdict.DEAD
    assert verdict_of(ProbeAnswer.OPEN, 1) is Verdict.UNPROVED
    assert verdict_of(ProbeAnswer.NOTHING, 1) is Verdict.UNPROVED
    assert [verdict_of(ProbeAnswer.CLOSED, each) for each in (1, ATTEMPTS_MAX)] == [
        Verdict.AGAIN,
        Verdict.UNPROVED,
    ]


# -- the attempt ---------------------------------------------------------------------------------------------


@contextmanager
def listening(backlog: int = 16) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)
        yield listener


async def test_a_port_without_a_listener_refuses() -> None:
    with listening() as listener:
        host, port = listener.getsockname()
    assert await connect_and_close(host, port, LONG_S) is ProbeAnswer.REFUSED


async def test_a_listener_that_accepts_nothing_is_open() -> None:
    """A hung process: its system accepts for it."""
    with listening() as listener:
        assert await connect_and_close(*listener.getsockname(), SHORT_S) is ProbeAnswer.OPEN


async def test_a_full_accept_queue_does_not_answer() -> None:
    with listening(backlog=0) as listener, socket.create_connection(listener.getsockname()):  # 0 means one
        assert await connect_and_close(*listener.getsockname(), 0.3) is ProbeAnswer.NOTHING


async def test_a_listener_that_dies_with_the_connection_in_its_queue() -> None:
    """The connection is reset, and the next attempt is refused: how a process looks that is just dying."""
    with listening() as listener:
        host, port = listener.getsockname()
        attempt = asyncio.create_task(connect_and_close(host, port, LONG_S))
        await until(lambda: is_waiting(listener), "the attempt waits in the accept queue")
    assert await attempt is ProbeAnswer.CLOSED
    assert await connect_and_close(host, port, LONG_S) is ProbeAnswer.REFUSED


def is_waiting(listener: socket.socket) -> bool:
    waits = select.poll()  # select() takes no descriptor above 1,023, and other tests may have many open
    waits.register(listener, select.POLLIN)
    return bool(waits.poll(0))


@pytest.mark.parametrize("mode", ["disabled", "permissive", "enforcing"])
async def test_a_port_of_ours_takes_no_offence(mode: Mode, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever TLS it asks for: no log line, nothing refused or counted, and no limit that would make it
    close the connection."""
    limits = PeerLimits(Limits(connections=4, connections_per_address=2, unauthenticated_requests_per_s=1))
    tls = ServerTls(mode)
    caplog.clear()
    server = TcpServer(OperationTable(), host="127.0.0.1", port=0, name="broker", limits=limits, tls=tls)
    await server.start()
    try:
        for _ in range(5):
            assert await connect_and_close(*server.address, SHORT_S) is ProbeAnswer.OPEN
        await until(lambda: not limits.connection_count, "the connections are gone")
        assert not limits.closed and not limits.refused_requests and not limits.remembered
        counts = tls.counts.get("broker", {})
        assert not any(counts.values()), counts
    finally:
        await server.close()
    assert not [record for record in caplog.records if record.name.startswith("keelmq")]


# -- the controller ------------------------------------------------------------------------------------------


def peer_of(bench: Bench, broker_id: int, host: str = "") -> FakePeer:
    """The broker's own host, unless another one is given."""
    peer = bench.peers[broker_id]
    peer.address = f"{host or address(broker_id).partition(':')[0]}:50000"
    return peer


async def closed(bench: Bench, broker_id: int) -> None:
    """Its connection closes, and the attempts that follow have ended."""
    bench.plugin.connection_closed(bench.peers.pop(broker_id).connection_id)
    proofs = bench.plugin.death_proofs
    await until(lambda: not proofs.running, "the attempts have ended")


async def test_a_refusal_elects_without_the_grace(bench: Bench) -> None:
    await bench.group_of(1, 2)
    peer_of(bench, 1)
    bench.probe_answer = ProbeAnswer.REFUSED
    await closed(bench, 1)
    assert bench.probes == [("10.0.0.1", 10911)]
    key = bench.broker_set.key(1)
    assert bench.liveness.scan_not_active(bench.now_ms) == [key], "no ms has passed"
    await bench.elect(-1)
    assert bench.broker_set.master_broker_id == 2
    assert b"master 1 is not active (connection_refused)" in bench.replicator.events[-1]
    assert (bench.plugin.death_proofs.proved, bench.plugin.death_proofs.unproved) == (1, 0)


@pytest.mark.parametrize("answer", [ProbeAnswer.OPEN, ProbeAnswer.NOTHING, ProbeAnswer.CLOSED])
async def test_every_other_answer_keeps_the_grace(bench: Bench, answer: ProbeAnswer) -> None:
    await bench.group_of(1, 2)
    peer_of(bench, 1)
    bench.probe_answer = answer
    await closed(bench, 1)
    assert len(bench.probes) == (ATTEMPTS_MAX if answer is ProbeAnswer.CLOSED else 1)
    assert bench.liveness.scan_not_active(bench.now_ms + 49) == []
    assert bench.liveness.scan_not_active(bench.now_ms + 50) == [bench.broker_set.key(1)]
    assert (bench.plugin.death_proofs.proved, bench.plugin.death_proofs.unproved) == (0, 1)


async def test_another_host_is_not_asked(bench: Bench) -> None:
    await bench.group_of(1, 2)
    peer_of(bench, 1, host="10.0.0.99")
    bench.probe_answer = ProbeAnswer.REFUSED
    await closed(bench, 1)
    assert bench.probes == []
    assert bench.liveness.scan_not_active(bench.now_ms + 49) == []


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path, controllerConnectionProbeEnable=False)
    await bench.group_of(1, 2)
    peer_of(bench, 1)
    bench.probe_answer = ProbeAnswer.REFUSED
    await closed(bench, 1)
    assert bench.probes == []
    assert bench.liveness.scan_not_active(bench.now_ms + 49) == []
