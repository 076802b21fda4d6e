"""SendGapLog: writes the gaps in a producer's sends as telemetry, for analytics.

It counts what the Sender reports, and a thread writes the files (keelmq/remoting/telemetry.py): no send ever
waits for it, and records are dropped if the disk is full. Times are of this host's clock. The broker id of
the lost master is not known to producers, and is written as 0.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from keelmq.client.core.queues import MessageQueue
from keelmq.client.core.send_gaps import SendGaps
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.records import SendGap
from keelmq.remoting.telemetry import TelemetryConfig, TelemetryWriter
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.runtime.tasks import TaskSet

FOLDER: Final = "telemetry"
UNKNOWN_ID: Final = 0
MASTER_GONE: Final = (ResponseCode.RPC_SEND_TO_CHANNEL_FAILED, ResponseCode.SERVICE_NOT_AVAILABLE)
"""Codes of a broker that cannot be reached, or accepts no messages, as during a change of roles."""


class SendGapLog:
    """Event loop only. `cluster_of`: the cluster of a queue's broker."""

    def __init__(
        self, directory: str | Path, *, program: str, cluster_of: Callable[[MessageQueue], str]
    ) -> None:
        """Opens no file before the first gap. Files are below directory/telemetry."""
        limits = TelemetryConfig.model_validate({})
        self.writer = TelemetryWriter(
            Path(directory) / FOLDER,
            node=program,
            reserved_hours=limits.telemetry_reserved_time,
            bytes_max=limits.telemetry_bytes_max,
        )
        self._program, self._cluster_of, self._gaps = program, cluster_of, SendGaps()
        self._tasks, self._is_running = TaskSet(), False

    def failed(self, broker_name: str, started_ms: int, code: int | None = None) -> None:
        """A send that started then (monotonic ms) failed. code: the broker's; None: there was no answer."""
        if code is None or code in MASTER_GONE:
            self._gaps.failed(broker_name, started_ms=started_ms)

    def acknowledged(self, queue: MessageQueue, started_ms: int) -> None:
        """A send that started then was acknowledged now. Writes the gap that it ends."""
        gap = self._gaps.acknowledged(queue.broker_name, started_ms=started_ms, now_ms=now_ms())
        if gap is None:
            return
        ts, gap_ms = wall_ms(), gap.ended_ms - gap.started_ms
        self.writer.put(
            SendGap(
                ts=ts,
                cluster_name=self._cluster_of(queue),
                broker_name=queue.broker_name,
                broker_id=UNKNOWN_ID,
                program=self._program,
                started_ts=ts - gap_ms,
                gap_ms=gap_ms,
            )
        )
        if not self._is_running:
            self._is_running = True
            self._tasks.start("telemetry of a producer", self.writer.run)

    async def close(self) -> None:
        """Writes what is queued. Safe to repeat."""
        await self._tasks.stop()
        await self.writer.close()
