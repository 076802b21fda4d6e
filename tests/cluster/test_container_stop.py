"""The end of a container, real processes: threads that hang do not keep them."""

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.container import __main__ as program
from broker.container import bounded_stop
from broker.store.message_store import MessageStore
from keelmq.runtime.bounded_exit import EXIT_HUNG
from tests.unit.broker.container.parts import broker_file

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


def run_with_a_thread_that_hangs(way: str) -> None:
    """The program of this test: mqbrokercontainer, in which the thread of broker b hangs."""
    bounded_stop.STOP_S_MAX = bounded_stop.CANCELLED_S_MAX = 0.5  # type: ignore[misc]
    sys.argv[1:] = sys.argv[2:]

    if way == "start":
        load = MessageStore.load

        def hang(store: MessageStore, *arguments: Any) -> None:
            if store.root.name == "store-b":
                print("opening", flush=True)
                threading.Event().wait()
            load(store, *arguments)

        MessageStore.load = hang  # type: ignore[method-assign]
    else:
        close = MessageStore.close

        def hang_too(store: MessageStore, clean: bool = True) -> None:
            if store.root.name == "store-b":
                threading.Event().wait()
            close(store, clean)

        MessageStore.close = hang_too  # type: ignore[method-assign]
    program.main()


def config_file(tmp_path: Path, files: Sequence[Path]) -> Path:
    path = tmp_path / "container.conf"
    settings = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "httpPort": -1,
        "brokerConfigPaths": ":".join(map(str, files)),
        "containerStatePath": tmp_path / "state" / "brokers.json",
    }
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return path


@pytest.mark.parametrize(("way", "begins"), [("start", "opening"), ("stop", "ready: ")])
def test_a_thread_that_hangs_does_not_keep_the_container(tmp_path: Path, way: str, begins: str) -> None:
    path = config_file(tmp_path, [broker_file(tmp_path, name) for name in "ab"])
    command = [sys.executable, "-m", "tests.cluster.test_container_stop", way, "-c", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as container:
        try:
            assert container.stdout is not None
            assert container.stdout.readline().startswith(begins)
            container.send_signal(signal.SIGTERM)
            _, said = container.communicate(timeout=60)
        finally:
            container.kill()
    assert container.returncode == EXIT_HUNG, said
    assert "c1_b_0 was not stopped within" in said and "c1_a_0 was not" not in said
    assert not (tmp_path / "store-a" / "abort").exists(), "the other one was stopped in order"
    assert "a thread hangs" in said and f"exit code {EXIT_HUNG}" in said


if __name__ == "__main__":
    run_with_a_thread_that_hangs(sys.argv[1])
