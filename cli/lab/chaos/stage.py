"""The cluster of a run, the hosts of its programs, and its current picture, by which the nemesis chooses
targets."""

import asyncio
import subprocess
import sys
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import MappingProxyType

from broker.backup.manifest import BackupError
from broker.backup.offline_check import StoreCheck, check_stopped
from cli.lab.chaos.damage import Ledger
from cli.lab.chaos.fault_shim import FaultShim
from cli.lab.chaos.history import LOOP_BUDGET_MS, Exit, Log, LongTurn, Scrub, View
from cli.lab.chaos.net import Net
from cli.lab.chaos.traffic import Recorder
from cli.lab.cluster import Cluster, Launcher, Program
from cli.lab.observer import Picture, Watcher
from cli.lab.ports import HOST
from keelmq.runtime.config import LOOP_BUDGET
from keelmq.runtime.loop_watch import slow_turn_of

LOOK_S = 0.25
GUARD_S = 0.1
RESTART_AFTER_S = 1.0
STOP_TIMEOUT_S = 20.0
READ_BYTES = 1 << 20
DISK_BYTES = 2 << 30
LONG_TURNS_MAX = 1_000
EVERYWHERE = "0.0.0.0"


class ChaosLauncher(Launcher):
    """Each program has its own fault shim and, with `net`, its own host. Controllers and name servers are
    addressed by their host's name, which stays when its address changes; brokers register addresses. The logs
    name the callbacks that use more than LOOP_BUDGET_MS."""

    environ = MappingProxyType({LOOP_BUDGET: str(LOOP_BUDGET_MS)})

    def __init__(self, directory: Path, net: Net | None) -> None:
        self.net, self.directory = net, directory
        self.fault_shims: dict[str, FaultShim] = {}

    def host(self, name: str) -> str:
        self.fault_shims[name] = FaultShim(self.directory / f"{name}.weather")
        if self.net is None:
            return HOST
        address = self.net.add(name)
        return name if name.startswith("namesrv") else address

    def bind(self, name: str) -> str:
        """Returns the address that the program listens on: loopback, or every address of its own host."""
        return HOST if self.net is None else EVERYWHERE

    def command(self, program: Program) -> list[str]:
        """Returns the command that runs the program behind its fault shim, on its own host if there is
        one."""
        where = [] if self.net is None else self.net.command(program.name)
        fault_shim = str(self.fault_shims[program.name].path)
        run = [sys.executable, "-m", "cli.lab.chaos.fault_shim", fault_shim, program.module]
        return [*where, *run, "-c", str(program.config_path)]

    def move(self, program: Program) -> None:
        """Gives a program that does not run another address."""
        assert self.net is not None and not program.is_running, program.name
        address = self.net.move(program.name)
        if not program.controller_address:
            program.relocate(address)


