"""A whole cluster in the virtual world: controllers, replicas, producers, a nemesis, checks at the end."""

from tests.sim.brokers import GROUP, RECORD_BYTES, Disk, SimBroker
from tests.sim.checkers import Checker, Violation, check_identities, check_log
from tests.sim.controllers import Controllers, SimController
from tests.sim.operator import Operator
from tests.sim.world import World

FAULTS_MS = 20_000
HEALING_MS = 15_000


class Group:
    """Three controllers, three replicas, one producer that sends to whoever calls itself master."""

    def __init__(self, seed: int, *, all_ack: bool = True) -> None:
        self.world = self.make_world(seed)
        self.checker = self.make_checker()
        self.controllers = Controllers(self.world)
        self.disks = {f"b{index}": Disk() for index in range(3)}
        self.brokers: dict[str, SimBroker] = {}
        self.all_ack = all_ack
        self.sent = 0
        for name in self.disks:
            self.start_broker(name)
        for controller in self.controllers.members:
            controller.on_elected = self.notify
        self.world.every(15, self.produce)
        self.operator = Operator(self)

    def make_world(self, seed: int) -> World:
        return World(seed)

    def make_checker(self) -> Checker:
        return Checker()

    def start_broker(self, name: str) -> None:
        broker = SimBroker(name, self.world, self.controllers, self.checker, self.disks[name])
        broker.all_ack = self.all_ack
        self.brokers[name] = broker
        broker.peers = self.brokers

    def notify(self, controller: SimController, group: object) -> None:
        """1008 to every replica; a notification may be lost, the poll is the safety net."""
        for broker in list(self.brokers.values()):
            self.world.send(controller.name, broker.name, lambda broker=broker: broker.on_role_update(group))

    def produce(self) -> None:
        masters = [broker for broker in self.brokers.values() if broker.is_running and broker.role.is_master]
        if masters:
            self.sent += 1
            self.world.random.choice(masters).send(self.sent.to_bytes(RECORD_BYTES, "big"))

    # -- faults --------------------------------------------------------------------------------------------

    def nemesis(self) -> None:
        random = self.world.random
        operator = self.operator
        action = random.choice(
            [
                *(self.kill_broker, self.kill_controller, self.cut, self.cut, self.world.heal),
                *(operator.hand_over, operator.replace_machine, operator.configure),
            ]
        )
        action()
        if self.world.now_ms < FAULTS_MS:
            self.world.at(random.randint(100, 3_000), self.nemesis)

    def kill_broker(self) -> None:
        up = [broker for broker in self.brokers.values() if broker.up]
        if up:
            victim = self.world.random.choice(up)
            self.world.note(f"kill {victim.name}")
            victim.crash()
            self.world.at(self.world.random.randint(50, 4_000), lambda: self.revive(victim))

    def revive(self, victim: SimBroker) -> None:
        if self.brokers[victim.name] is victim:
            self.world.note(f"start {victim.name}")
            self.start_broker(victim.name)

    def kill_controller(self) -> None:
        up = [member for member in self.controllers.members if member.up]
        if len(up) == len(self.controllers.members):
            victim = self.world.random.choice(up)
            self.world.note(f"kill {victim.name}")
            victim.crash()
            self.world.at(self.world.random.randint(50, 4_000), lambda: setattr(victim, "up", True))

    def cut(self) -> None:
        names = [*self.brokers, *(member.name for member in self.controllers.members)]
        alone = self.world.random.choice(names)
        others = [name for name in names if name != alone]
        cut_off = others if self.world.random.random() < 0.5 else [self.world.random.choice(others)]
        self.world.note(f"cut {alone} from {cut_off}")
        for other in cut_off:
            self.world.cut(alone, other)

    # -- the run -------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Faults, then healing, then every promise is checked. Raises Violation."""
        self.world.at(2_000, self.nemesis)
        self.world.run_until(FAULTS_MS + 3_500)
        self.world.heal()
        self.world.calm()
        self.world.run_until(FAULTS_MS + 3_500 + HEALING_MS)
        self.check()

    def check(self) -> None:
        group = self.controllers.committed().brokers[GROUP]
        check_log(self.controllers.log.entries)
        check_identities(
            {each: replica.check_code for each, replica in group.replicas.items()},
            {name: disk.meta or (None, "") for name, disk in self.disks.items()},
        )
        master = next((b for b in self.brokers.values() if b.broker_id == group.master_broker_id), None)
        if master is None or not master.up or group.sync_state_set != group.replicas.keys():
            raise Violation(
                f"not healed: master {group.master_broker_id}, set {sorted(group.sync_state_set)}"
            )
        self.checker.final_log(master.name, bytes(master.disk.log), RECORD_BYTES)
        for name, disk in self.disks.items():
            shared = min(len(disk.log), master.confirm)
            if disk.log[:shared] != master.disk.log[:shared]:
                raise Violation(f"{name} differs from {master.name} below confirmOffset {master.confirm}")
            if len(disk.log) < master.confirm:
                raise Violation(f"{name} is in the SyncStateSet without the confirmed log")
        if not self.checker.acked:
            raise Violation("nothing was ever acknowledged")
