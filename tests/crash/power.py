"""All replicas of a group lose their power at once, while they take messages and one of them is paused; what
was not synced is gone (power_layer.py). Then they start again, and every acknowledged message is looked for.

    python -m tests.crash.power 5 [SEED]        # make power

With SYNC_FLUSH none may be lost. With ASYNC_FLUSH the broker says how many ms of messages may be: the count
is printed, and every lost message was acknowledged within that time. Controllers keep their power.
"""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from cli.lab.ack_log import AckLog
from cli.lab.cluster import Launcher, Program
from keelmq.runtime.clock import now_ms
from tests.crash.power_layer import restore
from tests.support.harness import Harness

FLUSH_INTERVAL_MS = 500
FLUSH_ROUND_MS = 1_500
"""A flush of this layer copies whole files, and other tests share the cores."""
ACKED = 400
SETTINGS = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "2",
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "haMaxTimeSlaveNotCatchup": "2000",
    "checkSyncStateSetPeriod": "500",
    "flushIntervalCommitLog": str(FLUSH_INTERVAL_MS),
}


class PoweredLauncher(Launcher):
    """Brokers run on a power layer, with its image beside their store."""

    def command(self, program: Program) -> list[str]:
        if program.module != "broker":
            return super().command(program)
        layer = [
            sys.executable,
            "-m",
            "tests.crash.power_layer",
            str(store_of(program)),
            str(image_of(program)),
        ]
        return [*layer, "-c", str(program.config_path)]


def store_of(program: Program) -> Path:
    return Path(program.settings["storePathRootDir"])


def image_of(program: Program) -> Path:
    return store_of(program).with_name(f"{program.name}.image")


class TimedAckLog(AckLog):
    """Knows when each message was acknowledged."""

    LOST_NUMBERS_MAX = sys.maxsize

    def __init__(self) -> None:
        super().__init__()
        self.acked_ms: dict[int, int] = {}

    def acknowledge(self, number: int, *, started_ms: int, now_ms: int, attempts: int) -> None:
        self.acked_ms[number] = now_ms
        super().acknowledge(number, started_ms=started_ms, now_ms=now_ms, attempts=attempts)


class Outcome(NamedTuple):
    """oldest_lost_ms: how long before the power failure the oldest lost message was acknowledged."""

    acked: int
    lost: int
    damaged: int
    oldest_lost_ms: int

    def problems(self, flush: str) -> list[str]:
        """Returns what the settings do not allow."""
        found = [f"{self.damaged} messages are damaged"] if self.damaged else []
        if self.lost and flush == "SYNC_FLUSH":
            found.append(f"{self.lost} acknowledged messages are lost")
        if self.oldest_lost_ms > FLUSH_INTERVAL_MS + FLUSH_ROUND_MS:
            found.append(f"a lost message was acknowledged {self.oldest_lost_ms} ms before")
        return found


async def power_failure(directory: Path, flush: str, dice: random.Random, *, acked: int = ACKED) -> Outcome:
    """Runs a group, cuts its power once, starts it again, and compares."""
    settings = SETTINGS | {"flushDiskType": flush}
    async with Harness(
        directory, name_servers=1, broker_settings=settings, launcher=PoweredLauncher(), rate=500
    ) as running:
        running.ack_log = log = TimedAckLog()
        master = await running.master()
        running.produce()
        await running.acked(acked)
        running.cluster.pause(dice.choice([each for each in running.cluster.brokers if each is not master]))
        await running.acked(acked + dice.randrange(acked))  # it leaves the SyncStateSet meanwhile
        failed_ms = cut_power(running.cluster.brokers)
        for program in running.cluster.brokers:
            restore(store_of(program), image_of(program))
        for program in running.cluster.brokers:
            running.cluster.start_program(program)
        report = await running.compare()
        oldest = min((log.acked_ms[each] for each in report.lost_numbers), default=failed_ms)
        return Outcome(report.acked, report.lost, report.damaged, failed_ms - oldest)


def cut_power(programs: list[Program]) -> int:
    """Kills all of them, and returns when, in ms."""
    running = [program.process for program in programs if program.process is not None]
    failed_ms = now_ms()
    for process in running:
        os.kill(process.pid, signal.SIGKILL)
    for process in running:
        process.wait()
    return failed_ms


def run(count: int, seed: int, directory: Path) -> int:
    """Returns the number of problems."""
    dice, problems = random.Random(seed), 0
    for number in range(count):
        for flush in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            run_directory = directory / f"{flush}-{number}"
            run_directory.mkdir()
            done = asyncio.run(power_failure(run_directory, flush, dice))
            found = done.problems(flush)
            problems += len(found)
            print(
                f"{number + 1}/{count} {flush}: {done.acked} acknowledged, {done.lost} lost"
                + (f", the oldest {done.oldest_lost_ms} ms before the power failure" if done.lost else "")
                + (f"; {'; '.join(found)}" if found else ""),
                flush=True,
            )
            shutil.rmtree(run_directory)
    return problems


if __name__ == "__main__":
    top = Path(tempfile.mkdtemp(prefix="keelmq-power-"))
    try:
        sys.exit(bool(run(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, top)))
    finally:
        shutil.rmtree(top)
