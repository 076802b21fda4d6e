"""Many seeds, one after the other: what `./run sim` and `python -m tests.sim.raft` call."""

from collections.abc import Iterable

from tests.sim.raft.checkers import Violation
from tests.sim.raft.cluster import run_seed
from tests.sim.raft.scripts import members_change


def run(seeds: Iterable[int], *, verbose: bool = False) -> list[str]:
    """The failures, one text for each seed that broke a promise. In every fourth run members come and go."""
    failures = []
    for seed in seeds:
        try:
            world = run_seed(seed, members_change if seed % 4 == 0 else None)
        except Violation as violation:
            failures.append(str(violation))
            if verbose:
                print(f"FAILED {violation}", flush=True)
        else:
            if verbose:
                checker = world.checker
                print(
                    f"seed {seed}: {len(checker.acknowledged)} acknowledged, {checker.outcomes}, "
                    f"{checker.fresh_reads} fresh reads, {len(checker.owners)} epochs, "
                    f"{world.network.frames} frames",
                    flush=True,
                )
    return failures
