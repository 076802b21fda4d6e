"""SIGTERM while a broker still reads its log, as after a crash: it ends, with its store closed."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.app import program
from broker.store.message_store import MessageStore
from tests.support.ports import free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def run_with_an_endless_load() -> int:
    """The program of this test: mqbroker, whose log has no end."""

    def load(store: MessageStore, between: Callable[[], None]) -> None:
        print("opening", flush=True)
        while True:
            between()

    MessageStore.load = load  # type: ignore[method-assign,assignment]
    return program.run(sys.argv[1:])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_long_start(tmp_path: Path, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    settings = {
        "listenPort": port,
        "fastListenPort": -1,
        "httpPort": -1,
        "bindAddress": "127.0.0.1",
        "storePathRootDir": tmp_path / "store",
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "tests.cluster.test_stop_during_start", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stdout is not None
            assert broker.stdout.readline() == "opening\n"
            broker.send_signal(number)
            _, said = broker.communicate(timeout=30)
        finally:
            broker.kill()
    assert broker.returncode == 0 and "Traceback" not in said, said


if __name__ == "__main__":
    sys.exit(run_with_an_endless_load())
