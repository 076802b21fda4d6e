"""The replicated log on pysyncobj. (Interface first; the implementation follows.)"""

from collections.abc import Callable
from typing import Any

from namesrv.plugins.controller.raft.api import (
    AppendOutcome,
    Applied,
    Busy,
    NotActive,
    RaftSettings,
    Replicator,
    StateMachine,
)
from remoting.operation import Unknown

__all__ = [
    "AppendOutcome",
    "Applied",
    "Busy",
    "NotActive",
    "RaftReplicator",
    "RaftSettings",
    "Replicator",
    "StateMachine",
    "Unknown",
]


class RaftReplicator:
    """Implements Replicator. One member of a group; a group of one needs no network."""

    def __init__(self, machine: StateMachine, settings: RaftSettings) -> None:
        self._machine, self._settings = machine, settings

    @property
    def is_active(self) -> bool:
        return self.epoch is not None

    @property
    def leader_id(self) -> str | None:
        return None

    @property
    def self_id(self) -> str:
        return self._settings.self_id

    @property
    def epoch(self) -> int | None:
        return None

    async def start(self) -> None:
        raise NotImplementedError

    async def stop(self) -> None:
        raise NotImplementedError

    async def append(self, event: bytes, request_id: str | None = None) -> AppendOutcome:
        raise NotImplementedError

    async def barrier(self) -> AppendOutcome:
        raise NotImplementedError

    def on_active_changed(self, callback: Callable[[bool], None]) -> None:
        raise NotImplementedError

    def status(self) -> dict[str, Any]:
        raise NotImplementedError
