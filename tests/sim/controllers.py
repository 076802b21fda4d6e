"""Three controllers in the virtual world: the real machine, decisions and heartbeat table over an ideal log.

The log is Raft as the replicator promises it: one total order, batches fenced by the proposer's epoch, a new
active controller has applied everything that was committed, an answer may be lost (Unknown). What the real
log does under faults is tested beside replicator.py; here the question is what the controller makes of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from keelmq.remoting.codes import ResponseCode
from namesrv.core.liveness import BrokerKey, HeartbeatTable
from namesrv.plugins.controller.core.apply import Applied
from namesrv.plugins.controller.core.decide import Answer, Decision, elect_event
from namesrv.plugins.controller.core.elect import LiveInfo, LiveView, Verdict
from namesrv.plugins.controller.core.events import AnyEvent, encode_event
from namesrv.plugins.controller.core.reconcile import Retry, next_retry, try_election
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, State
from namesrv.plugins.controller.machine import ControllerMachine
from tests.sim.world import World

HEARTBEAT_TIMEOUT_MS = 3_000
ELECTION_MS = 300
CLEAR_AFTER_MS = 3_000

Answered = Callable[[BrokerSet | None, ResponseCode], None]
"""What a request came to, at the controller: the group as the answer shows it, and the code."""


@dataclass
class IdealLog:
    """Committed events in one order, and the epoch of the controller that may append."""

    world: World
    entries: list[bytes] = field(default_factory=list)
    epoch: int = 0
    active: str | None = None


@dataclass
class SimController:
    name: str
    world: World
    log: IdealLog
    table: HeartbeatTable = field(default_factory=HeartbeatTable)
    machine: ControllerMachine = field(default_factory=ControllerMachine)
    up: bool = True
    applied: int = 0
    active_since_ms: int = 0
    retries: dict[str, Retry] = field(default_factory=dict)
    on_elected: Callable[["SimController", BrokerSet], None] = lambda _controller, _group: None

    @property
    def is_active(self) -> bool:
        return self.up and self.log.active == self.name

    @property
    def state(self) -> State:
        return self.machine.state

    def catch_up(self) -> None:
        while self.applied < len(self.log.entries):
            self.machine.apply(self.log.entries[self.applied])
            self.applied += 1

    def start_leading(self) -> None:
        """A claim was applied: everything committed before it is applied here."""
        self.catch_up()
        self.log.epoch += 1
        self.log.active = self.name
        self.active_since_ms = self.world.now_ms
        self.retries.clear()
        self.world.note(f"{self.name} leads, epoch {self.log.epoch}")

    def crash(self) -> None:
        """The state is in the log; heartbeats and connections are gone."""
        self.up = False
        self.table = HeartbeatTable()
        self.machine = ControllerMachine()
        self.applied = 0
        self.retries.clear()
        if self.log.active == self.name:
            self.log.active = None

    def view(self, group: BrokerSet) -> LiveView:
        live, presumed, doubtful = {}, set(), set()
        for key in group.keys():  # noqa: SIM118 - a method of BrokerSet
            info = self.table.info(key)
            if self.table.is_active(key, self.world.now_ms) and isinstance(info, LiveInfo):
                live[key.broker_id] = info
                if self.table.is_doubtful(key, self.world.now_ms):
                    doubtful.add(key.broker_id)
            elif info is None and self.world.now_ms < self.active_since_ms + HEARTBEAT_TIMEOUT_MS:
                presumed.add(key.broker_id)
        return LiveView(live, frozenset(presumed), doubtful=frozenset(doubtful))

    def heartbeat(self, key: BrokerKey, connection_id: int, info: LiveInfo) -> None:
        self.table.record_heartbeat(
            key,
            connection_id=connection_id,
            incarnation=str(connection_id),
            timeout_ms=HEARTBEAT_TIMEOUT_MS,
            now_ms=self.world.now_ms,
            info=info,
        )

    def request(self, decide: Callable[[State], Decision], answered: Answered) -> None:
        """decide -> propose -> apply -> answer, as handlers.py does it; no answer is an Unknown."""
        if not self.is_active:
            return answered(None, ResponseCode.CONTROLLER_NOT_LEADER)
        decision = decide(self.state)
        if isinstance(decision, Refused):
            return answered(None, decision.code)
        if isinstance(decision, Answer):
            return answered(decision.broker_set, decision.code)
        return self.propose(decision, lambda applied: self._answer(applied, answered))

    def propose(self, event: AnyEvent, then: Callable[[Applied], None]) -> None:
        """Commits after a while, if this controller leads in the same epoch until then."""
        epoch = self.log.epoch

        def commit() -> None:
            if not (self.is_active and self.log.epoch == epoch):
                return
            self.log.entries.append(encode_event(event))
            self.applied += 1
            then(self.machine.apply(self.log.entries[-1]))

        self.world.at(self.world.delay_ms(), commit)

    def _answer(self, applied: Applied, answered: Answered) -> None:
        if applied.refused is not None:
            answered(None, applied.refused.code)
        else:
            answered(applied.after, ResponseCode.SUCCESS)

    def scan(self) -> None:
        """One tick of liveness and reconcile; on a follower only the table moves."""
        if not self.up:
            return
        self.table.scan_not_active(self.world.now_ms)
        if not self.is_active:
            self.catch_up()
            return
        for name in sorted(self.state.brokers):
            self._reconcile(self.state.brokers[name])

    def _reconcile(self, group: BrokerSet) -> None:
        retry = self.retries.get(group.broker_name)
        if retry is not None and self.world.now_ms < retry.due_ms:
            return
        view = self.view(group)
        election = try_election(
            group,
            view,
            retry,
            now_ms=self.world.now_ms,
            unclean=False,
            clear_after_ms=CLEAR_AFTER_MS,
        )
        if election is None:
            self.retries.pop(group.broker_name, None)
            return
        self.retries[group.broker_name] = next_retry(
            retry, now_ms=self.world.now_ms, reason=election.reason, retry_max_ms=1_000
        )
        if election.verdict in (Verdict.ELECTED, Verdict.NONE):
            self.propose(elect_event(group, election, view), self._elected)

    def _elected(self, applied: Applied) -> None:
        if applied.refused is None and applied.after is not None:
            self.world.note(f"elected {applied.after.master_broker_id} epoch {applied.after.master_epoch}")
            self.on_elected(self, applied.after)


class Controllers:
    """The controllers and their leader election: when the active one dies, another claims after a while."""

    def __init__(self, world: World, count: int = 3) -> None:
        self.world, self.log = world, IdealLog(world)
        self.members = [SimController(f"n{index}", world, self.log) for index in range(count)]
        world.every(20, self._tick)

    def _tick(self) -> None:
        if self.log.active is None and self.has_quorum():
            self.log.active = "electing"
            self.world.at(self.world.random.randint(50, ELECTION_MS), self._claim)
        for member in self.members:
            member.scan()

    def has_quorum(self) -> bool:
        return 2 * sum(member.up for member in self.members) > len(self.members)

    def _claim(self) -> None:
        self.log.active = None
        candidates = [member for member in self.members if member.up]
        if self.has_quorum():
            self.world.random.choice(candidates).start_leading()

    def committed(self) -> State:
        """What every controller will have applied: the truth that the checkers compare with."""
        machine = ControllerMachine()
        for entry in self.log.entries:
            machine.apply(entry)
        return machine.state
