"""--rewrite puts what the code says now into the scenario files; read the diff before you commit it."""

import gc
import os
import signal
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import pytest_timeout

from tests.support.slices import ALL

# A busy machine is slow at generating and at running an example: that is no fault of the test.
hypothesis.settings.register_profile(
    "same every time",
    max_examples=100 if ALL else 25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)

TEARDOWN_S_MAX = 120
"""Of a test that has failed."""


def pytest_configure() -> None:
    """A background shell ignores SIGINT, nohup SIGHUP, and every program that a test starts would, too.
    Without TESTS_RANDOM=1 (./test --all sets it), property tests try the same examples every time: a landing
    must not be refused for a fault that it did not make."""
    if os.environ.get("TESTS_RANDOM") != "1":
        hypothesis.settings.load_profile("same every time")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # it goes on doing nothing here
        signal.signal(signal.SIGHUP, lambda number, frame: None)


def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """pytest-timeout ends its timer when a test fails, because a debugger may begin. Without one there is
    another timer for the teardown: asyncio waits there for tasks, even for those that ignore a cancellation,
    and would hold up the whole run."""
    if isinstance(node, pytest.Item) and not node.config.getoption("usepdb"):
        settings = pytest_timeout.Settings(TEARDOWN_S_MAX, "signal", False, False)
        node.ihook.pytest_timeout_set_timer(item=node, settings=settings)


@pytest.fixture(scope="session", autouse=True)
def _no_files_in_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A name server without kvConfigPath has its audit log in the home directory."""
    with pytest.MonkeyPatch.context() as patched:
        kv = tmp_path_factory.mktemp("namesrv") / "kvConfig.json"
        patched.setattr("namesrv.app.DEFAULT_PATH", kv)
        yield


@pytest.fixture(scope="session", autouse=True)
def _accepted_too_late() -> Iterator[None]:
    """asyncio's own loop (programs use uvloop) fails inside for a connection that it accepts in the iteration
    in which the listener closes, and leaves it open: a ResourceWarning in whichever test runs next."""
    name = "_accept_connection2"
    accept = getattr(BaseSelectorEventLoop, name)

    async def accept_unless_closed(
        loop: Any, factory: Any, connection: Any, extra: Any, tls: Any, server: Any, *more: Any
    ) -> None:
        if server is None or server.sockets:
            await accept(loop, factory, connection, extra, tls, server, *more)
        else:
            connection.close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BaseSelectorEventLoop, name, accept_unless_closed)
        yield


@pytest.fixture(scope="session", autouse=True)
def _disk_with_room() -> Iterator[None]:
    """Where the disk of the machine is nearly full, a broker rightly refuses messages and backups."""
    real = os.statvfs

    def statvfs(path: Any) -> os.statvfs_result:
        found = real(path)
        fields = list(found[:10])
        fields[3] = fields[4] = max(found.f_blocks // 2, found.f_bavail)
        return os.statvfs_result((*fields, found.f_fsid))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "statvfs", statvfs)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Nothing that is imported or collected becomes garbage, and searching all of it takes long."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()  # each full collection in a test would traverse all modules and all tests
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the actual output into the scenario files")
