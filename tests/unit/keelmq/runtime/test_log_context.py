"""The context of log lines: what inherits it, on both event loops, and what a line looks like."""

import asyncio
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import cast

import pytest
import uvloop

from keelmq.runtime.daemon_threads import DaemonThreads
from keelmq.runtime.log_context import (
    ContextFormatter,
    ContextThreadPool,
    JsonFormatter,
    LogContext,
    current_log_context,
    in_context,
    log_context,
)
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import LOCAL, server_tls, trusting

OLD_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


def name() -> str:
    context = current_log_context()
    return "-" if context is None else context.name


def record(text: str, *args: object) -> logging.LogRecord:
    made = logging.LogRecord("broker.ha", logging.INFO, "x.py", 1, text, args, None)
    made.created, made.msecs = 1_000.25, 250.0
    return made


def test_a_line_outside_of_a_context_is_what_it_was() -> None:
    line = record("role %s", "master")
    old = logging.Formatter(OLD_FORMAT, "%Y-%m-%d %H:%M:%S").format(record("role %s", "master"))
    assert ContextFormatter().format(line) == old


def test_a_line_names_its_context_which_may_be_renamed() -> None:
    formatter, context = ContextFormatter(), LogContext("C_broker-a_-1")
    with log_context(context):
        assert " INFO #C_broker-a_-1# broker.ha role\n" in formatter.format(record("role\n"))
        context.name = "C_broker-a_2"
        assert " #C_broker-a_2# broker.ha " in formatter.format(record("role"))
        with log_context("other"):
            assert " #other# " in formatter.format(record("role"))
        assert name() == "C_broker-a_2"
    assert "#" not in formatter.format(record("role"))


def test_a_json_line_has_what_the_text_has_and_the_fields_of_the_event() -> None:
    made = record("%s: master is %d\n", "broker-a", 2)
    made.brokerName, made.masterEpoch, made.syncStateSet = "broker-a", 7, [1, 2]
    with log_context("C_broker-a_2"):
        line = JsonFormatter().format(made)
    assert json.loads(line) == {
        "ts": "1970-01-01T00:16:40.250Z",
        "level": "INFO",
        "logger": "broker.ha",
        "message": "broker-a: master is 2\n",
        "context": "C_broker-a_2",
        "brokerName": "broker-a",
        "masterEpoch": 7,
        "syncStateSet": [1, 2],
    }
    assert "\n" not in line


def test_a_json_line_keeps_a_traceback_and_what_is_no_json() -> None:
    made = record("failed")
    made.path, made.odd = Path("/x"), {1: {2}}
    try:
        raise OSError("no space")
    except OSError:
        made.exc_info = sys.exc_info()
    found = json.loads(JsonFormatter().format(made))
    assert found["path"] == "/x" and "context" not in found
    assert found["error"].splitlines()[-1] == "OSError: no space"
    assert json.loads(JsonFormatter().format(record("half \ud800")))["message"] == "half ?"


