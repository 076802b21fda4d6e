"""The real pysyncobj, with all that we built around it, in a virtual world. `run(seeds)` is the door."""

from tests.sim.raft.cluster import run_seed
from tests.sim.raft.runs import run

__all__ = ["run", "run_seed"]
