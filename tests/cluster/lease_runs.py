"""Masters of real clusters are cut off again and again, and late acknowledgements are counted (make lease).

    python -m tests.cluster.lease_runs [--mode MODE] [--runs N] [--jobs N] [--seed S]

Each job has a cluster in network namespaces: a name server with the controller, two brokers, and a client
beside each. A run cuts the master off from both others in silence, at a random time, waits until the other
broker has been master for a while, and heals. Late is an acknowledgement that the client beside the old
master read after the controller had logged the election of the other one. Needs root.
"""

import argparse
import multiprocessing
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cli.lab.cluster import Cluster, Launcher, Program
from tests.cluster.netns import Network, why_not

ROCKETMQ = {"haSendHeartbeatInterval": "5000", "haHousekeepingInterval": "20000"}
MODES: dict[str, Mapping[str, str]] = {
    "default": {},
    "fast": {"haSendHeartbeatInterval": "100"},
    "rocketmq": ROCKETMQ,  # its intervals, with our heartbeat timeout
    "rocketmq-timeout": {**ROCKETMQ, "controllerHeartBeatTimeoutMills": "10000"},
    "all-ack": {"allAckInSyncStateSet": "true", "slaveTimeout": "3000"},
}
NUMBERS = {"namesrv-0": 0, "broker-0": 1, "broker-1": 2}
AFTER_S = 0.8
"""So long after the election acknowledgements are still waited for."""
PHASE_S = 1.2
"""The cut comes at any time of this, which is longer than every period of the brokers."""


class Namespaces(Launcher):
    def __init__(self, network: Network) -> None:
        self._network = network

    def host(self, name: str) -> str:
        return self._network.address(NUMBERS[name])

    def bind(self, name: str) -> str:
        return "0.0.0.0"

    def command(self, program: Program) -> list[str]:
        prefix = self._network.prefix(NUMBERS[program.name])
        return [*prefix, sys.executable, "-m", program.module, "-c", str(program.config_path)]


