"""What an outsider can hold against the group. Nothing here looks at raft's own state."""

from dataclasses import dataclass, field

from tests.sim.checkers import Violation

__all__ = ["Checker", "Violation"]

CALM_AFTER_S = 4.0  # a fault may show this long after it ended


@dataclass
class Checker:
    """Violations are collected: raised in the middle of a tick they would end the member, not the test."""

    violations: list[str] = field(default_factory=list)
    history: list[str] = field(default_factory=list)  # the one sequence that all members must apply
    placed: dict[str, int] = field(default_factory=dict)  # event -> its place in `history`
    batches: dict[int, bytes] = field(default_factory=dict)  # log index -> what the first member applied
    owners: dict[int, str] = field(default_factory=dict)  # epoch -> active member
    leaders: dict[int, str] = field(default_factory=dict)  # term -> who sent appends in it
    acknowledged: dict[str, int] = field(default_factory=dict)  # event -> its place
    refused: set[str] = field(default_factory=set)  # the group said: surely not
    outcomes: dict[str, int] = field(default_factory=dict)
    fresh_reads: int = 0
    _floor: int = 0
    troubles: list[tuple[float, float]] = field(default_factory=list)

    def violated(self, text: str) -> None:
        self.violations.append(text)

    # ------------------------------------------------------------------ members
    def applied(self, member: str, events: list[str]) -> None:
        place, event = len(events), events[-1]
        if place <= len(self.history):
            if self.history[place - 1] != event:
                self.violated(f"{member} applied {event} at {place}, others {self.history[place - 1]}")
        elif event in self.placed:
            self.violated(f"{event} was applied twice, by {member} at {place}")
        else:
            self.history.append(event)
            self.placed[event] = place

    def restored(self, member: str, events: list[str]) -> None:
        if events != self.history[: len(events)]:
            self.violated(f"{member} restored a state that is no prefix of what was applied")

    def batch(self, member: str, index: int, data: bytes) -> None:
        if self.batches.setdefault(index, data) != data:
            self.violated(f"{member} applies another entry at index {index} than others did")

    def took_effect(self, member: str, *, epoch: int, claimed: int) -> None:
        if epoch != claimed:
            self.violated(f"{member} applied events of epoch {epoch} after the claim of {claimed}")

    def active(self, member: str, epoch: int, seen: int) -> None:
        if seen < self.floor():
            self.violated(f"{member} is active with {seen} events, {self.floor()} were acknowledged")
        owner = self.owners.setdefault(epoch, member)
        if owner != member:
            self.violated(f"{owner} and {member} were active in epoch {epoch}")
        if epoch < max(self.owners):
            self.violated(f"{member} became active in epoch {epoch} after {max(self.owners)}")

    def leads(self, member: str, term: int) -> None:
        if self.leaders.setdefault(term, member) != member:
            self.violated(f"{self.leaders[term]} and {member} sent appends in term {term}")

    # ------------------------------------------------------------------ clients
    def acknowledge(self, event: str, place: object) -> None:
        self._count("applied")
        if not isinstance(place, int) or place > len(self.history) or self.history[place - 1] != event:
            self.violated(f"{event} was acknowledged at {place}, where it is not")
        else:
            self.acknowledged[event] = place
            self._floor = max(self._floor, place)

    def refuse(self, event: str) -> None:
        self._count("refused")
        self.refused.add(event)

    def floor(self) -> int:
        """What a fresh read that begins now must see: how many events at least."""
        return self._floor

    def read(self, member: str, floor: int, events: list[str]) -> None:
        self.fresh_reads += 1
        if len(events) < floor:
            self.violated(f"a fresh read at {member} saw {len(events)} events, {floor} were known before")
        self._floor = max(self._floor, len(events))  # no later read may see less, whoever answers it

    def unknown(self, began: float, ended: float) -> None:
        """Only faults excuse it."""
        self._count("unknown")
        if not any(start <= ended and began <= end + CALM_AFTER_S for start, end in self.troubles):
            self.violated(f"Unknown in calm weather ({began:.2f} to {ended:.2f})")

    def trouble(self, start: float, end: float) -> None:
        self.troubles.append((start, end))

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    # ------------------------------------------------------------------ the end
    def final(self, states: dict[str, list[str]]) -> None:
        """All members have caught up."""
        for member, events in states.items():
            if events != self.history:
                self.violated(f"{member} ends with {len(events)} events, {len(self.history)} were applied")
        places = {event: place for place, event in enumerate(self.history, 1)}
        for event, place in self.acknowledged.items():
            if places.get(event) != place:
                self.violated(f"{event} was acknowledged at {place} and is lost")
        for event in sorted(self.refused & places.keys()):
            self.violated(f"{event} was refused for certain, and applied")