class Stage:
    """`picture` is refreshed by look_forever(). Programs in `down` were stopped on purpose."""

    def __init__(self, cluster: Cluster, launcher: ChaosLauncher, recorder: Recorder) -> None:
        self.cluster, self.launcher, self.recorder = cluster, launcher, recorder
        self.picture = Picture()
        self.picture_t = -1  # when the request for it began
        self.down: set[str] = set()
        self.filled: set[str] = set()
        self.broker_ids: dict[str, int] = {}
        self.ended: list[Exit] = []
        self.ledger = Ledger()
        self._watcher = Watcher(cluster)

    async def close(self) -> None:
        """Closes the watcher's connections."""
        await self._watcher.close()

    async def look_forever(self) -> None:
        """Calls look() every LOOK_S, until it is cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> Picture:
        """Takes a new picture of the cluster, keeps it in `picture`, and records it if it has changed."""
        begun = self.recorder.clock()
        picture = await self._watcher.look()
        seen, before = _view(0, picture), _view(0, self.picture)
        if seen != before:
            self.recorder.put(_view(self.recorder.clock(), picture))
        for replica in picture.replicas:
            if replica.broker_id is not None:
                self.broker_ids[replica.name] = replica.broker_id
        self.picture, self.picture_t = picture, begun
        return picture

    async def guard_forever(self) -> None:
        """Records and restarts programs that end without being stopped, until it is cancelled."""
        while True:
            await asyncio.sleep(GUARD_S)
            for program in self.cluster.programs:
                process = program.process
                if process is None or program.name in self.down or process.poll() is None:
                    continue
                code = process.returncode
                excused = program.name in self.filled and code > 0
                ended = Exit(t=self.recorder.clock(), program=program.name, code=code, excused=excused)
                self.recorder.put(ended)
                self.ended.append(ended)
                await asyncio.sleep(RESTART_AFTER_S)
                if program.name not in self.down and not program.is_running:
                    self.cluster.start_program(program)

    # -- programs ----------------------------------------------------------------------------------------

    async def kill(self, program: Program) -> None:
        """Kills the program with SIGKILL and waits for its end. guard_forever() does not restart it."""
        self.down.add(program.name)
        await self.cluster.kill_and_wait(program)

    async def terminate(self, program: Program) -> bool:
        """Sends SIGTERM. False: the program did not end in time, and was killed."""
        self.down.add(program.name)
        process = program.process
        assert process is not None
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            await self.cluster.kill_and_wait(program)
            return False
        return True

    def start(self, program: Program) -> None:
        if not program.is_running:
            self.cluster.start_program(program)
        self.down.discard(program.name)

    def store(self, program: Program) -> Path:
        """Returns the broker's storePathRootDir."""
        return Path(program.settings["storePathRootDir"])

    # -- the end -----------------------------------------------------------------------------------------

    def confirmed_bytes(self) -> int | None:
        """Returns the master's confirmOffset in the last picture; None: there is no master."""
        replicas = self.picture.replicas
        return next((each.confirm_offset for each in replicas if each.role == "master"), None)

    def confirmed_by_all(self) -> int:
        """Returns up to where every replica has confirmed its log, by the last picture; 0: unknown."""
        return min((each.confirm_offset or 0 for each in self.picture.replicas), default=0)

    def scrubs(self) -> Iterator[Scrub]:
        """Yields the check of each replica's files. Call it after the programs have ended."""
        for program in self.cluster.brokers:
            found = StoreCheck(self.store(program))
            try:
                for _ in check_stopped(found.root, found):
                    pass
            except BackupError as error:
                found.fault(str(error))
            yield Scrub(
                t=self.recorder.clock(),
                program=program.name,
                records=found.records,
                faults=tuple(found.faults),
                unhealed=tuple(str(wound) for wound in self.ledger.open_of(program.name)),
            )

    def logs(self, confirmed_bytes: int) -> Iterator[Log]:
        """Yields an entry per replica. Call it after the programs have ended."""
        found = {each.name: self.store(each) / "commitlog" for each in self.cluster.brokers}
        begins = {name: log_begin(directory) for name, directory in found.items()}
        for name, directory in found.items():
            yield Log(
                t=self.recorder.clock(),
                program=name,
                bytes=confirmed_bytes,
                crc=log_crc(directory, max(begins.values()), confirmed_bytes),
                begin=begins[name],
            )

    def long_turns(self) -> Iterator[LongTurn]:
        """Yields the callbacks that kept an event loop waiting, of all programs, which have ended."""
        for program in self.cluster.programs:
            if program.log_path.exists():
                yield from long_turns_of(program.name, program.log_path)


def long_turns_of(program: str, log: Path) -> Iterator[LongTurn]:
    """Yields what the log of a program says about its event loop, at most LONG_TURNS_MAX entries. `t` is 0,
    since a log has another clock."""
    with log.open(errors="replace") as lines:
        turns = (turn for line in lines if (turn := slow_turn_of(line.rstrip())) is not None)
        for turn in islice(turns, LONG_TURNS_MAX):
            yield LongTurn(t=0, program=program, cpu_ms=turn.cpu_ms, at=turn.at)


def _view(t: int, picture: Picture) -> View:
    return View(
        t=t,
        master=picture.master,
        master_epoch=picture.master_epoch,
        sync_state_set=picture.sync_state_set,
        leader=picture.controller_leader,
    )


def _log_files(directory: Path) -> list[Path]:
    """Returns the log's files in order; each is named after the offset of its first byte."""
    return sorted(path for path in directory.glob("*") if path.name.isdecimal())


def log_begin(directory: Path) -> int:
    """Returns the log's first offset; 0 if it has no file."""
    return next((int(path.name) for path in _log_files(directory)), 0)


def log_crc(directory: Path, start: int, end: int) -> int | None:
    """Returns the CRC-32 of the log from `start`, where a file begins, to `end`; None: bytes are missing."""
    crc, done = 0, start
    for path in _log_files(directory):
        if int(path.name) != done:
            continue
        with path.open("rb") as file:
            while done < end and (piece := file.read(min(READ_BYTES, end - done))):
                crc = zlib.crc32(piece, crc)
                done += len(piece)
    return crc if done == end else None
