"""SIGTERM while a server starts, as after a crash, or on a disk that does not answer: it ends."""

import fcntl
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import namesrv.program
from broker.app import program
from broker.store.message_store import MessageStore
from keelmq.runtime.bounded_exit import EXIT_HUNG, end_with
from namesrv.plugins.controller.raft.storage import journal
from tests.support.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def run_with_an_endless_load(argv: list[str]) -> int:
    """mqbroker, whose log has no end."""

    def load(store: MessageStore, between: Callable[[], None]) -> None:
        print("opening", flush=True)
        while True:
            between()

    MessageStore.load = load  # type: ignore[method-assign,assignment]
    return program.run(argv)


def run_with_a_hung_load(argv: list[str]) -> int:
    """mqbroker, whose disk does not answer."""
    program.START_GIVEN_UP_S_MAX = 0.5
    MessageStore.load = _hang  # type: ignore[method-assign,assignment]
    return program.run(argv)


def run_with_a_hung_journal(argv: list[str]) -> int:
    """mqcontroller, whose disk does not answer."""
    journal.Journal.align = _hang  # type: ignore[method-assign,assignment]
    return namesrv.program.run("mqcontroller", argv, controller_only=True)


def _hang(*_: object) -> None:
    print("opening", flush=True)
    threading.Event().wait()


@contextmanager
def opening(run: Callable[[list[str]], int], settings: dict[str, object]) -> Iterator[subprocess.Popen[str]]:
    """A program that is in the middle of its start."""
    given = {"httpPort": -1, "bindAddress": "127.0.0.1", **settings}
    flags = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "tests.cluster.test_stop_during_start", run.__name__, *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            assert started.stdout.readline() == "opening\n"
            yield started
        finally:
            started.kill()


def broker(tmp_path: Path) -> dict[str, object]:
    (port,) = free_ports(1)
    return {"listenPort": port, "fastListenPort": -1, "storePathRootDir": tmp_path / "store"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_long_start(tmp_path: Path, number: signal.Signals) -> None:
    with opening(run_with_an_endless_load, broker(tmp_path)) as started:
        started.send_signal(number)
        _, said = started.communicate(timeout=30)
    assert started.returncode == 0 and "Traceback" not in said, said


def test_a_signal_ends_a_start_that_hangs(tmp_path: Path) -> None:
    with opening(run_with_a_hung_load, broker(tmp_path)) as started:
        started.send_signal(signal.SIGTERM)
        _, said = started.communicate(timeout=30)
    assert started.returncode == EXIT_HUNG, said
    assert "a thread hangs after: the start hangs; it is left as it is" in said


def test_a_signal_ends_the_start_of_a_controller_that_hangs(tmp_path: Path) -> None:
    """Its directory stays locked until then: what hangs may go on to write."""
    port, raft_port = free_ports(2)
    settings = {
        "controllerDLegerGroup": "g",
        "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
        "controllerDLegerSelfId": "n0",
        "controllerRaftPeers": f"n0-127.0.0.1:{raft_port}",
        "controllerStorePath": tmp_path / "store",
        "kvConfigPath": tmp_path / "kvConfig.json",
    }
    with opening(run_with_a_hung_journal, settings) as started:
        started.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):  # its thread has EXIT_S_MAX to end
            started.wait(timeout=1)
        (lock,) = tmp_path.rglob("raft.lock")
        with lock.open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _, said = started.communicate(timeout=30)
    assert started.returncode == EXIT_HUNG and "stopping before the start is complete" in said, said


if __name__ == "__main__":
    end_with(globals()[sys.argv[1]](sys.argv[2:]))