class Tail:
    """The lines of a growing file that were not read yet."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def lines(self) -> list[str]:
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()


@dataclass(frozen=True)
class Result:
    """Seconds after the cut. last_s: of the last acknowledgement of the old master."""

    late: int
    elected_s: float
    last_s: float
    acknowledged: int


def until(found: Callable[[], float | None], seconds: float, what: str) -> float:
    """Returns what was found. Raises RuntimeError."""
    deadline = time.monotonic() + seconds
    while (value := found()) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds} s: {what}")
        pause(0.02)
    return value


def pause(seconds: float) -> None:
    """Lets the cluster work."""
    threading.Event().wait(seconds)


def logged_s(line: str) -> float:
    """Returns the time of a log line, in seconds since 1970."""
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S.%f").timestamp()


class LeaseCluster:
    """`with LeaseCluster(directory, settings) as cluster: cluster.run(random)`, as often as wanted."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self._network = Network(3)
        self._network.__enter__()
        broker_settings = {"forwardLateSends": "false", **settings}  # each client asks its own broker only
        self._cluster = Cluster(
            directory, name_servers=1, brokers=2, launcher=Namespaces(self._network),
            broker_settings=broker_settings,
        )  # fmt: skip
        self._clients: list[subprocess.Popen[bytes]] = []
        self._directory = directory

    def __enter__(self) -> "LeaseCluster":
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.kill()
            client.wait()
        self._cluster.close()
        self._network.__exit__(None, None, None)

    def _begin(self) -> None:
        (controller,), brokers = self._cluster.name_servers, self._cluster.brokers
        for program in (controller, *brokers):
            self._cluster.start_program(program)
        self._log = Tail(controller.log_path)
        self._acks: list[Tail] = []
        for number, broker in enumerate(brokers):
            path = self._directory / f"client-{number}.out"
            with path.open("wb") as output:
                command = [sys.executable, "-m", "tests.cluster.lease_client", broker.address]
                prefix = self._network.prefix(NUMBERS[broker.name])
                self._clients.append(subprocess.Popen([*prefix, *command], stdout=output, stderr=output))
            self._acks.append(Tail(path))
        self._masters = [Tail(broker.log_path) for broker in brokers]
        self._members = [Tail(broker.log_path) for broker in brokers]
        self._master = -1

        def first_master() -> float | None:
            for number, log in enumerate(self._masters):
                if any("role change: master" in line for line in log.lines()):
                    self._master = number
            return None if self._master < 0 else 0.0

        until(first_master, 60, "the first master")
        self._joined()

    def _joined(self) -> None:
        """Waits until both are in the SyncStateSet, and messages flow."""

        def joined() -> float | None:
            lines = self._members[self._master].lines()
            return 0.0 if any("SyncStateSet [1, 2]" in line for line in lines) else None

        until(joined, 60, "both brokers in the SyncStateSet")
        acks = self._acks[self._master]
        acks.lines()
        until(lambda: 0.0 if acks.lines() else None, 30, "an acknowledgement")

    def run(self, dice: random.Random) -> Result:
        """Cuts the master off once."""
        pause(dice.uniform(0, PHASE_S))
        old, new = self._master, 1 - self._master
        for tail in (self._log, self._acks[old], self._masters[new]):
            tail.lines()
        cut_s = time.time()
        self._network.cut(old + 1)

        def elected() -> float | None:
            for line in self._log.lines():
                if ": master is " in line:
                    return logged_s(line)
            return None

        def serves() -> float | None:
            found = any("role change: master" in line for line in self._masters[new].lines())
            return 0.0 if found else None

        elected_s = until(elected, 30, "an election")
        until(serves, 30, "the other broker is master")
        pause(AFTER_S)
        times = [float(line.split()[0]) for line in self._acks[old].lines()]
        self._master = new
        self._members[new].lines()
        self._network.heal()
        self._joined()
        return Result(
            late=sum(at > elected_s for at in times),
            elected_s=elected_s - cut_s,
            last_s=max(times, default=cut_s) - cut_s,
            acknowledged=sum(at > cut_s for at in times),
        )


def _job(mode: str, runs: int, seed: int) -> list[Result]:
    dice = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="keelmq-lease-") as directory,
        LeaseCluster(Path(directory), MODES[mode]) as cluster,
    ):
        return [cluster.run(dice) for _ in range(runs)]


def runs_of(mode: str, runs: int, *, jobs: int, seed: int) -> list[Result]:
    """Returns the results of `runs` runs, in `jobs` clusters at the same time."""
    shares = [runs // jobs + (number < runs % jobs) for number in range(jobs)]
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs) as pool:
        parts = pool.starmap(_job, [(mode, share, seed + n) for n, share in enumerate(shares) if share])
    return [result for part in parts for result in part]


def line_of(mode: str, results: list[Result]) -> str:
    """Returns the summary of a mode."""
    margins = sorted(result.elected_s - result.last_s for result in results)
    elected = sorted(result.elected_s for result in results)
    return (
        f"LEASE mode={mode} runs={len(results)} late_runs={sum(each.late > 0 for each in results)} "
        f"late={sum(each.late for each in results)} margin_min_s={margins[0]:.3f} "
        f"margin_median_s={margins[len(margins) // 2]:.3f} elected_median_s={elected[len(elected) // 2]:.3f} "
        f"elected_max_s={elected[-1]:.3f}"
    )


def main() -> int:
    """The exit code: 1 if anything was acknowledged late."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--runs", type=int, default=200, help="for each mode")
    parser.add_argument("--jobs", type=int, default=2, help="clusters at the same time")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"lease runs: {reason}", file=sys.stderr)
        return 2
    late = 0
    for mode in MODES if options.mode == "all" else [options.mode]:
        results = runs_of(mode, options.runs, jobs=min(options.jobs, options.runs), seed=options.seed)
        print(line_of(mode, results), flush=True)
        late += sum(result.late for result in results)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
