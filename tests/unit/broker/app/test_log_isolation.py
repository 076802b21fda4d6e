"""Two brokers in one process: every line names the right one, whatever thread or callback it comes from."""

import asyncio
import logging
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from broker.app.broker import Broker
from broker.app.program import own_log
from broker.config.broker_config import BrokerConfig
from broker.store.log.file_allocator import FileAllocator
from broker.store.log.group_commit import GroupCommit
from broker.store.log.mapped_file import MappedFile
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.runtime.isolated_log import IsolatedLog
from keelmq.runtime.log_context import current_log_context, log_context
from keelmq.runtime.program import log_to_stderr
from tests.unit.broker.app.test_broker_app import config, send

LOGGERS = ("broker.", "keelmq.remoting.dispatch", "keelmq.remoting.servers", "keelmq.runtime")


class Lines(logging.Handler):
    """Texts by context."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(LOGGERS):
            context = current_log_context()
            self.found["-" if context is None else context.name].append(record.getMessage())


@pytest.fixture
def lines() -> Iterator[Lines]:
    root, handler = logging.getLogger(), Lines()
    level = root.level
    root.setLevel(logging.DEBUG)
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def of(directory: Path, name: str, **more: object) -> BrokerConfig:
    return config(
        directory / name, broker_name=name, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=5,
        mapped_file_size_commit_log=1 << 20, telemetry_enable=False, **more,
    )  # fmt: skip


@pytest.fixture
async def two(tmp_path: Path, lines: Lines) -> AsyncIterator[dict[str, Broker]]:
    """Each started in its context, by one task that has none."""
    found = {}
    async with AsyncExitStack() as stack:
        for name in ("a", "b"):
            with log_context(name):
                found[name] = await stack.enter_async_context(Broker(of(tmp_path, name)))
        yield found


async def bad_frame(address: str) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x7f\xff\xff\xff garbage")
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_every_line_names_its_broker(
    two: dict[str, Broker], client: RemotingClient, lines: Lines
) -> None:
    for name, broker in two.items():
        assert isinstance(await send(client, broker, b"x" * 1_000), Ok)
        await bad_frame(broker.address)
        assert any("frame length" in text for text in lines.found[name])
    assert not lines.found["-"]
    assert len(lines.found["a"]) == len(lines.found["b"]) > 5


async def test_threads_of_a_broker_log_for_it(
    two: dict[str, Broker], client: RemotingClient, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush, the group commit, the next file of the log, and what retention deletes."""
    seen: dict[str, set[str]] = defaultdict(set)

    def noting(owner: type, method: str, what: str) -> None:
        original = getattr(owner, method)

        def noted(self: object, *args: object, **kwargs: object) -> object:
            context = current_log_context()
            seen[what].add("-" if context is None else context.name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, method, noted)

    noting(MappedFile, "sync", "sync")
    noting(FileAllocator, "_prepare", "prepare")
    noting(MappedFile, "delete", "delete")
    noting(GroupCommit, "_ended", "committed")
    for broker in two.values():
        for _ in range(40):
            assert isinstance(await send(client, broker, b"x" * 40_000), Ok)
        broker.config.become(broker.config.model_copy(update={"file_reserved_time": 0, "delete_when": "00"}))
        broker.retention.requested = True
    whats = ("sync", "prepare", "delete", "committed")
    try:
        async with asyncio.timeout(10):
            while any(len(seen[what]) < 2 for what in whats):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
    finally:
        assert {what: seen[what] for what in whats} == {what: {"a", "b"} for what in whats}


async def test_a_broker_stopped_by_somebody_else(tmp_path: Path, lines: Lines) -> None:
    """As a container does it: start and stop come from tasks of two requests."""
    log = IsolatedLog("C_a_0", tmp_path / "logs" / "C_a_0")
    with log_context(log.context):
        broker = Broker(of(tmp_path, "a"))
        await broker.__aenter__()

    async def stop() -> None:
        with log_context(log.context):
            await broker.__aexit__(None, None, None)
        log.close()

    await asyncio.create_task(stop())
    assert await asyncio.to_thread(log.wait_closed, 10)
    assert not lines.found["-"]
    text = (tmp_path / "logs" / "C_a_0" / "broker.log").read_text()
    assert "store loaded" in text and "store closed" in text
    assert "#" not in text.replace("#1", "")


def test_the_log_of_a_broker_alone(
    tmp_path: Path, lines: Lines, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def life(settings: BrokerConfig) -> None:
        async with Broker(settings):
            pass

    settings = of(tmp_path, "broker-a", isolate_log_enable=True, log_path=tmp_path / "logs")
    with own_log(settings), asyncio.Runner() as runner:
        runner.run(life(settings))
    text = (tmp_path / "logs" / "broker-a_0" / "broker.log").read_text()
    assert "store loaded" in text and "store closed" in text
    off = of(tmp_path, "broker-b", log_path=tmp_path / "none")
    with own_log(off), asyncio.Runner() as runner:
        runner.run(life(off))
    assert not (tmp_path / "none").exists()
    assert of(tmp_path, "c").log_path == Path("~/logs/rocketmqlogs").expanduser()


def test_the_program_s_log_names_the_context(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    try:
        log_to_stderr("INFO")
        logging.getLogger("broker.ha").info("plain")
        with log_context("C_a_0"):
            logging.getLogger("broker.ha").info("named")
        log_to_stderr("INFO")
        assert len(root.handlers) == 1
    finally:
        root.setLevel(level)
    plain, named = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"[\d-]{10} [\d:]{8}\.\d{3} INFO broker\.ha plain", plain)
    assert named.endswith(" INFO #C_a_0# broker.ha named")
