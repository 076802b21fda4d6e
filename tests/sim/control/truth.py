"""What the controllers may say and do, judged from outside: the one order of events, and every answer.

Everything that a controller applies, answers or pushes is reported here. Violations are collected and raised
by the world: raised where they are found, they would end a handler, not the run.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from namesrv.plugins.controller.core.events import AlterSyncStateSet, AnyEvent, ElectMaster, decode_event
from namesrv.plugins.controller.core.state import BrokerSet, State


@dataclass(frozen=True)
class View:
    """A group as an answer shows it. None: this answer does not say."""

    master_broker_id: int | None = None
    master_epoch: int | None = None
    sync_state_set: frozenset[int] | None = None
    sync_state_set_epoch: int | None = None

    def is_of(self, group: BrokerSet) -> bool:
        return (
            (self.master_broker_id in (None, group.master_broker_id))
            and (self.master_epoch in (None, group.master_epoch))
            and (self.sync_state_set in (None, group.sync_state_set))
            and (self.sync_state_set_epoch in (None, group.sync_state_set_epoch))
        )


@dataclass
class Truth:
    """`history`: the events in their one order; `groups`: name -> (index of the last event that it was true
    after, the group), oldest first. `entered`: by group, the last elected master, its masterEpoch, and the
    SyncStateSet before that election, until this master changes the set. `begun`: (group, masterEpoch) of the
    terms that a master has begun; `refused`: of those that must not begin any more."""

    violations: list[str] = field(default_factory=list)
    history: list[bytes] = field(default_factory=list)
    states: list[State] = field(default_factory=lambda: [State()])
    groups: dict[str, list[tuple[int, BrokerSet]]] = field(default_factory=dict)
    masters: dict[tuple[str, int], int | None] = field(default_factory=dict)
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    pushed: int = 0
    elections: dict[str, int] = field(default_factory=dict)
    entered: dict[str, tuple[int, int, frozenset[int]]] = field(default_factory=dict)
    begun: set[tuple[str, int]] = field(default_factory=set)
    refused: dict[tuple[str, int], int] = field(default_factory=dict)

    def violated(self, text: str) -> None:
        self.violations.append(text)

    # ---- what controllers apply ----

    def applied(self, node: str, event: bytes, after: State) -> None:
        index = after.event_count
        if index == len(self.history) + 1:
            self._first(node, event, after)
        elif index > len(self.history):
            self.violated(f"{node} applied event {index}, {len(self.history)} are known")
        elif self.history[index - 1] != event:
            self.violated(f"{node} applied {event!r} as event {index}, others {self.history[index - 1]!r}")
        elif self.states[index] != after:
            self.violated(f"{node} has another state than others after event {index} {event!r}")

    def restored(self, node: str, state: State) -> None:
        if state.event_count > len(self.history) or self.states[state.event_count] != state:
            self.violated(f"{node} restored a state that was none after event {state.event_count}")

    def _first(self, node: str, event: bytes, after: State) -> None:
        before, decoded = self.states[-1], decode_event(event)
        self.history.append(event)
        self.states.append(after)
        for name in after.brokers.keys() | before.brokers.keys():
            old, new = before.brokers.get(name), after.brokers.get(name)
            if new is not None and new is not old:
                self._changed(old, new, decoded, f"{node}, event {len(self.history)} {event!r}: {name}")
                self.groups.setdefault(name, []).append((len(self.history), new))

    def _changed(self, old: BrokerSet | None, new: BrokerSet, event: AnyEvent, where: str) -> None:
        name = new.broker_name
        for problem in new.problems():
            self.violated(f"{where}: {problem}")
        if not new.sync_state_set <= new.replicas.keys():
            self.violated(f"{where}: the SyncStateSet has unknown brokers")
        master_epoch, set_epoch = self.epochs.get(name, (0, 0))
        if new.master_epoch < master_epoch or new.sync_state_set_epoch < set_epoch:
            self.violated(f"{where}: epochs went back")
        self.epochs[name] = new.master_epoch, new.sync_state_set_epoch
        if self.masters.setdefault((name, new.master_epoch), new.master_broker_id) != new.master_broker_id:
            known = self.masters[name, new.master_epoch]
            self.violated(f"{where}: masters {known} and {new.master_broker_id} in epoch {new.master_epoch}")
        for broker_id, replica in new.replicas.items():
            if self.owners.setdefault((name, broker_id), replica.check_code) != replica.check_code:
                self.violated(f"{where}: id {broker_id} has another owner")
        if old is not None and old.sync_state_set != new.sync_state_set:
            if new.sync_state_set_epoch <= set_epoch:
                self.violated(f"{where}: another SyncStateSet in the same epoch")
            if isinstance(event, AlterSyncStateSet) and event.master_broker_id != old.master_broker_id:
                self.violated(f"{where}: altered by {event.master_broker_id}, who is not master")
        if isinstance(event, ElectMaster) and (old is None or old.master_broker_id != new.master_broker_id):
            self.elections[name] = self.elections.get(name, 0) + 1
            in_sync = old.sync_state_set if old is not None else frozenset()
            if in_sync and not event.unclean and new.master_broker_id not in (None, *in_sync):
                self.violated(f"{where}: elected from outside the SyncStateSet")
        self._entered(old, new, event, where)

    def _entered(self, old: BrokerSet | None, new: BrokerSet, event: AnyEvent, where: str) -> None:
        """Members come back to the SyncStateSet only by their master, or if it has refused its term: those of
        before its election, and only if nobody has begun that term."""
        name, before = new.broker_name, old.sync_state_set if old is not None else frozenset()
        elected, epoch, members = self.entered.get(name, (None, 0, frozenset()))
        if isinstance(event, AlterSyncStateSet):
            self.entered.pop(name, None)
        elif isinstance(event, ElectMaster) and new.master_broker_id is not None:
            again = new.master_broker_id == elected and before == {elected}
            if not again:
                self.entered[name] = new.master_broker_id, new.master_epoch, before
        elif old is not None and not new.sync_state_set <= before:
            if not new.sync_state_set <= before | members:
                self.violated(f"{where}: the SyncStateSet has members that it had not before epoch {epoch}")
            for each in range(epoch, new.master_epoch):
                self.refused[name, each] = elected or 0
                if (name, each) in self.begun:
                    self.violated(f"{where}: the term of epoch {each} has begun, and is refused")

    def term_begun(self, name: str, epoch: int) -> None:
        """A master takes messages in the term of this masterEpoch."""
        self.begun.add((name, epoch))
        if (name, epoch) in self.refused:
            self.violated(f"broker {self.refused[name, epoch]} has refused epoch {epoch}, and begins it")

    # ---- what controllers say ----

    def floor(self, name: str) -> int:
        """What an answer to a question asked now must know at least: the newest acknowledged event."""
        return self.floors.get(name, 0)

    def answered(self, what: str, name: str, view: View, floor: int) -> None:
        """A success: it was true after some event, and none that was acknowledged before is missing."""
        self.acknowledged += 1
        index = self._last_true(name, view)
        if index is None:
            self.violated(f"{what} of {name} says {view}, which was never applied")
        elif index < floor:
            self.violated(
                f"{what} of {name} says {view}, which ended with event {index}; {floor} was acknowledged"
            )
        else:
            self.floors[name] = max(self.floor(name), self._first_true(name, view))

    def notified(self, name: str, view: View) -> None:
        """1008 is about what is applied; it may be late."""
        self.pushed += 1
        if self._last_true(name, view) is None:
            self.violated(f"a notification of {name} says {view}, which was never applied")

    def owns(self, name: str, broker_id: int, check_code: str) -> None:
        """1013 said so."""
        self.acknowledged += 1
        if self.owners.get((name, broker_id)) != check_code:
            owner = self.owners.get((name, broker_id))
            self.violated(f"id {broker_id} of {name} was granted to {check_code}, it belongs to {owner}")

    def _last_true(self, name: str, view: View) -> int | None:
        """The last moment (as a count of events) at which the view was true."""
        groups = self.groups.get(name, [])
        end = len(self.history)
        for index, group in reversed(groups):
            if view.is_of(group):
                return end
            end = index - 1
        return None

    def _first_true(self, name: str, view: View) -> int:
        return next(index for index, group in self.groups[name] if view.is_of(group))

    # ---- the end ----

    def final(self, states: dict[str, State]) -> None:
        """All controllers have caught up: with everything that was ever applied or acknowledged."""
        for node, state in states.items():
            if state != self.states[-1]:
                count = state.event_count
                self.violated(f"{node} ends with {count} events, {len(self.history)} were applied")

    def healed(self, name: str, live: Collection[int]) -> str | None:
        """Why the group is not well; `live`: ids of the replicas that are up. None: it is, or must not be."""
        group = self.states[-1].brokers.get(name)
        if group is None or group.master_broker_id in live:
            return None
        electable = (group.sync_state_set or group.replicas.keys()) & set(live)
        return f"{name} has no live master, although {sorted(electable)} may win" if electable else None
