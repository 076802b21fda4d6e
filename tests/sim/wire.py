"""A TCP connection in the virtual world: bytes in order or the connection ends; never a gap."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.sim.world import World

RESET_MS = 40
"""How long both ends need to notice that packets no longer pass."""


@dataclass
class End:
    """One side. The owner sets on_data and on_close; both may be called until closed is True."""

    name: str
    on_data: Callable[[bytes], None] = lambda _data: None
    on_close: Callable[[], None] = lambda: None
    closed: bool = False


@dataclass
class Wire:
    world: World
    left: End
    right: End
    _free_at_ms: dict[str, int] = field(default_factory=dict)

    def send(self, sender: End, data: bytes) -> None:
        """Arrives in order, perhaps in pieces. A lost or cut-off packet ends the connection instead."""
        receiver = self.right if sender is self.left else self.left
        if sender.closed:
            return
        while data:
            size = self.world.random.choice([1, 7, 100, len(data), len(data)])
            piece, data = data[:size], data[size:]
            due_ms = max(self.world.now_ms + self.world.delay_ms(), self._free_at_ms.get(receiver.name, 0))
            self._free_at_ms[receiver.name] = due_ms
            self.world.at(due_ms - self.world.now_ms, lambda piece=piece: self._arrive(receiver, piece))

    def _arrive(self, receiver: End, piece: bytes) -> None:
        if receiver.closed:
            return
        if not self.world.connected(self.left.name, self.right.name):
            return self.reset()
        receiver.on_data(piece)

    def reset(self) -> None:
        """From now on nothing arrives any more; both ends hear of it a little later."""
        for end in (self.left, self.right):
            if not end.closed:
                end.closed = True
                self.world.at(RESET_MS, end.on_close)
