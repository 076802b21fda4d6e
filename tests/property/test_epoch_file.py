"""Any sequence of saves, finishes, failures, kills and power cuts: the last save that returned is loaded.

A save that did not return may or may not have happened. What a process loaded and prepared is durable.
"""

import errno
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.ha.core.epochs import Epochs
from broker.ha.epoch_file import EpochFile
from tests.support.slices import share
from tests.support.store_disk import StoreDisk, Torn

NAME = "epochFileCheckpoint"
VERSIONS = [Epochs(), *(Epochs.of([(1, 0), (2, start)]) for start in range(3))]
"""Few, so that a version often comes back."""


@dataclass(frozen=True)
class Step:
    """fault: what happens at operation number `at`, if the step has so many."""

    action: str
    version: int
    fault: str | None
    at: int


class Fault:
    def __init__(self, kind: str | None, at: int) -> None:
        self.kind, self.at, self.happened = kind, at, False

    def __call__(self, operation: str, path: Path) -> None:
        self.at -= 1
        if self.kind is None or self.at >= 0 or self.happened:
            return
        self.happened = True
        if self.kind == "error":
            raise OSError(errno.EIO, "Input/output error", str(path))
        raise Torn(operation)


class World:
    def __init__(self, base: Path) -> None:
        self.base, self.runs = base, 0
        self.root = base / "0"
        self.root.mkdir()
        self.disk = StoreDisk(self.root)
        self.allowed = [Epochs()]
        self.file = self.started()

    def started(self) -> EpochFile:
        """As LogEpochs.load() does it."""
        file = EpochFile(self.root / NAME)
        found = file.load()
        assert found in self.allowed
        with self.disk.watched(Fault(None, 0)):
            file.prepare()
        self.allowed = [found]
        return file

    def run(self, step: Step) -> None:
        fault = Fault(step.fault, step.at)
        try:
            with self.disk.watched(fault):
                self.perform(step)
        except OSError:
            pass
        except Torn:
            self.crash(step)

    def perform(self, step: Step) -> None:
        epochs = VERSIONS[step.version]
        match step.action:
            case "finish":
                self.file.finish()
            case "start":  # and killed at once, if there is a fault
                self.file = EpochFile(self.root / NAME)
                found = self.file.load()
                assert found in self.allowed
                self.file.prepare()
                self.allowed = [found]
                self.file.finish()
            case save:
                self.allowed = [*self.allowed, epochs]
                (self.file.save if save == "save" else self.file.save_ahead)(epochs)
                self.allowed = [epochs]

    def crash(self, step: Step) -> None:
        if step.fault == "power":
            self.runs += 1
            self.root = self.base / str(self.runs)
            self.disk.survivors_of_a_power_cut(self.root, Random(step.at + step.version))
            self.disk = StoreDisk(self.root)
        self.file = self.started()


STEPS = st.builds(
    Step,
    st.sampled_from(["ahead", "ahead", "finish", "save", "start"]),
    st.integers(0, len(VERSIONS) - 1),
    st.sampled_from([None, "error", "kill", "power"]),
    st.integers(0, 12),
)


@settings(max_examples=share(400), deadline=None)
@given(st.lists(STEPS, max_size=12), st.integers(0, 1_000))
def test_the_last_save_that_returned_is_loaded(steps: list[Step], seed: int) -> None:
    with TemporaryDirectory() as directory:
        world = World(Path(directory).resolve())
        for step in steps:
            world.run(step)
            assert EpochFile(world.root / NAME).load() in world.allowed
        left = world.disk.survivors_of_a_power_cut(world.base / "left", Random(seed))
        assert EpochFile(left / NAME).load() in world.allowed
