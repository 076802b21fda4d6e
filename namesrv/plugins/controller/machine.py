"""ControllerMachine: the state machine of the replicated log, on core/apply.py.

Called in the raft thread. Any thread may read `state`, a frozen value that each event replaces as a whole: a
reader takes the reference once and uses that value.
"""

from collections.abc import Callable

import msgspec

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.apply import Applied, apply
from namesrv.plugins.controller.core.events import AnyEvent, decode_event
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.core.state_codec import state_from_json, state_to_json

EventHook = Callable[[AnyEvent, Applied], None]
"""Called with every applied event and its result; raft thread, also during replay. Never raises."""
RestoreHook = Callable[[State], None]
"""Called with the state of a restored snapshot, instead of with the events before it. Never raises."""


class ControllerMachine:
    """Implements StateMachine (raft/api.py)."""

    def __init__(self, on_event: EventHook | None = None, on_restore: RestoreHook | None = None) -> None:
        self.state = State()
        self._on_event, self._on_restore = on_event, on_restore

    def apply(self, event: bytes) -> Applied:
        """Applies one event. Raises EventVersionError for an event of a newer release, which ends the
        process: a member that skipped the event would differ from the others, and could become active.
        """
        try:
            decoded = decode_event(event)
        except msgspec.DecodeError as error:  # or ValidationError, its subclass; the same on every member
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
