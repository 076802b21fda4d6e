"""Around the event loop of a server: what it is started with, and what ends it. In processes of their own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVE = """
import asyncio, sys
from keelmq.runtime import program

async def serve():
    stop = program.stop_event()
    program.say_ready("test")
    print("serving", file=sys.stderr, flush=True)
    await stop.wait()

with program.runner() as runner:
    runner.run(serve())
"""

HANG_UP = """
import asyncio, os, signal, sys
from keelmq.runtime import program

async def hang_up():
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, told.set)
    events = program.stop_events(2)
    for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGUSR1):
        os.kill(os.getpid(), number)
    await told.wait()
    print([event.is_set() for event in events])

if "nohup" in sys.argv:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with program.runner() as runner:
    runner.run(hang_up())
"""


@contextmanager
def started(redirections: str) -> Iterator[subprocess.Popen[str]]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", SERVE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_standard_stream_does_not_abort_the_end(closed: str) -> None:
    """libuv aborts the process when it closes a socket or an epoll with the number of one."""
    with started(closed) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready: test\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_ready_line_that_cannot_be_written_does_not_end_the_server() -> None:
    """A log file on a full disk, or a pipe whose reader has gone."""
    with started(">/dev/full") as server:
        assert server.stderr is not None
        assert "No space left on device" in server.stderr.readline()
        assert server.stderr.readline() == "serving\n"
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
        assert server.stderr.read() == ""


@pytest.mark.parametrize(("arguments", "stops"), [([], "[True, False]"), (["nohup"], "[False, False]")])
def test_a_terminal_that_is_closed_stops_a_server(arguments: list[str], stops: str) -> None:
    """As Ctrl-C once, however many SIGHUPs come; without a handler they kill the process."""
    command = [sys.executable, "-c", HANG_UP, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{stops}\n", "")


@pytest.mark.parametrize("module", ["namesrv", "broker"])
def test_a_limit_of_open_files_that_is_too_low_is_one_line(module: str) -> None:
    command = f'ulimit -n 12 && exec "{sys.executable}" -m {module} --set httpPort=-1'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].partition(": ")[2] == (
        "the limit of open files is 12; at least 32 are needed: raise it (ulimit -Hn), 65536 are enough"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_systemd_is_notified_once_the_server_is_ready(kind: str, tmp_path: Path) -> None:
    """sd_notify(3); no child of the server has the socket's address."""
    name = str(tmp_path / "notify") if kind == "path" else f"@keelmq-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name if kind == "path" else f"\0{name[1:]}")
        manager.settimeout(20)
        code = SERVE + "\nimport os; print(os.environ.get('NOTIFY_SOCKET'))"
        environ = os.environ | {"NOTIFY_SOCKET": name}
        server = subprocess.Popen(
            [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, text=True
        )
        assert manager.recv(100) == b"READY=1"
        server.terminate()
        output, _ = server.communicate(timeout=20)
    assert (server.returncode, output.splitlines()) == (0, ["ready: test", "None"])


def test_a_server_serves_without_the_systemd_that_started_it(tmp_path: Path) -> None:
    environ = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "gone")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    server = subprocess.Popen([sys.executable, "-c", SERVE], env=environ, text=True, **pipes)
    assert server.stdout is not None and server.stdout.readline() == "ready: test\n"
    server.terminate()
    _, errors = server.communicate(timeout=20)
    assert server.returncode == 0 and f"systemd cannot be notified at {tmp_path / 'gone'}" in errors
