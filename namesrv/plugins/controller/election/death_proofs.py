"""DeathProofs: probes the listening address of a broker whose heartbeat connection has closed.

core/death_proof.py defines what an answer means. Every controller probes, and only the active one elects. The
connection carries no byte: a live broker sees it open and close.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from keelmq.runtime.tasks import cancel_all
from namesrv.plugins import BrokerKey, Liveness
from namesrv.plugins.controller.core.death_proof import ProbeAnswer, Verdict, probe_target, verdict_of
from namesrv.plugins.controller.election.liveness_view import Heartbeat
from namesrv.plugins.controller.settings import LiveConfig

logger = logging.getLogger(__name__)

PROBES_MAX = 256
"""Maximum of concurrent attempts. Further brokers are not probed: they are inactive after the grace."""


class Probe(Protocol):
    """Makes one connection attempt."""

    async def __call__(self, host: str, port: int, timeout_s: float) -> ProbeAnswer:
        """Returns how it ended, at the latest after timeout_s. The connection is closed then."""
        ...


class DeathProofs:
    """Event loop only. `clock`: monotonic ms, as in `liveness`. `on_proof()`: called after a proof, so that
    the table is scanned at once."""

    def __init__(
        self,
        liveness: Liveness,
        config: LiveConfig,
        clock: Callable[[], int],
        on_proof: Callable[[], None],
        probe: Probe,
    ) -> None:
        self._liveness, self._config, self._clock = liveness, config, clock
        self._on_proof, self._probe = on_proof, probe
        self._tasks: set[asyncio.Task[None]] = set()
        self.proved = 0  # brokers proved dead since the start
        self.unproved = 0  # attempts that proved nothing

    def suspect(self, keys: Iterable[object]) -> None:
        """Probes the address of each broker among `keys`, which have just lost their connection."""
        for key in keys:
            suspicion, heartbeat = self._liveness.suspicion(key), self._liveness.info(key)
            if not isinstance(key, BrokerKey) or suspicion is None or not isinstance(heartbeat, Heartbeat):
                continue
            logger.info("%s: the heartbeat connection of broker %d closed", key.broker_name, key.broker_id)
            if not self._config.current.controller_connection_probe_enable:
                continue
            target = probe_target(heartbeat.live.broker_address, heartbeat.peer.address)
            if target is None or len(self._tasks) >= PROBES_MAX:
                continue
            task = asyncio.create_task(self._prove(key, suspicion, *target), name=f"proof of {key}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def running(self) -> int:
        """Returns the number of attempts in progress."""
        return len(self._tasks)

    async def stop(self) -> None:
        """Ends the attempts in progress."""
        await cancel_all(self._tasks)

    async def _prove(self, key: BrokerKey, suspicion: int, host: str, port: int) -> None:
        deadline_ms = self._clock() + self._config.current.controller_connection_loss_grace_ms
        verdict, attempts = Verdict.AGAIN, 0
        while verdict is Verdict.AGAIN and (left_ms := deadline_ms - self._clock()) > 0:
            attempts += 1
            verdict = verdict_of(await self._probe(host, port, left_ms / 1_000), attempts)
        if verdict is not Verdict.DEAD:
            self.unproved += 1
        elif self._liveness.proved_dead(key, suspicion, self._clock()):
            self.proved += 1
            logger.info(
                "%s: broker %d is dead: %s:%d refuses connections", key.broker_name, key.broker_id, host, port
            )
            self._on_proof()


async def connect_and_close(host: str, port: int, timeout_s: float) -> ProbeAnswer:
    """Implements Probe by TCP. `host`: an IP address."""
    loop = asyncio.get_running_loop()
    attempt = _Attempt(loop.create_future())
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(lambda: attempt, host, port)
            await attempt.closed
    except ConnectionRefusedError:
        return ProbeAnswer.REFUSED
    except TimeoutError:
        return ProbeAnswer.NOTHING if transport is None else ProbeAnswer.OPEN
    except OSError:
        return ProbeAnswer.NOTHING
    finally:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
    return ProbeAnswer.CLOSED


class _Attempt(asyncio.Protocol):
    def __init__(self, closed: "asyncio.Future[None]") -> None:
        self.closed = closed

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)
