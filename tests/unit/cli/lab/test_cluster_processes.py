"""cli.lab.cluster with stand-ins for the servers: they start, die, start again and are never left over."""

import os
import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.lab.cluster import Cluster, ClusterError, Program


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(
        tmp_path / "c", name_servers=1, brokers=1, broker_settings={"minInSyncReplicas": "2"}
    ) as cluster:
        for program in cluster.programs:
            program.module = "tests.support.sleeper"
        yield cluster


async def up(cluster: Cluster, program: Program, times: int = 1) -> None:
    async def said_so() -> bool:
        return program.log_path.read_text().count("up\n") == times

    await cluster.until(f"{program.name} is up", said_so, timeout_s=10)


def test_configuration_files(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, broker_settings={"minInSyncReplicas": "2"})
    texts = [program.config_path.read_text() for program in cluster.programs]
    assert len(texts) == 6
    ports = re.findall(r"^(?:haL|l)istenPort=(\d+)$", "\n".join(texts), re.MULTILINE)
    peers = re.findall(r"n\d-127.0.0.1:(\d+)", texts[0])
    assert len(ports) == 3 + 2 * 3 and len(peers) == 6 and len({*ports, *peers}) == 15
    for text in texts[3:]:
        assert f"controllerAddr={cluster.controller_addr}\n" in text and "minInSyncReplicas=2\n" in text
        assert f"namesrvAddr={cluster.namesrv_addr}\n" in text
    secret = tmp_path / "raft-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(secret.read_text().strip()) == 64


async def test_kill_and_start_again(cluster: Cluster) -> None:
    cluster.start()
    for program in cluster.programs:
        await up(cluster, program)
    broker = cluster.brokers[0]
    first = broker.pid
    await cluster.kill_and_wait(broker)
    assert not broker.is_running
    cluster.check()  # what we killed is not an error
    cluster.start_program(broker)
    await up(cluster, broker, times=2)
    assert broker.pid != first
    assert cluster.stop_program(broker) == -signal.SIGTERM


async def test_nothing_is_left_over(cluster: Cluster) -> None:
    cluster.start()
    for program in cluster.programs:
        await up(cluster, program)
    cluster.pause(cluster.brokers[0])
    pids = [program.pid for program in cluster.programs]
    cluster.close()
    for pid in pids:
        assert pid is not None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_program_that_ends_is_reported_with_its_log(cluster: Cluster) -> None:
    broker = cluster.brokers[0]
    broker.config_path.write_text("fail=true\n")
    cluster.start_program(broker)

    async def never() -> bool:
        return False

    with pytest.raises(ClusterError, match=r"broker-0 ended with exit code 1:\n +cannot listen on port 1"):
        await cluster.until("never", never, timeout_s=10)


async def test_deadline_names_what_was_awaited(cluster: Cluster) -> None:
    async def never() -> None:
        return None

    with pytest.raises(ClusterError, match=r"not within 0\.05 s: the impossible"):
        await cluster.until("the impossible", never, timeout_s=0.05)
