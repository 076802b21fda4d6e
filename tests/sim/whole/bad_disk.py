"""A bad disk: damage to the files of one replica at a time, while it runs and before a start.

The log is damaged where another member of the SyncStateSet has confirmed it, so a sound copy exists; it is
healed when the file has its former bytes again. Until then a judge reads the former bytes there (Healed): it
judges what the programs do about the damage, not the damage. Copies of damage, elsewhere, are judged.
Files beside the log are damaged too; BESIDE says which, and what is to become of it.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final
from unittest import mock

from broker.controller_mode.broker_meta_file import META_NAME, BrokerMetaError, MetaFiles
from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile, EpochFileError
from broker.store import scrub
from broker.store.log.checkpoint import read_checkpoint
from cli.lab.chaos.damage import LOG, Ledger, Surgeon, Wound, same_time
from tests.sim.checkers import Violation
from tests.sim.whole.judge import LogView
from tests.support.file_damage import DAMAGE

if TYPE_CHECKING:
    from broker.app.broker import Broker
    from tests.sim.whole.group import WholeGroup
    from tests.sim.whole.programs import BrokerRun

ROUND_MS: Final = 1_000
"""From one round of the scrub to the next; an hour in earnest, and a world lasts some seconds."""
PAUSE_S: Final = (0.1, 1.5)
DOWN_S: Final = (0.02, 1.5)
REFUSED_LOOK_S, STEP_S = 0.02, 0.001
EPOCHS, CHECKPOINT = "epochFileCheckpoint", "checkpoint"
EPOCHS_AHEAD: Final = f"{EPOCHS}.wal"
CLUSTER, GROUP = "C", "broker-a"
BESIDE: Final = (EPOCHS, EPOCHS, EPOCHS_AHEAD, f"{EPOCHS}.bak", CHECKPOINT, "damagedRanges", META_NAME)
"""Files of a replica that is down. All are to be mended without an operator but .broker.meta, with which the
start is refused: it is restored then."""
NOT_READ: Final = (EPOCHS, META_NAME)
"""Files that a running broker does not read, and that are damaged while it runs."""
KINDS_OF_META: Final = ("flip", "zero", "truncate")
"""Without the file a broker gets another id."""


@contextmanager
def quick_scrub() -> Iterator[None]:
    """Inside, a scrub begins its next round soon."""
    with mock.patch.object(scrub, "ROUND_MS_MIN", ROUND_MS):
        yield


class Healed(LogView):
    """A replica's log with its former bytes where it has damage that is not healed."""

    def __init__(self, log: LogView, wounds: list[Wound]) -> None:
        self._log, self._wounds = log, wounds
        self.min_offset = log.min_offset

    def view(self, offset: int, limit: int, *, end: int | None = None) -> memoryview:
        view = self._log.view(offset, limit, end=end)
        data: bytearray | None = None
        for wound in reversed(self._wounds):  # an older one has what was there before both
            begin = int(wound.path.name) + wound.start
            low, high = max(begin, offset), min(begin + len(wound.before), offset + len(view))
            if low < high:
                data = bytearray(view) if data is None else data
                data[low - offset : high - offset] = wound.before[low - begin : high - begin]
        return view if data is None else memoryview(data)


