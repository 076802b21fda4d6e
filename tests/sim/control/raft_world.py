"""Whole controllers over the real pysyncobj: its network, clocks and disks are those of tests/sim/raft."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.raft import proposals
from namesrv.plugins.controller.raft.api import RaftSettings, Replicator
from tests.sim.control.node import Node, Observed
from tests.sim.control.world import ControlWorld, judge
from tests.sim.raft.checkers import Checker, Violation
from tests.sim.raft.cluster import FAST_DIRECTORY
from tests.sim.raft.cluster import World as RaftWorld
from tests.sim.raft.process import SimProcess, SimReplicator
from tests.sim.raft.virtual import VirtualLoop, virtual_library

APPEND_BYTES_MIN = 4_000
"""An entry must fit into one message, as the limits in production see to; these events are larger than those
of tests/sim/raft."""


class ControlChecker(Checker):
    """Raft's own promises; what was acknowledged is known to Truth."""

    world: RealWorld

    def floor(self) -> int:
        return max(self.world.truth.floors.values(), default=0)


class ControlProcess(SimProcess):
    """A member whose state machine is the controller's, with the controller around it."""

    def __init__(self, name: str, raft: RaftSide, settings: RaftSettings) -> None:
        super().__init__(name, raft, settings)

        def replicator(observed: Observed) -> Replicator:
            self.machine: Any = observed
            self.replicator = SimReplicator(observed, settings)
            self.replicator.process = self
            self.replicator.on_active_changed(self._active_changed)
            return self.replicator

        self.node = Node(name, raft.control.names, raft.control.truth, replicator)

    def end(self, *, silently: bool) -> None:
        super().end(silently=silently)
        self.node.end()


class RaftSide(RaftWorld):
    """The members, their links and disks, and their faults."""

    def __init__(self, control: RealWorld, directory: Path) -> None:
        super().__init__(control.seed, control.loop, directory, members=control.conditions.members)
        self.control = control
        self.checker: ControlChecker = ControlChecker()
        self.checker.world = control

    def start(self, name: str) -> None:
        process = ControlProcess(name, self, self.settings(name))
        self.processes[name], self.control.nodes[name] = process, process.node
        try:
            process.start()
        except ConfigError as error:
            self.checker.violated(f"{name} does not start: {error}")

    def note(self, text: str) -> None:
        """Texts are "kill -9 n1", "n1 is active, epoch 2"."""
        kind = " ".join(word for word in text.split() if word not in self.addresses and not word.isdecimal())
        self.control.note(kind.rstrip(",").replace(", epoch", ""), text)


class RealWorld(ControlWorld):
    def __init__(self, seed: int, loop: VirtualLoop, directory: Path, **changes: Any) -> None:
        super().__init__(seed, loop, **changes)
        self.raft = RaftSide(self, directory)

    def start_controllers(self) -> None:
        for name in self.names:
            self.raft.start(name)

    def controller_fault(self) -> None:
        raft, now = self.raft, self.loop.time()
        faults = [
            raft.reset_one, raft.reset_one, raft.cut_some, raft.cut_some, raft.cut_some, raft.cut_one_way,
            raft.kill_one, raft.kill_one, raft.power_cut_one, raft.power_cut_one, raft.blackout,
            raft.pause_one,
        ]  # fmt: skip
        if not self.conditions.quiet_brokers:
            faults.append(raft.wipe_one)
        raft.checker.trouble(now, now + self.random.choice(faults)())
        if self.random.random() < 0.3:
            raft.network.heal()

    def heal_controllers(self) -> None:
        self.raft.network.heal()
        self.raft.network.duplicates = 0.0
        for name, process in self.raft.processes.items():
            self.loop.call_later(0.5, self.raft.revive, name)
            process.resume()

    def agree(self) -> bool:
        self.raft.network.heal()
        return all(each.alive for each in self.raft.processes.values()) and super().agree()

    def raise_violation(self) -> None:
        super().raise_violation()
        if self.raft.checker.violations:
            raise Violation("; ".join(self.raft.checker.violations[:3]))

    def close(self) -> None:
        super().close()
        for process in self.raft.processes.values():
            if process.alive:
                process.end(silently=True)


def run_seed(seed: int, **changes: Any) -> RealWorld:
    """Raises Violation. `changes`: fields of Conditions."""
    loop = VirtualLoop()
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="control-sim-", dir=FAST_DIRECTORY) as directory:
            world = RealWorld(seed, loop, Path(directory), **changes)
            raft = world.raft
            append_bytes = max(raft.conditions.append_bytes, APPEND_BYTES_MIN)
            with (
                virtual_library(raft.clock, raft.random, APPEND_BYTES_MAX=append_bytes),
                mock.patch.object(proposals, "BATCH_BYTES_MAX", append_bytes // 4),
                mock.patch.object(proposals, "IN_FLIGHT_MAX", raft.conditions.in_flight),
                mock.patch.object(proposals, "BATCH_MAX", 256 if raft.conditions.in_flight <= 2 else 1),
                raft.disks.installed(),
            ):
                judge(world)
            return world
    finally:
        logging.disable(level)
        loop.close()
