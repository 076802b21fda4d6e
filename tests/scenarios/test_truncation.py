"""Where a returning replica is cut, told as text: RIP-44's rule and the table of worked examples.

Every story is told twice: by the two links alone, over byte lists, and by two services with real stores,
where the offsets are SCALE times as large and the bytes that both end with are those on the disk. A byte
knows the epoch that wrote it, so a byte of another history that was kept is seen.
"""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from broker.ha.core import slave_link as sl
from broker.ha.core.epochs import Epochs
from broker.ha.core.master_link import MasterLink, MasterLog, Send
from broker.ha.core.slave_link import SlaveLink
from broker.ha.epoch_file import EpochFile
from broker.ha.report import status_of
from broker.store.message_store import StoreConfig
from broker.store.offline import offline_store
from tests.scenarios.datadriven import play
from tests.support.ha_parts import link_settings, slave_settings
from tests.unit.broker.ha.test_ha_service import (
    FAST,
    FILE_BYTES,
    HOST,
    Broker,
    Controller,
    TopicT,
    group,
    same,
    until,
)

FILES = sorted((Path(__file__).parent / "truncation").glob("*.txt"))

RECORD = 10
SCALE = 16
OVERHEAD = 92
"""A record of the real log fills RECORD x SCALE bytes; that many are not its body."""


@dataclass(frozen=True)
class Log:
    """As a story gives it: its epochs, its end, and its beginning, which is that of its first epoch."""

    epochs: Epochs
    end: int

    @property
    def begin(self) -> int:
        return self.epochs.pairs[0][1] if self.epochs.pairs else 0

    def epoch_at(self, offset: int) -> int:
        entry = self.epochs.find(offset)
        assert entry is not None
        return entry.epoch


class Ending(NamedTuple):
    """Of a slave that followed its master until it had everything, or stopped."""

    cut: int | None
    fault: str | None
    begin: int
    end: int
    epochs: Epochs


Follow = Callable[[Log, Log], Ending]


class Story:
    """Commands: slave EPOCH@START... max=N; master EPOCH@START... max=N; follow."""

    def __init__(self, follow: Follow) -> None:
        self.logs: dict[str, Log] = {}
        self._follow = follow

    def run(self, line: str) -> str:
        name, *words = line.split()
        if name == "follow":
            return self._told(self.logs["slave"], self._follow(self.logs["slave"], self.logs["master"]))
        pairs = [word.split("@") for word in words if "@" in word]
        (end,) = [int(word.removeprefix("max=")) for word in words if word.startswith("max=")]
        log = self.logs[name] = Log(Epochs.of((int(epoch), int(start)) for epoch, start in pairs), end)
        return f"{name} has {log.begin}..{log.end}"

    def _told(self, slave: Log, ending: Ending) -> str:
        epochs = ", ".join(f"{epoch}@{start}" for epoch, start in ending.epochs.pairs)
        has = f"{ending.begin}..{ending.end} of epochs {epochs}"
        if ending.fault is not None:
            return f"stopped: {ending.fault.partition(':')[0]}; it still has {has}"
        cut = "nothing is cut"
        if ending.cut is not None:
            cut = f"cut to {ending.cut} ({slave.end - ending.cut} bytes go)"
        return f"{cut}, then it has {has}"


# -- two links -----------------------------------------------------------------------------------------


