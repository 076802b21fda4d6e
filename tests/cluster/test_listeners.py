"""Clients inside and outside of an address translation, over a fail-over (docs/adr/0077): each sees only the
addresses of its side, and sends go on at both. Nothing outside can reach an inner address, or the reverse."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.lab.cluster import Cluster
from tests.cluster import netns
from tests.cluster.lease_runs import Namespaces, Tail, until

REASON = netns.why_not() or (None if shutil.which("nft") else "needs nft (Debian: nftables)")
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(240),
    pytest.mark.skipif(REASON is not None, reason=REASON or ""),
]
INNER_CLIENT, ROUTER = 3, 4
LISTENER, NAME_SERVER, BROKERS = 20921, 30000, (30001, 30002)
"""The port of the listener of each program, and those of the router that lead there."""


class Side:
    """One client, and what it printed."""

    def __init__(self, prefix: tuple[str, ...], name_server: str, path: Path) -> None:
        with path.open("wb") as output:
            command = [*prefix, sys.executable, "-m", "tests.cluster.listener_client", name_server]
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE)
        self._tail = Tail(path)
        self.seen: list[dict[str, Any]] = []

    def until_sends_to(self, master: str, *, after: int = 0) -> None:
        """Waits for an acknowledgement while the only master that is shown is this one."""

        def sent() -> float | None:
            assert self.process.poll() is None, self.process.stderr and self.process.stderr.read().decode()
            new = [json.loads(line) for line in self._tail.lines()]
            self.seen += new
            found = any(each["masters"] == [master] and each["number"] >= after for each in new)
            return 0.0 if found else None

        until(sent, 90, f"an acknowledgement of {master}")

    @property
    def addresses(self) -> set[str]:
        return {address for each in self.seen for address in each["addresses"]}


@contextmanager
def cluster(network: netns.Network, directory: Path) -> Iterator[Cluster]:
    """A name server with its controller, two brokers, and a listener at each."""
    with Cluster(
        directory,
        name_servers=1,
        brokers=2,
        launcher=Namespaces(network),
        broker_settings={"allAckInSyncStateSet": "true", "minInSyncReplicas": "1"},
        namesrv_settings={"listeners": f"external://0.0.0.0:{LISTENER}"},
    ) as made:
        for broker, port in zip(made.brokers, BROKERS, strict=True):
            broker.settings["listeners"] = f"external://0.0.0.0:{LISTENER}"
            broker.settings["advertisedListeners"] = f"external://{netns.OUTER_HOST}:{port}"
            broker.write()
        made.start()
        yield made


def test_each_side_uses_its_own_addresses_over_a_fail_over(tmp_path: Path) -> None:
    with netns.Network(5) as network, cluster(network, tmp_path) as running:
        ports = {NAME_SERVER: 0, BROKERS[0]: 1, BROKERS[1]: 2}
        outside = network.outside(
            ROUTER, {port: f"{network.address(number)}:{LISTENER}" for port, number in ports.items()}
        )
        inner = [broker.address for broker in running.brokers]
        outer = [f"{netns.OUTER_HOST}:{port}" for port in BROKERS]
        first = first_master(running)
        sides = (
            Side(network.prefix(INNER_CLIENT), running.name_servers[0].address, tmp_path / "inner.out"),
            Side(outside, f"{netns.OUTER_HOST}:{NAME_SERVER}", tmp_path / "outer.out"),
        )
        try:
            for side, masters in zip(sides, (inner, outer), strict=True):
                side.until_sends_to(masters[first])
            running.kill(running.brokers[first])
            for side, masters in zip(sides, (inner, outer), strict=True):
                side.until_sends_to(masters[1 - first])
        finally:
            for side in sides:
                side.process.kill()
                side.process.communicate()
    assert sides[0].addresses == set(inner)
    assert sides[1].addresses == set(outer)


def first_master(running: Cluster) -> int:
    """Returns the number of the broker that is master with the other one in sync."""
    logs = [Tail(broker.log_path) for broker in running.brokers]
    lines: list[list[str]] = [[], []]

    def found() -> float | None:
        for number, log in enumerate(logs):
            lines[number] += log.lines()
            if any("SyncStateSet [1, 2]" in line for line in lines[number]):
                return float(number)
        return None

    return int(until(found, 90, "a master and its slave in sync"))