def test_a_program_that_does_not_start_says_so_in_its_json_log(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        conf = tmp_path / "n.conf"
        conf.write_text(
            f"listenPort={port}\nbindAddress=127.0.0.1\nhttpPort=-1\nkvConfigPath={tmp_path}/kv\n"
        )
        ended = subprocess.run(
            [sys.executable, "-m", "namesrv", "--log-format", "json", "-c", str(conf)],
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert (ended.returncode, ended.stdout) == (1, "")
    last = [json.loads(line) for line in ended.stderr.splitlines()][-1]
    assert (last["level"], last["logger"]) == ("CRITICAL", "mqnamesrv")
    assert f"cannot listen on 127.0.0.1:{port}" in last["message"]


def test_a_program_logs_json(tmp_path: Path) -> None:
    """Also the lines that it writes before its configuration is read."""
    bad = tmp_path / "bad.conf"
    bad.write_text("listenPort=0\nhttpPort=0\nbindAddress=127.0.0.1\nneedWaitForService=true\nunknown=1\n")
    arguments = ["--log-format", "json", "--log-level", "DEBUG", "-c", str(bad)]
    ended = subprocess.run(
        [sys.executable, "-m", "namesrv", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1 and "unknown key 'unknown'" in ended.stderr
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("mqnamesrv: ")]
    assert all(json.loads(line)["logger"] for line in lines)


# -- what inherits it --------------------------------------------------------------------------------------


class Seen(asyncio.Protocol):
    """Notes the context of each callback."""

    def __init__(self, seen: set[tuple[str, str]], side: str, closed: asyncio.Future[None]) -> None:
        self.seen, self.side, self.closed = seen, side, closed
        self.note("factory")

    def note(self, what: str) -> None:
        self.seen.add((f"{self.side}.{what}", name()))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.note("made")
        self.transport = cast(asyncio.Transport, transport)
        if self.side == "client":
            self.transport.set_write_buffer_limits(0)
            self.transport.write(bytes(32 << 20))

    def data_received(self, data: bytes) -> None:
        self.note("data")
        if self.side == "server":
            self.transport.write(b"x")
            loop = asyncio.get_running_loop()
            loop.call_soon(self.note, "call_soon")
            loop.call_later(0.001, self.note, "call_later")
            self.task = asyncio.ensure_future(self.later())
        else:
            self.close_when_resumed()

    async def later(self) -> None:
        self.note("task")

    def pause_writing(self) -> None:
        self.note("pause")

    def resume_writing(self) -> None:
        self.note("resume")
        self.close_when_resumed()

    def close_when_resumed(self) -> None:
        if {("client.resume", "client"), ("client.data", "client")} <= self.seen:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.note("lost")
        if not self.closed.done():
            self.closed.set_result(None)


async def sockets(server_ssl: object, client_ssl: object) -> set[tuple[str, str]]:
    loop, seen = asyncio.get_running_loop(), set[tuple[str, str]]()
    ended = [loop.create_future(), loop.create_future()]
    with log_context("server"):
        server = await loop.create_server(
            lambda: Seen(seen, "server", ended[0]), LOCAL, 0, ssl=server_ssl  # type: ignore[arg-type]
        )  # fmt: skip
    port = server.sockets[0].getsockname()[1]
    with log_context("client"):
        await loop.create_connection(
            lambda: Seen(seen, "client", ended[1]), LOCAL, port,
            ssl=client_ssl, server_hostname=LOCAL if client_ssl else None,  # type: ignore[arg-type]
        )  # fmt: skip
    await asyncio.gather(*ended)
    while len(seen) < len(ALL_CALLBACKS):  # noqa: ASYNC110 - a timer's callback
        await asyncio.sleep(0.001)
    server.close()
    await server.wait_closed()
    return seen


ALL_CALLBACKS = {
    *((f"client.{what}", "client") for what in ("factory", "made", "data", "pause", "resume", "lost")),
    *((f"server.{what}", "server") for what in ("factory", "made", "data", "lost")),
    *((f"server.{what}", "server") for what in ("call_soon", "call_later", "task")),
}


def run_on(loop_factory: Callable[[], asyncio.AbstractEventLoop], story: Awaitable[object]) -> object:
    async def whole() -> object:
        async with asyncio.timeout(10):
            return await story

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(whole())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_sockets_that_are_opened_in_it(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    assert run_on(loop_factory, sockets(None, None)) == ALL_CALLBACKS


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_sockets_with_tls(loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def story() -> set[tuple[str, str]]:
        server = server_tls(authority)
        client = trusting(authority)
        return await sockets(server.context, client.context)

    assert run_on(loop_factory, story()) == ALL_CALLBACKS


async def tasks_and_threads() -> list[str]:
    loop, found = asyncio.get_running_loop(), list[str]()

    def note(*_: object) -> None:
        found.append(name())

    async def noting() -> None:
        note()

    with log_context("a"), ContextThreadPool(2) as pool:
        task = asyncio.create_task(noting())
        task.add_done_callback(note)
        loop.call_soon(note)
        called = loop.create_future()
        loop.call_later(0.001, lambda: (note(), called.set_result(None)))
        jobs = [
            asyncio.create_task(asyncio.to_thread(note)),
            loop.run_in_executor(pool, note),
            loop.run_in_executor(None, in_context(note)),
            asyncio.wrap_future(pool.submit(note, 1)),
        ]
        back = loop.create_future()
        pool.submit(lambda: loop.call_soon_threadsafe(lambda: (note(), back.set_result(None))))
        threading.Thread(target=in_context(note)).start()
        with log_context("b"):
            await asyncio.gather(task, called, back, *jobs)
        assert name() == "a"
    assert name() == "-"
    return found


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_tasks_timers_and_threads(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    assert run_on(loop_factory, tasks_and_threads()) == ["a"] * 10


def test_a_pool_of_the_library_does_not_hence_ours() -> None:
    with log_context("a"), ThreadPoolExecutor(1) as plain, ContextThreadPool(1) as ours:
        assert plain.submit(name).result(5) == "-"
        assert ours.submit(name).result(5) == "a"
        with log_context("b"):
            assert ours.submit(name).result(5) == "b"
        assert ours.submit(partial(name)).result(5) == "a"
        assert list(ours.map(lambda _: name(), range(3))) == ["a"] * 3
        daemons = DaemonThreads(1, "daemons")
        assert daemons.submit(name).result(5) == "a"
        daemons.shutdown()


NO_CONTEXT = re.compile(
    r"(?<!Context)ThreadPoolExecutor\(|Thread\(target=(?!in_context)|run_in_executor\(None, (?!in_context)"
)
OF_THE_PROCESS = {
    "keelmq/remoting/servers/http_hosts.py": "the name of this machine, logs nothing",
    "keelmq/runtime/bounded_exit.py": "ends the process",
    "keelmq/runtime/daemon_threads.py": "each call of a pool has its own context",
    "keelmq/runtime/isolated_log.py": "writes the logs of all brokers",
    "keelmq/runtime/log_context.py": "is how to do it",
    "keelmq/runtime/loop_watch.py": "looks at the loop of the process",
    "keelmq/security/audit/writer.py": "the audit log of the process",
}


def test_no_thread_of_a_broker_is_started_without_it() -> None:
    root = Path(__file__).parents[4]
    found = {
        str(path.relative_to(root))
        for part in ("broker", "keelmq/remoting", "keelmq/runtime", "keelmq/security")
        for path in (root / part).rglob("*.py")
        if NO_CONTEXT.search(path.read_text())
    }
    assert found <= OF_THE_PROCESS.keys(), "use ContextThreadPool, in_context() or asyncio.to_thread()"