class Links:
    """A MasterLink and a SlaveLink, and what the slave has: one byte for each offset, its epoch."""

    def __init__(self, slave: Log, master: Log) -> None:
        self.begin, self.epochs = slave.begin, slave.epochs
        self.held, self.truth, self.offset_of_truth = labels(slave), labels(master), master.begin
        self.cut: int | None = None
        self.fault: str | None = None
        state = MasterLog(1 << 20, master.epochs, master.begin, master.end)
        self.master = MasterLink(state, link_settings(batch_bytes=70), now_ms=0)
        self.slave = SlaveLink(
            2,
            slave_settings(1 << 20),
            epochs=slave.epochs,
            min_offset=slave.begin,
            max_offset=slave.end,
            now_ms=0,
        )

    def run(self) -> Ending:
        self.perform()
        while self.fault is None and (send := self.master.next_effect(0)) is not None:
            assert isinstance(send, Send), send
            at = send.offset - self.offset_of_truth
            self.receive(send.header + self.truth[at : at + send.body_bytes])
        if self.fault is None:
            assert self.held == self.truth[self.begin - self.offset_of_truth :], "a byte of another history"
        return Ending(self.cut, self.fault, self.begin, self.begin + len(self.held), self.epochs)

    def receive(self, data: bytes) -> None:
        while data and self.fault is None:
            count = min(self.slave.body_wanted or self.slave.control_wanted, len(data))
            if self.slave.body_wanted:
                self.held += data[:count]
                self.slave.body_received(count, 0)
            else:
                self.slave.receive_control(data[:count], 0)
            data = data[count:]
            self.perform()

    def perform(self) -> None:
        while (effect := self.slave.next_effect(0)) is not None:
            match effect:
                case sl.SendBytes(data):
                    self.master.receive_data(data, 0)
                case sl.Truncate(offset):
                    self.cut = offset
                    del self.held[offset - self.begin :]
                    self.slave.truncated(offset)
                case sl.ResetTo(offset):
                    self.begin = offset
                case sl.SaveEpochs(epochs):
                    self.epochs = epochs
                case sl.Close(reason):
                    self.fault = reason


def labels(log: Log) -> bytearray:
    return bytearray(log.epoch_at(offset) for offset in range(log.begin, log.end))


def follow_by_links(slave: Log, master: Log) -> Ending:
    return Links(slave, master).run()


# -- two services with stores --------------------------------------------------------------------------


def scaled(log: Log) -> Log:
    return Log(Epochs.of((epoch, start * SCALE) for epoch, start in log.epochs.pairs), log.end * SCALE)


def write_log(root: Path, log: Log) -> None:
    """The log on disk: a record for each RECORD offsets, with its epoch in each byte of the body."""
    store = offline_store(StoreConfig(root, FILE_BYTES, 6000))
    store.load()
    if log.begin:
        store.cutter.reset_to(log.begin * SCALE)
    store.become_master()
    for offset in range(log.begin, log.end, RECORD):
        body = bytes([log.epoch_at(offset)]) * (RECORD * SCALE - OVERHEAD)
        store.put(TopicT(), 0, body, b"", 0, 0, 1, HOST, 0, 0, store_timestamp=1)
    assert store.commit_log.max_offset == log.end * SCALE
    store.set_confirm_offset(store.commit_log.max_offset)
    store.close()
    EpochFile(root / "epochFileCheckpoint").save(scaled(log).epochs)


def follow_by_services(slave: Log, master: Log) -> Ending:
    with tempfile.TemporaryDirectory(prefix="truncation-") as name:
        root = Path(name)
        write_log(root / "1", master)
        write_log(root / "2", slave)
        ending, truth = asyncio.run(_follow(root, master))
        on_disk = Broker(root / "2", Controller({1}), 2, FAST)
        assert on_disk.store.commit_log.max_offset == ending.end * SCALE
        if ending.fault is None:
            assert on_disk.log_bytes() == truth, "a byte of another history"
        on_disk.store.close()
        return ending


async def _follow(root: Path, master: Log) -> tuple[Ending, bytes]:
    """What became of the slave, and the bytes of the master."""
    async with group(root, 2) as (one, two):
        cuts: list[int] = []
        await two.restart(on_truncated=lambda before, end: cuts.append(end))
        await one.lead(master.epochs.last_epoch)
        await two.follow(one, master.epochs.last_epoch)
        await until(
            lambda: (
                status_of(two.service)["fault"] is not None
                or (same(one, two) and not two.store.cutter.is_cutting)
            ),
            "the end",
        )
        fault = status_of(two.service)["fault"]
        log = two.store.commit_log
        epochs = Epochs.of((entry.epoch, entry.start_offset // SCALE) for entry in two.service.epochs)
        ending = Ending(
            cuts[0] // SCALE if cuts else None,
            None if fault is None else str(fault),
            log.min_offset // SCALE,
            log.max_offset // SCALE,
            epochs,
        )
        return ending, one.log_bytes()[log.min_offset - one.store.commit_log.min_offset :]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_by_the_links(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, Story(follow_by_links).run, rewrite=request.config.getoption("--rewrite"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_on_disks(path: Path) -> None:
    play(path, Story(follow_by_services).run, rewrite=False)


def test_there_are_examples() -> None:
    assert len(FILES) >= 10
