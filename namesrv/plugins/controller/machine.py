"""ControllerMachine: the pure core as the replicated log runs it.

Called in the raft thread, read from anywhere. Readers take `state` once and keep it: it is a frozen value,
replaced as a whole after each event.
"""

from collections.abc import Callable

import msgspec

from namesrv.plugins.controller.core.apply import Applied, apply
from namesrv.plugins.controller.core.events import AnyEvent, decode_event
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json
from remoting.codes import ResponseCode

EventHook = Callable[[AnyEvent, Applied], None]
"""Sees every applied event, its group before and after; in the raft thread, also at replay. Never raises."""
RestoreHook = Callable[[State], None]
"""Sees the state that took the place of the one before, and of the events between. Likewise."""


class ControllerMachine:
    """Implements StateMachine (raft/api.py)."""

    def __init__(self, on_event: EventHook | None = None, on_restore: RestoreHook | None = None) -> None:
        self.state = State()
        self._on_event, self._on_restore = on_event, on_restore

    def apply(self, event: bytes) -> Applied:
        """Total for every event of this version. A newer one stops the process (EventVersionError): a member
        that skips an event would differ from the others, and could become active."""
        try:
            decoded = decode_event(event)
        except msgspec.DecodeError as error:  # also ValidationError; the same on every member
            refused = Refused(ResponseCode.SYSTEM_ERROR, f"not a controller event: {error}")
            return Applied(self.state, None, None, refused)
        applied = apply(self.state, decoded)
        if applied.after is not None and applied.after is not applied.before:
            applied.after.check_invariants()
        self.state = applied.state
        if self._on_event is not None:
            self._on_event(decoded, applied)
        return applied

    def snapshot(self) -> bytes:
        return state_to_json(self.state)

    def restore(self, data: bytes) -> None:
        self.state = state_from_json(data)
        if self._on_restore is not None:
            self._on_restore(self.state)
