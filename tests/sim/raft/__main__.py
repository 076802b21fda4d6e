"""python -m tests.sim.raft SEED... | FIRST-LAST: a line for each seed; ends with 1 when one has failed."""

import sys

from tests.sim.raft import run


def seeds(words: list[str]) -> list[int]:
    found: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


if __name__ == "__main__":
    sys.exit(1 if run(seeds(sys.argv[1:]), verbose=True) else 0)
