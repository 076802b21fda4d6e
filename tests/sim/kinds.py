"""The kinds of simulated worlds, run the same way: one seed in, a summary or a Violation out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOUND = Path(__file__).with_name("seeds.txt")


@dataclass(frozen=True)
class Run:
    """What a seed that kept every promise came to. `story`: what happened, a line each."""

    faults: int
    acknowledged: int
    story: list[str]


@dataclass(frozen=True)
class Kind:
    about: str
    share: float  # of the seeds of a run of all kinds
    run: Callable[[int], Run]


def _controllers(seed: int) -> Run:
    from tests.sim.control.world import run_seed

    world = run_seed(seed)
    return Run(world.faults.total(), world.truth.acknowledged, world.notes)


def _raft(seed: int) -> Run:
    from tests.sim.control.raft_world import run_seed

    world = run_seed(seed)
    return Run(world.faults.total(), world.truth.acknowledged, world.notes)


def _log(seed: int) -> Run:
    from tests.sim.raft.cluster import run_seed

    world = run_seed(seed)
    return Run(len(world.notes), len(world.checker.acknowledged), world.notes)


def _group(seed: int) -> Run:
    from tests.sim.group import Group

    group = Group(seed)
    try:
        group.run()
    except AssertionError as error:
        raise type(error)(f"seed {seed}: {error}\n" + "\n".join(group.world.history[-60:])) from None
    history = group.world.history
    return Run(sum("kill" in line or "cut" in line for line in history), len(group.checker.acked), history)


def _whole(seed: int) -> Run:
    from tests.sim.whole.nemesis import run_seed

    world = run_seed(seed)
    return Run(world.faults.total(), len(world.judge.acked), world.notes)


def _secure(seed: int) -> Run:
    from tests.sim.secure.world import run_seed

    world = run_seed(seed)
    hostile = world.attacker.counts.total() + world.on_path.counts.total()
    return Run(world.faults.total() + hostile, len(world.judge.acked) + world.users.acknowledged, world.notes)


def _container(seed: int) -> Run:
    from tests.sim.container.world import run_seed

    world = run_seed(seed)
    return Run(world.faults.total(), len(world.judge.acked), world.notes)


def _lease(seed: int) -> Run:
    from tests.sim.lease_group import LeaseGroup

    group = LeaseGroup(seed)
    group.run()
    return Run(1, len(group.checker.acked), group.world.history)


KINDS = {
    "controllers": Kind("whole controllers over a model of the log", 0.85, _controllers),
    "raft": Kind("whole controllers over the real pysyncobj", 0.15, _raft),
    "log": Kind("pysyncobj with our guard, journal and disks, alone", 0.1, _log),
    "whole": Kind("mqbroker and mqnamesrv as they ship, with producers and consumers", 0.1, _whole),
    "secure": Kind("the same with users, ACLs and members' proofs, and an attacker", 0.05, _secure),
    "container": Kind("the worlds of whole, each broker in a container beside another one", 0.05, _container),
    "lease": Kind(
        "the lease of a master that is cut off: clocks, phases and settings at random", 0.1, _lease
    ),
    "group": Kind("controllers, replicas and producers: is an acknowledged message lost?", 0.1, _group),
}


def found_seeds(kind: str) -> list[int]:
    """The seeds of that kind that failed once."""
    lines = (line.partition("#")[0].split() for line in FOUND.read_text().splitlines())
    return [int(words[1]) for words in lines if words and words[0] == kind]
