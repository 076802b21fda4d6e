"""ControllerMachine: the pure core as the replicated log runs it.

Called in the raft thread, read from anywhere. Readers take `state` once and keep it: it is a frozen value,
replaced as a whole after each event.
"""

from collections.abc import Callable

import msgspec

from namesrv.plugins.controller.core.apply import Applied, Refused, apply
from namesrv.plugins.controller.core.events import AnyEvent, decode_event
from namesrv.plugins.controller.core.state import State, state_from_json, state_to_json
from remoting.codes import ResponseCode

EventHook = Callable[[AnyEvent, Applied], None]
"""Sees every applied event, its group before and after; in the raft thread, also at replay. Never raises."""


class ControllerMachine:
    """Implements StateMachine (raft/api.py)."""

    def __init__(self, on_event: EventHook | None = None) -> None:
        self.state = State()
        self.applied_count = 0
        self._on_event = on_event

    def apply(self, event: bytes) -> Applied:
        """Total for every event of this version. A newer one stops the process (EventVersionError): a member
        that skips an event would differ from the others, and could become active."""
        try:
            decoded = decode_event(event)
        except msgspec.DecodeError as error:  # also ValidationError; the same on every member
            refused = Refused(ResponseCode.SYSTEM_ERROR, f"not a controller event: {error}")
            return Applied(self.state, None, None, refused)
        applied = apply(self.state, decoded)
        if applied.after is not None:
            applied.after.check_invariants()
        self.state = applied.state
        self.applied_count += 1
        if self._on_event is not None:
            self._on_event(decoded, applied)
        return applied

    def snapshot(self) -> bytes:
        return state_to_json(self.state)

    def restore(self, data: bytes) -> None:
        self.state = state_from_json(data)