class BadDisk:
    """Of one world. `struck`: what was done, by kind and file; `refused`: names of replicas whose start is
    to be refused because of it."""

    def __init__(self, world: "WholeGroup", seed: int) -> None:
        self._world, self._dice = world, Random(f"bad disk {seed}")
        self._wounds: dict[str, list[tuple[str, Wound]]] = {}  # by replica: (path in its disk, wound)
        self._epochs: dict[str, Epochs] = {}  # by replica: before its files of epochs were damaged
        self.struck: list[str] = []
        self.refused: set[str] = set()
        self._until = 0.0

    # -- for judges --------------------------------------------------------------------------------------

    def open_of(self, name: str) -> list[Wound]:
        """Returns the damage of a replica's log that is not healed. A crash moves the files."""
        root = self._world.disks[name].root
        wounds = [replace(wound, path=root / where) for where, wound in self._wounds.get(name, ())]
        return [wound for wound in wounds if wound.is_open]

    def log_of(self, name: str, log: LogView) -> LogView:
        """Returns the log of a replica as judges read it."""
        wounds = self.open_of(name) if name in self._wounds else []
        return Healed(log, wounds) if wounds else log

    def unhealed(self) -> list[str]:
        """Returns what is not healed, for people."""
        return [f"{name}, {wound}" for name in sorted(self._wounds) for wound in self.open_of(name)]

    # -- damage ------------------------------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        """Damages files for so long."""
        world, dice = self._world, self._dice
        self._until = until = world.loop.time() + seconds
        while world.loop.time() < until:
            await asyncio.sleep(max(min(dice.uniform(*PAUSE_S), until - world.loop.time()), STEP_S))
            name = self._victim()
            run = world.brokers[name]
            if run.process.is_paused or run.is_stopping or not run.process.alive:
                continue
            if dice.random() < 0.5:
                self.strike_running(name)
            elif name not in self.refused:
                self._stopping = world.loop.create_task(self.strike_stopped(name))
                await asyncio.wait((self._stopping,), timeout=max(until - world.loop.time(), STEP_S))

    def _victim(self) -> str:
        """One replica at a time; often the master."""
        names = sorted(self._world.disks)
        wounded = next((name for name in names if self.is_wounded(name)), None)
        master = self._world.master
        if wounded is not None:
            return wounded
        return master.name if master is not None and self._dice.random() < 0.4 else self._dice.choice(names)

    def is_wounded(self, name: str) -> bool:
        """Whether its log, its epochs or its identity are damaged."""
        if name in self.refused or (self._wounds.get(name) and self.open_of(name)):
            return True
        return not self._has_epochs(name)

    def _has_epochs(self, name: str) -> bool:
        try:
            self._epoch_file(name).load()
        except EpochFileError:
            return False
        return True

    def _epoch_file(self, name: str) -> EpochFile:
        return EpochFile(self._world.disks[name].root / EPOCHS)

    def sound_end(self, name: str, *, of_all: bool) -> int:
        """Returns up to where this replica's log may be damaged: what it has confirmed, and another member of
        the SyncStateSet that is up; or all replicas (of_all). If machines lose their power, only what the
        checkpoint counts as durable: damage behind that is for a start what a power cut leaves."""
        world = self._world
        own = world.brokers[name].serving
        names = world.others(name) if of_all else [each for each in world.members if each != name]
        others = [world.brokers[each].serving for each in names]
        ends = [0 if each is None else each.store.confirm_offset for each in others]
        if own is None or not ends or name not in world.members:
            return 0
        known = own.store.dispatch_offset
        if world.conditions.power:
            known = min(known, read_checkpoint(world.disks[name].root / CHECKPOINT).confirm_offset)
        return min(known, min(ends) if of_all else max(ends))

    def _has_others(self, name: str) -> bool:
        """Whether another member of the SyncStateSet is up: the last one cannot learn its epochs again."""
        members = [each for each in self._world.members if each != name]
        return any(self._world.brokers[each].serving is not None for each in members)

    def strike_running(self, name: str) -> None:
        """Damages the log, or a file that is not read, while the broker runs. A broker does not check again
        what it wrote itself, until the next round of the scrub: so the log is damaged where nobody has to
        copy it any more."""
        if self._dice.random() < 0.7:
            self.damage_log(name, self._dice.choice(("flip", "zero")), self.sound_end(name, of_all=True))
        elif self._has_others(name):
            self.damage_beside(name, self._dice.choice(NOT_READ))

    async def strike_stopped(self, name: str) -> None:
        """Stops it, damages its disk, and starts it again some time later."""
        world, dice = self._world, self._dice
        run = world.brokers[name]
        end, has_others = self.sound_end(name, of_all=False), self._has_others(name)
        if dice.random() < 0.5:
            world.kill(name)
        else:
            await world.stop_broker(name)
        if world.loop.time() > self._until:
            world.revive(name)
            return
        if world.brokers[name] is not run:
            return  # another fault killed it while it was stopping, and it was started again since
        if not [each for each in world.members if each != name]:
            end, has_others = 0, False  # it is the only one by now
        if dice.random() < 0.5:
            self.damage_log(name, dice.choice(("flip", "zero", "truncate")), end)
        elif has_others:
            self.damage_beside(name, dice.choice(BESIDE))
        world.loop.call_later(dice.uniform(*DOWN_S), world.revive, name)

    def damage_log(self, name: str, kind: str, end: int) -> None:
        """Damages the log in front of `end`. Only the last file of a log is truncated, because with another
        one that is too short a start is refused."""
        disk = self._world.disks[name].root
        earlier = self.open_of(name)
        ledger = Ledger(list(earlier))
        if kind == "truncate":
            self._truncate_log(ledger, name, end)
        else:
            Surgeon(ledger, self._dice, program=name, store=disk, end=end).strike(kind)
        for wound in ledger.wounds[len(earlier) :]:
            where = str(wound.path.relative_to(disk))
            self._wounds.setdefault(name, []).append((where, wound))
            self._tell(f"{kind} {name} {where} {wound.start}+{len(wound.before)}")

    def _truncate_log(self, ledger: Ledger, name: str, end: int) -> None:
        files = [path for path in (self._world.disks[name].root / LOG).glob("*") if path.name.isdecimal()]
        last = max(files, default=None)
        if last is None or int(last.name) >= end:
            return
        broker = self._world.brokers[name].broker
        if broker is None:
            return  # another fault killed it while it was stopping
        start = self._dice.randrange(end - int(last.name))
        confirmed = max(broker.store.dispatch_offset, end)  # it may have gone on while it was stopping
        before = last.read_bytes()[start : confirmed - int(last.name)]
        ledger.add(Wound(name, last, start, before, "truncate"))
        with same_time(last):
            os.truncate(last, start)

    def damage_beside(self, name: str, file: str, kind: str | None = None) -> None:
        """Damages a file beside the log."""
        path = self._world.disks[name].root / file
        if not path.is_file() or not path.stat().st_size:
            return
        if file == CHECKPOINT and self.open_of(name):
            return  # without it, a start after a crash does not know what was durable
        before = path.read_bytes()
        if file in (EPOCHS, EPOCHS_AHEAD) and self._has_epochs(name):
            self._epochs[name] = self._epoch_file(name).load()
        kinds = KINDS_OF_META if file == META_NAME else tuple(DAMAGE)
        kind = kind or self._dice.choice(kinds)
        if kind == "lose":
            path.unlink()
        else:
            with same_time(path):
                DAMAGE[kind](path, self._dice)
        self._tell(f"{kind} {name} {file}")
        if file == META_NAME and not self._has_identity(name) and name not in self.refused:
            self.refused.add(name)
            self._world.loop.create_task(self._restore(name, before))

    def _has_identity(self, name: str) -> bool:
        try:
            MetaFiles(self._world.disks[name].root, cluster_name=CLUSTER, broker_name=GROUP).load()
        except BrokerMetaError:
            return False
        return True

    async def _restore(self, name: str, content: bytes) -> None:
        """An operator: the identity is restored after the first start that was refused because of it."""
        world = self._world
        refused = asyncio.Event()

        def look() -> None:
            run = world.brokers[name]
            if self._has_identity(name):  # a power cut has brought back what was synced before the damage
                self.refused.discard(name)
                refused.set()
                return
            if run.process.alive and run.serving is not None and run is not before:
                world.failed = world.failed or Violation(f"{name} started with a damaged {META_NAME}")
            if run.failure is not None:
                refused.set()
            else:
                world.loop.call_later(REFUSED_LOOK_S, look)

        before = world.brokers[name]
        look()
        await refused.wait()
        if self._has_identity(name):
            return
        run = world.brokers[name]
        self._check_refusal(run)
        (world.disks[name].root / META_NAME).write_bytes(content)
        world.note("", f"{name} gets its {META_NAME} back")
        run.process.alive = False
        self.refused.discard(name)
        world.revive(name)

    def restore_epochs(self) -> None:
        """An operator: the epochs of the only member of the SyncStateSet are restored after the faults.
        There is no master that it could be compared with: docs/damage.md."""
        world = self._world
        for name in world.members if len(world.members) == 1 else ():
            run = world.brokers[name]
            if self._has_epochs(name) or (run.serving is not None and not _stands_still(run.serving)):
                continue
            world.kill(name)
            self._epoch_file(name).save(self._epochs[name])
            world.note("", f"{name} gets its epochs back")
            world.revive(name)

    @staticmethod
    def _check_refusal(run: "BrokerRun") -> None:
        failure = run.failure
        if not isinstance(failure, BrokerMetaError):
            raise Violation(f"{run.name} is refused for another reason than its {META_NAME}: {failure!r}")

    def _tell(self, text: str) -> None:
        self.struck.append(text)
        self._world.note("damage", text)


def _stands_still(broker: "Broker") -> bool:
    """Whether replication is stopped because the broker could not read its epochs."""
    return broker.controlled is not None and broker.controlled.ha.log_epochs.fault is not None
