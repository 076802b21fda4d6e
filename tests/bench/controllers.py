"""Three controllers on loopback, real processes, told what to do over their stdin (controller_node.py)."""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keelmq.remoting.command import RemotingCommand, decode, encode, request_command
from keelmq.remoting.operation import Empty, Operation, Wire
from keelmq.remoting.operations.controller import GET_METADATA_INFO
from tests.bench.native import BenchError
from tests.bench.servers import ROOT, START_SECONDS_MAX
from tests.support.ports import free_port

HOST = "127.0.0.1"
MEMBERS = 3
ANSWER_SECONDS_MAX = 120
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.005


class Controller:
    """One member: its process, and the files that outlive it."""

    def __init__(self, name: str, directory: Path, port: int, settings: dict[str, str]) -> None:
        self.name, self.port = name, port
        self._config, self._log = directory / f"{name}.conf", directory / f"{name}.log"
        self._config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return HOST, self.port

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Returns when it says that it is ready."""
        command = [sys.executable, "-m", "tests.bench.controller_node", "-c", str(self._config)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [*command, "--log-level", "WARNING"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
            )  # fmt: skip

    def wait_ready(self) -> None:
        if not self._line(START_SECONDS_MAX).startswith("ready:"):
            raise BenchError(f"{self.name} did not start: {self._log.read_text()[-500:]}")

    def do(self, what: str, **arguments: object) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(ANSWER_SECONDS_MAX) or "{}")
        if not answer or "error" in answer:
            raise BenchError(f"{self.name}: {what}: {answer.get('error') or self._log.read_text()[-500:]}")
        return answer

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def cpu_seconds(self) -> float:
        """Of all its threads, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def _line(self, seconds_max: float) -> str:
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], seconds_max)
        return self._process.stdout.readline().strip() if readable else ""


@contextlib.contextmanager
def controllers(directory: Path, more: Mapping[str, str] | None = None) -> Iterator[list[Controller]]:
    """A group of three with fdatasync and a shared key, as an operator runs it. Ends them all."""
    directory.mkdir(parents=True, exist_ok=True)
    secret = directory / "secret"
    secret.write_text(secrets.token_hex(32))
    ports = {f"n{each}": (free_port(), free_port()) for each in range(MEMBERS)}
    members = [
        Controller(
            name,
            directory,
            port,
            {
                "bindAddress": HOST,
                "httpPort": "-1",
                "controllerDLegerGroup": "bench",
                "controllerDLegerPeers": ";".join(f"{each}-{HOST}:{p}" for each, (p, _) in ports.items()),
                "controllerRaftPeers": ";".join(f"{each}-{HOST}:{p}" for each, (_, p) in ports.items()),
                "controllerDLegerSelfId": name,
                "controllerStorePath": str(directory / name),
                "controllerRaftSecretFile": str(secret),
                **(more or {}),
            },
        )
        for name, (port, _) in ports.items()
    ]
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait_ready()
        yield members
    finally:
        for member in members:
            member.kill()


class Client:
    """One connection to one controller, one call after the other; raises OSError."""

    def __init__(self, member: Controller, timeout_s: float = 10) -> None:
        self._socket = socket.create_connection(member.address, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def close(self) -> None:
        self._socket.close()

    def call(self, operation: Operation[Any, Any], header: Wire, body: object = None) -> RemotingCommand:
        return decode(self.exchange(encode(request_command(operation, header, body))))

    def exchange(self, frame: bytes) -> bytes:
        """A request frame for the payload of its answer; pushed requests in between are left out."""
        self._socket.sendall(frame)
        while True:
            payload = self._next()
            if b'"flag":1' in payload:
                return payload

    def _next(self) -> bytes:
        received = self._received
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            data = self._socket.recv(65_536)
            if not data:
                raise ConnectionError("closed by the controller")
            received += data
        size = 4 + int.from_bytes(received[:4], "big")
        payload = bytes(received[4:size])
        del received[:size]
        return payload


def leader_of(members: list[Controller], timeout_s: float = 30) -> Controller:
    """Waits until one says that it leads, and each of the others that it follows this one."""
    found: list[Controller] = []

    def agreed() -> bool:
        found.clear()
        answers = [metadata_of(member) for member in members]
        leaders = {answer.get("controllerLeaderId") for answer in answers}
        if len(leaders) != 1 or None in leaders:
            return False
        found.extend(
            member
            for member, answer in zip(members, answers, strict=True)
            if answer.get("isLeader") == "true"
        )
        return len(found) == 1

    until(agreed, "the controllers have a leader", timeout_s)
    return found[0]


def metadata_of(member: Controller) -> dict[str, str]:
    """{} if it does not answer."""
    try:
        with contextlib.closing(Client(member, timeout_s=1)) as client:
            return dict(client.call(GET_METADATA_INFO, Empty()).ext_fields)
    except OSError:
        return {}


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30, poll_s: float = POLL_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            busy = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
            raise BenchError(f"not within {timeout_s:g} s: {what} ({busy}: repeat on a quieter machine)")
        time.sleep(poll_s)
