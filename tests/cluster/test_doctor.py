"""The doctor at a real cluster: nothing to say while it is healthy, the right things when it is not."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Cluster, Program
from tests.support.harness import SAFE, START_TIMEOUT_S, Harness

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
TOOK_S_MAX = 15.0
"""Three rounds of its timeouts: it hangs at nobody."""

Found = dict[str, Any]


async def doctor(*args: str) -> tuple[int, Found]:
    """Exit code and the answer, of a process of its own."""
    command = [sys.executable, "-m", "cli.keelmq", "doctor", "--json", *args]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert done.stderr == ""
    value: Found = json.loads(done.stdout)
    assert value["tookMs"] < TOOK_S_MAX * 1000
    return done.returncode, value


def said(value: Found, level: str) -> list[tuple[str, str]]:
    return [(each["check"], each["text"]) for each in value["findings"] if each["level"] == level]


def flags(programs: list[Program]) -> list[str]:
    return [part for program in programs for part in ("-c", str(program.config_path))]


async def until_ready(cluster: Cluster) -> Found:
    """HTTP comes up a moment after the rest, and a member may be a few entries behind on a busy machine."""

    async def look() -> Found | None:
        code, value = await doctor(*flags(cluster.programs))
        levels = {each["level"] for each in value["findings"] if each["check"] == "controller.raft"}
        return value if code == 0 and levels == {"ok"} else None

    return await cluster.until("a healthy cluster", look, timeout_s=START_TIMEOUT_S)


async def test_a_healthy_cluster_and_a_broken_one(tmp_path: Path) -> None:
    async with Harness(tmp_path, http=True, broker_settings=SAFE) as running:
        cluster = running.cluster
        healthy = await until_ready(cluster)
        assert said(healthy, "failed") == []
        assert [check for check, _ in said(healthy, "warning")] == ["config.addresses"]  # all on 127.0.0.1
        texts = [text for _, text in said(healthy, "ok")]
        assert sum("itself, which is running" in text for text in texts) == 6
        assert "3 of 3 replicas in sync, 2 needed (minInSyncReplicas)" in texts

        code, by_name_servers = await doctor("-n", cluster.namesrv_addr)  # finds the controllers by itself
        known = {check for check, _ in said(by_name_servers, "ok")}
        assert code == 0 and {"group.master", "controller.leader"} <= known

        master = await running.master()
        slave = next(program for program in cluster.brokers if program is not master)
        leader = await running.controller_leader()
        follower = next(program for program in cluster.name_servers if program is not leader)
        await cluster.kill_and_wait(slave)
        await cluster.kill_and_wait(follower)
        cluster.pause(next(each for each in cluster.name_servers if each not in (leader, follower)))
        began = time.monotonic()
        code, broken = await doctor("-n", cluster.namesrv_addr, "-a", cluster.controller_addr)
        assert code == 1 and time.monotonic() - began < 2 * TOOK_S_MAX
        failures = said(broken, "failed")
        assert ("namesrv.reachable", "name server: connection refused") in failures
        assert ("controller.reachable", "controller: connection refused") in failures
        assert any(check == "controller.leader" for check, _ in failures)  # no majority is left
        assert all(each["next"] for each in broken["findings"] if each["level"] != "ok")


async def test_before_the_start(tmp_path: Path) -> None:
    """With files alone, nothing running: what is wrong with them is found, and where nobody answers."""
    cluster = Cluster(tmp_path / "c", broker_settings=SAFE)
    code, offline = await doctor(*flags(cluster.programs), "--offline")
    assert code == 0 and sum(text.startswith("free: ") for _, text in said(offline, "ok")) == 6
    code, online = await doctor(*flags(cluster.programs))
    assert code == 1
    assert {check for check, _ in said(online, "failed")} == {"namesrv.reachable", "controller.reachable"}
    peers = cluster.name_servers[1].config_path
    peers.write_text(peers.read_text().replace("n2-127.0.0.1", "n2-10.9.9.9", 1))
    code, changed = await doctor(*flags(cluster.programs), "--offline")
    assert code == 1 and "config.controllers" in {check for check, _ in said(changed, "failed")}
