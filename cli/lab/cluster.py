"""A whole cluster of real processes on this machine: name servers with controllers, and one group of brokers.

For the demo and the cluster tests. Configurations, data and logs are in one directory. Ports are free ones
(`ports.py`).
The programs die with this process (parent-death signal), unless `detached`.
"""

import asyncio
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from cli.lab.ports import HOST, free_ports

PR_SET_PDEATHSIG = 1
STOP_TIMEOUT_S = 5.0
FORWARD_MS = "1000"
"""shutdownForwardTimeout: a cluster for a demonstration or a test ends within STOP_TIMEOUT_S, whichever
clients are connected."""
LOG_TAIL_LINES = 12
POLL_MS = 20
CONTROLLER_GROUP = "keelmq"
HTTP_OFF = "-1"

T = TypeVar("T")


class ClusterError(Exception):
    """The cluster did not reach a state in time; the text says which, with the end of the logs."""


@dataclass(slots=True)
class Program:
    """One process: started, killed and started again with the same configuration."""

    name: str
    module: str
    directory: Path
    settings: dict[str, str]
    address: str
    controller_address: str = ""
    http_address: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def config_path(self) -> Path:
        """The program's configuration file."""
        return self.directory / f"{self.name}.conf"

    @property
    def log_path(self) -> Path:
        """The file that takes the program's standard output and standard error."""
        return self.directory / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int | None:
        """The process id, also of a process that has ended; None: it was never started."""
        return self.process.pid if self.process is not None else None

    def write(self) -> None:
        """Writes the settings to the configuration file."""
        write_settings(self.config_path, self.settings)

    def relocate(self, host: str) -> None:
        """Sets the address of the program from its next start on."""
        self.address = f"{host}:{self.address.rpartition(':')[2]}"
        self.settings["brokerIP1"] = host
        self.write()

    def log_tail(self) -> str:
        """Returns the last LOG_TAIL_LINES lines of the log, indented."""
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])


class Launcher:
    """Addresses and commands of programs: all on the loopback. `keelmq chaos` has another one."""

    environ: Mapping[str, str] = {}
    """Variables of the programs, in addition to those of this process without KEELMQ_..."""

    def host(self, name: str) -> str:
        """Returns the address that other programs connect to."""
        return HOST

    def bind(self, name: str) -> str:
        """Returns the address that the program listens on."""
        return HOST

    def command(self, program: Program) -> list[str]:
        """Returns the command line that runs the program."""
        return [sys.executable, "-m", program.module, "-c", str(program.config_path)]


