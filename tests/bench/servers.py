"""The servers under load, each a real process; they share one core, the load generator has another."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

from cli.lab.ports import free_ports
from tests.bench.frames import opaque_at, send_frame
from tests.bench.native import BenchError, program, run_json
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS_MAX = 60
STOP_SECONDS_MAX = 5
SERVER_CPU, LOAD_CPU = 0, 1


@dataclass(frozen=True)
class Server:
    name: str
    pid: int
    port: int


@dataclass(frozen=True)
class Shape:
    """Connections x requests in flight on each."""

    connections: int
    in_flight: int


@contextlib.contextmanager
def python_echo() -> Iterator[Server]:
    with _process("Python echo", [sys.executable, "-m", "tests.bench.python_echo"]) as (process, line):
        yield Server("Python echo", process.pid, int(line))


@contextlib.contextmanager
def c_echo() -> Iterator[Server]:
    with _process("C echo", [str(program("echo"))]) as (process, line):
        yield Server("C echo", process.pid, int(line))


@contextlib.contextmanager
def bare_python() -> Iterator[Server]:
    """An interpreter with asyncio and nothing else, which waits for a signal."""
    code = "import asyncio, signal; print('ready', flush=True); signal.pause()"
    with _process("bare Python", [sys.executable, "-c", code]) as (process, _):
        yield Server("bare Python", process.pid, 0)


@contextlib.contextmanager
def lone_controller(directory: Path, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A name server with the controller plugin, the only member of its group."""
    port = free_port()
    settings = {
        "bindAddress": "127.0.0.1",
        "listenPort": str(port),
        "httpPort": "-1",
        "kvConfigPath": str(directory / "kvConfig.json"),
        "enableControllerInNamesrv": "true",
        "controllerDLegerGroup": "bench",
        "controllerDLegerPeers": f"n0-127.0.0.1:{free_port()}",
        "controllerDLegerSelfId": "n0",
        "controllerStorePath": str(directory / "controller"),
        **(more or {}),
    }
    directory.mkdir(exist_ok=True)
    path = directory / "namesrv.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with _process("name server", [sys.executable, "-m", "namesrv", "-c", str(path)]) as (process, line):
        if not line.startswith("ready:"):
            raise BenchError(f"the name server says {line!r} instead of ready")
        yield Server("name server", process.pid, port)


@contextlib.contextmanager
def lone_broker(directory: Path, more: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A master without controller, name server and slave: every send is answered when it is in the log."""
    port = free_port()
    settings = {
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "fastListenPort": "-1",
        "httpPort": "-1",
        "haListenPort": str(free_port()),
        "storePathRootDir": str(directory / "store"),
        "mappedFileSizeCommitLog": str(256 << 20),
        **(more or {}),
    }
    directory.mkdir(exist_ok=True)
    path = directory / "broker.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with _process("broker", [sys.executable, "-m", "broker", "-c", str(path)]) as (process, line):
        if not line.startswith("ready:"):
            raise BenchError(f"the broker says {line!r} instead of ready")
        yield Server("broker", process.pid, port)


@contextlib.contextmanager
def container(
    directory: Path, brokers: int, more: Mapping[str, str] | None = None
) -> Iterator[tuple[int, list[int]]]:
    """A container of such masters: its pid, and the ports of the brokers. Ports are even, because a broker in
    a container has its replication port at listenPort + 1."""
    directory.mkdir(exist_ok=True)
    ports = list(islice((port for port in free_ports() if port % 2 == 0), brokers + 1))
    files = []
    for number, port in enumerate(ports[1:]):
        settings = {
            "brokerName": f"broker-{number}",
            "brokerIP1": "127.0.0.1",
            "listenPort": str(port),
            "fastListenPort": "-1",
            "storePathRootDir": str(directory / f"store-{number}"),
            "mappedFileSizeCommitLog": str(256 << 20),
        }
        files.append(directory / f"broker-{number}.conf")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    own = {
        "bindAddress": "127.0.0.1",
        "listenPort": str(ports[0]),
        "fastListenPort": "-1",
        "httpPort": "-1",
        "brokerConfigPaths": ":".join(map(str, files)),
        "containerStatePath": str(directory / "brokers.json"),
        **(more or {}),
    }
    path = directory / "container.conf"
    path.write_text("".join(f"{key}={value}\n" for key, value in own.items()))
    command = [sys.executable, "-m", "broker.container", "-c", str(path)]
    with _process("container", command) as (process, line):
        if f"{brokers} broker" not in line or "quarantined" in line:
            raise BenchError(f"the container says {line!r}")
        yield process.pid, ports[1:]


def load(
    server: Server,
    shape: Shape,
    *,
    frame: bytes | None = None,
    queue_offset_at: int | None = None,
    warmup_ms: int = 300,
    measure_ms: int = 1_000,
    awake: bool = False,
) -> dict[str, Any]:
    """One round of load.c against a server; raises BenchError if a single reply is not a success. awake: the
    generator never sleeps, so that no server pays for waking it, as none does with a network between."""
    frame = send_frame(128) if frame is None else frame
    with tempfile.NamedTemporaryFile(prefix="keelmq-frame-") as file:
        file.write(frame)
        file.flush()
        result = run_json(
            "load",
            server.port,
            shape.connections,
            shape.in_flight,
            warmup_ms,
            measure_ms,
            server.pid,
            file.name,
            int(awake),
            opaque_at(frame),
            *(() if queue_offset_at is None else (queue_offset_at,)),
            cpu=LOAD_CPU,
        )
    if result["refused"] or not result["replies"]:
        raise BenchError(f"{server.name}: {result['refused']} refused of {result['replies']} replies")
    return result


def per_cpu_second(result: dict[str, Any]) -> float:
    """Replies per second of the server's CPU time: stays usable when other load takes half of the core."""
    return float(result["replies"] / result["server_cpu_s"])


@contextlib.contextmanager
def _process(name: str, command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT)
        try:
            line = _first_line(name, process, log)
            pin(process.pid, SERVER_CPU)
            yield process, line
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS_MAX)
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _first_line(name: str, process: subprocess.Popen[str], log: IO[str]) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], START_SECONDS_MAX)
    line = process.stdout.readline().strip() if readable else ""
    if not line:
        log.seek(0)
        raise BenchError(f"{name} did not start: {log.read().strip()[-500:]}")
    return line


def pin(pid: int, cpu: int) -> None:
    """Only where there are cores to choose from; every thread of that process."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2 or cpu not in allowed:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {cpu})
