"""Real clients, RocketMQ's and KeelMQ's, each in a process: started, given messages, asked what they saw.

Skips say what is missing. The C++ client is a test requirement where it exists as a wheel (Linux on x86_64);
the Node clients need `npm ci` in tests/interop/node, and the Python client of gRPC an environment of its own.
"""

import asyncio
import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

HERE = Path(__file__).parent
NODE = HERE / "node"
WAIT_S = 40.0
END_S = 10.0
LINE_BYTES_MAX = 1 << 20

KEELMQ, CPP, NODE_JS = "keelmq", "cpp", "node"
GRPC_PYTHON, GRPC_NODE = "grpc-python", "grpc-node"
"""RocketMQ 5's own clients."""
CLIENT_VENV = HERE / ".venv-client"

NODE_PACKAGES = {NODE_JS: "ali-ons", GRPC_NODE: "rocketmq-client-nodejs"}

Event = dict[str, Any]


def command_of(client: str) -> list[str]:
    """The program that drives this client."""
    return {
        KEELMQ: [sys.executable, "-m", "tests.interop.keelmq_driver"],
        CPP: [sys.executable, str(HERE / "cpp_driver.py")],
        NODE_JS: ["node", str(NODE / "driver.js")],
        GRPC_PYTHON: [str(CLIENT_VENV / "bin" / "python"), str(HERE / "grpc_driver.py")],
        GRPC_NODE: ["node", str(NODE / "grpc_driver.js")],
    }[client]


def missing(client: str) -> str | None:
    """Why this client is not on this machine; None: it is."""
    if client == CPP and importlib.util.find_spec("rocketmq") is None:
        return "the C++ client is not installed: PyPI has rocketmq 0.4.4 for Linux on x86_64 only"
    if client in NODE_PACKAGES and shutil.which("node") is None:
        return "the Node clients need Node.js: install node and npm"
    if client in NODE_PACKAGES and not (NODE / "node_modules" / NODE_PACKAGES[client]).is_dir():
        return "the Node clients are not installed: run `npm ci` in tests/interop/node"
    if client == GRPC_PYTHON and not (CLIENT_VENV / "bin" / "python").exists():
        return (
            "the Python client of gRPC is not installed: `uv venv tests/interop/.venv-client`, and "
            "`uv pip install --python tests/interop/.venv-client -r requirements/grpc_client.txt`"
        )
    return None


def need(client: str) -> None:
    """Skips the test when this client is not here."""
    if (reason := missing(client)) is not None:
        pytest.skip(reason)


class Client:
    """`async with Client(CPP, tmp_path, kind="producer", namesrv=..., group=...)`: it is ready."""

    def __init__(self, client: str, directory: Path, *, prefix: Sequence[str] = (), **options: Any) -> None:
        """prefix: in front of the command line, for instance to run it in a network namespace."""
        need(client)
        self._prefix = tuple(prefix)
        self.events: list[Event] = []
        self._client, self._options = client, options
        self._home = directory / f"{client}-{options['kind']}-{options['group']}"
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._role_update = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._home.mkdir(exist_ok=True)
        with (self._home / "stderr").open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *self._prefix,
                *command_of(self._client),
                json.dumps(self._options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "HOME": str(self._home)},  # both write logs and offsets there
                limit=LINE_BYTES_MAX,
            )
        self._reader = asyncio.create_task(self._read())
        try:
            await self.until(lambda: any("ready" in event for event in self.events))
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        process, reader = self._process, self._reader
        assert process is not None and reader is not None and process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
        await reader

    async def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):  # the library prints lines of its own
                self.events.append(json.loads(line))
                self._role_update.set()
        self._role_update.set()

    def tell(self, **order: Any) -> None:
        """A message to send; the answer is an event."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def send(self, topic: str, body: str, **more: Any) -> Event:
        """Returns when it is answered: {"sent": ...} or {"failed": ...}."""
        before = len(self.events)
        self.tell(topic=topic, body=body, **more)
        await self.until(lambda: len(self.events) > before)
        return self.events[before]

    async def must_send(self, topic: str, body: str, **more: Any) -> Event:
        event = await self.send(topic, body, **more)
        assert "sent" in event, event
        return event

    def kill(self) -> None:
        """Sends SIGKILL: the client says nothing more to anyone."""
        assert self._process is not None
        self._process.kill()

    async def until(self, condition: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """AssertionError with what is known when it does not come true, or the process has ended."""
        assert self._process is not None and self._reader is not None
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    assert not self._reader.done(), f"the client ended: {self._story()}"
                    self._role_update.clear()
                    await self._role_update.wait()
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s: {self._story()}") from None

    def _story(self) -> str:
        errors = (self._home / "stderr").read_text(errors="replace")[-2_000:]
        code = self._process.returncode if self._process is not None else None
        return f"exit code {code}, last events {self.events[-5:]}, stderr: {errors}"

    # -- what a consumer saw -----------------------------------------------------------------------------

    @property
    def got(self) -> list[Event]:
        return [event for event in self.events if "got" in event]

    @property
    def errors(self) -> list[Event]:
        """What a simple consumer's calls raised."""
        return [event for event in self.events if "error" in event]

    @property
    def bodies(self) -> list[str]:
        return [event["got"] for event in self.got]