class Cluster:
    """`with Cluster(tmp_path) as cluster: cluster.start()`. Leaving the block ends every program."""

    def __init__(
        self,
        directory: Path,
        *,
        name_servers: int = 3,
        brokers: int = 3,
        cluster_name: str = "KeelCluster",
        broker_name: str = "broker-a",
        namesrv_settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[str, str] | None = None,
        detached: bool = False,
        http: bool = False,
        launcher: Launcher | None = None,
        proxies: int = 0,
    ) -> None:
        """`http`: every program also serves HTTP (a slower start). `detached`: outlives this process.
        `proxies`: how many mqproxy."""
        self.directory = directory
        self.cluster_name, self.broker_name = cluster_name, broker_name
        self._detached, self._http = detached, http
        self._launcher = launcher or Launcher()
        directory.mkdir(parents=True, exist_ok=True)
        ports = self._ports()
        self.name_servers = self._name_servers(name_servers, ports, dict(namesrv_settings or {}))
        self.brokers = self._brokers(brokers, ports, dict(broker_settings or {}))
        self.proxies = self._proxies(proxies, ports)

    @property
    def programs(self) -> list[Program]:
        """All programs, name servers first."""
        return [*self.name_servers, *self.brokers, *self.proxies]

    @property
    def namesrv_addr(self) -> str:
        """The name servers as an address list, host:port;host:port."""
        return ";".join(program.address for program in self.name_servers)

    @property
    def controller_addr(self) -> str:
        """The controllers as an address list, host:port;host:port."""
        return ";".join(program.controller_address for program in self.name_servers)

    def controller_at(self, address: str) -> Program:
        """Returns the name server whose controller listens on host:port. StopIteration: there is none."""
        return next(program for program in self.name_servers if program.controller_address == address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._detached or error is not None:
            self.close()

    def start(self) -> None:
        """Starts every program; returns at once, see until()."""
        for program in self.programs:
            self.start_program(program)

    def start_program(self, program: Program) -> None:
        """Starts or restarts a program; its log is appended to."""
        assert not program.is_running, program.name
        with program.log_path.open("ab") as log:
            program.process = subprocess.Popen(
                self._launcher.command(program),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={
                    **{key: value for key, value in os.environ.items() if not key.startswith("KEELMQ_")},
                    **self._launcher.environ,
                },
                start_new_session=True,  # Ctrl-C reaches this process only, which stops them in order
                preexec_fn=None if self._detached else _die_with_parent,
            )

    def kill(self, program: Program) -> None:
        """Sends SIGKILL, and waits for the end of the process."""
        if program.process is not None:
            program.process.kill()
            program.process.wait()

    async def kill_and_wait(self, program: Program) -> None:
        """As kill(), without blocking the event loop."""
        if program.process is not None:
            program.process.kill()
            await asyncio.to_thread(program.process.wait)

    def pause(self, program: Program) -> None:
        """Sends SIGSTOP: the program stays alive and connected, but silent."""
        self._signal(program, signal.SIGSTOP)

    def resume(self, program: Program) -> None:
        """Sends SIGCONT, after pause()."""
        self._signal(program, signal.SIGCONT)

    def stop_program(self, program: Program, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Sends SIGTERM; returns the exit code. ClusterError: it did not end in time, and was killed."""
        process = program.process
        assert process is not None, program.name
        self._signal(program, signal.SIGTERM)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill(program)
            raise ClusterError(f"{program.name} did not stop within {timeout_s} s of SIGTERM") from None

    def close(self) -> None:
        """Sends SIGTERM to all, then SIGKILL to those still running; none runs when this returns."""
        running = [program for program in self.programs if program.is_running]
        with ExitStack() as stack:  # a second Ctrl-C during a wait still ends them all
            for program in running:
                stack.callback(self.kill, program)
            for program in running:
                self._signal(program, signal.SIGCONT)
                self._signal(program, signal.SIGTERM)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for program in running:
                process = program.process
                assert process is not None
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.05, deadline - time.monotonic()))

    def check(self) -> None:
        """Raises ClusterError if a program has ended that was not killed."""
        for program in self.programs:
            code = program.process.poll() if program.process is not None else None
            if code is not None and code != -signal.SIGKILL:
                raise ClusterError(f"{program.name} ended with exit code {code}:\n{program.log_tail()}")

    async def until(self, what: str, condition: Callable[[], Awaitable[T | None]], *, timeout_s: float) -> T:
        """Returns the condition's value once it is neither None nor False. ClusterError: not in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = await condition()
            if found is not None and found is not False:
                return found
            self.check()
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {timeout_s:g} s: {what}\n{self._log_tails()}")
            await asyncio.sleep(POLL_MS / 1_000)

    def _log_tails(self) -> str:
        return "\n".join(
            f"  last lines of {program.log_path}:\n{program.log_tail()}" for program in self.programs
        )

    def _signal(self, program: Program, number: signal.Signals) -> None:
        if program.is_running and program.process is not None:
            program.process.send_signal(number)

    def _name_servers(self, count: int, ports: Iterator[int], extra: dict[str, str]) -> list[Program]:
        secret_path = self.directory / "raft-secret"
        secret_path.touch(mode=0o600)
        secret_path.write_text(secrets.token_hex(32) + "\n")
        hosts = [self._launcher.host(f"namesrv-{index}") for index in range(count)]
        requests = [f"{host}:{next(ports)}" for host in hosts]
        rafts = [f"{host}:{next(ports)}" for host in hosts]
        programs = []
        for index, host in enumerate(hosts):
            address = f"{host}:{next(ports)}"
            http_port = str(next(ports)) if self._http else HTTP_OFF
            settings = {
                "bindAddress": self._launcher.bind(f"namesrv-{index}"),
                "listenPort": _port(address),
                "httpPort": http_port,
                "enableControllerInNamesrv": "true",
                "controllerDLegerGroup": CONTROLLER_GROUP,
                "controllerDLegerPeers": ";".join(f"n{i}-{peer}" for i, peer in enumerate(requests)),
                "controllerRaftPeers": ";".join(f"n{i}-{peer}" for i, peer in enumerate(rafts)),
                "controllerDLegerSelfId": f"n{index}",
                "controllerStorePath": str(self.directory / f"namesrv-{index}"),
                "kvConfigPath": str(self.directory / f"namesrv-{index}.kvConfig.json"),
                "controllerRaftSecretFile": str(secret_path),
                **extra,
            }
            program = Program(
                f"namesrv-{index}", "namesrv", self.directory, settings, address, requests[index]
            )
            program.http_address = f"{host}:{http_port}" if self._http else ""
            program.write()
            programs.append(program)
        return programs

    def _brokers(self, count: int, ports: Iterator[int], extra: dict[str, str]) -> list[Program]:
        programs = []
        for index in range(count):
            host = self._launcher.host(f"broker-{index}")
            address = f"{host}:{next(ports)}"
            http_port = str(next(ports)) if self._http else HTTP_OFF
            settings = {
                "brokerClusterName": self.cluster_name,
                "brokerName": self.broker_name,
                "brokerId": "-1",
                "bindAddress": self._launcher.bind(f"broker-{index}"),
                "brokerIP1": host,
                "listenPort": _port(address),
                "fastListenPort": "-1",  # it might be the port of one that starts later
                "httpPort": http_port,
                "haListenPort": str(next(ports)),
                "namesrvAddr": self.namesrv_addr,
                "enableControllerMode": "true",
                "controllerAddr": self.controller_addr,
                "storePathRootDir": str(self.directory / f"broker-{index}"),
                "shutdownForwardTimeout": FORWARD_MS,
                "diskMaxUsedSpaceRatio": "90",  # the disk is shared with whatever else is on this machine
                **extra,
            }
            program = self._broker(index, settings, address, ports)
            program.http_address = f"{host}:{http_port}" if self._http else ""
            program.write()
            programs.append(program)
        return programs

    def _proxies(self, count: int, ports: Iterator[int]) -> list[Program]:
        programs = []
        for index in range(count):
            name = f"proxy-{index}"
            address = f"{self._launcher.host(name)}:{next(ports)}"
            settings = {
                "namesrvAddr": self.namesrv_addr,
                "bindAddress": self._launcher.bind(name),
                "grpcServerPort": _port(address),
                "allowOpenNetwork": "true",
            }
            program = Program(name, "proxy", self.directory, settings, address)
            program.write()
            programs.append(program)
        return programs

    def _ports(self) -> Iterator[int]:
        return free_ports()

    def _broker(self, index: int, settings: dict[str, str], address: str, ports: Iterator[int]) -> Program:
        """Returns the program that runs a replica, not written yet."""
        return Program(f"broker-{index}", "broker", self.directory, settings, address)


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Writes a configuration file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _die_with_parent() -> None:
    """In the child, before exec: SIGKILL when the parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
