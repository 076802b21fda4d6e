"""The plan of the nemesis: a list of steps made from a seed. Pure: the same seed gives the same steps.

A step names roles ("the master"), not programs: the program with the role is looked up when the step strikes,
and `dice` decides where there is a choice. Kinds are the possible faults of a cluster; families are the
values of `--only`.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "kill": ("kill-master", "kill-slave", "kill-leader", "kill-brokers", "kill-controllers", "kill-all"),
    "stop": ("pause-master", "pause-slave", "pause-leader"),
    "restart": ("restart-master", "restart-slave", "restart-leader"),
    "partition": (
        "cut-master",
        "cut-slave",
        "cut-leader",
        "mute-master",
        "deaf-master",
        "deaf-slave",
        "part-master-controllers",
        "part-master-slaves",
        "part-slave-controllers",
        "part-leader-controllers",
    ),
    "address": ("move-master", "move-slave", "move-controller"),
    "disk": ("fill-master", "fill-slave"),
    "slow": ("slow-master", "slow-slave"),
    "clock": ("clock-master", "clock-slave", "clock-leader"),
    "power": ("power-brokers",),
    "proxy": ("kill-proxy", "kill-proxies", "pause-proxy", "restart-proxy"),
    "flip": ("flip-master", "flip-slave", "flip-stopped"),
    "zero": ("zero-master", "zero-slave", "zero-stopped"),
    "truncate": ("truncate-stopped",),
    "lose": ("lose-stopped",),
}
DAMAGE_FAMILIES = frozenset({"flip", "zero", "truncate", "lose"})
"""Kinds that damage files of one replica; `-stopped`: of a slave that is down meanwhile."""
PROXY_FAMILY = "proxy"
"""Kinds that need proxies, which a run with `--grpc` has."""
DEFAULT_FAMILIES = tuple(
    family for family in FAMILIES if family not in DAMAGE_FAMILIES and family != PROXY_FAMILY
)
"""The faults that a run without `--only` injects, with those of PROXY_FAMILY if there are proxies."""
NETWORK_FAMILIES = frozenset({"partition", "address", "disk"})
"""Kinds that need network namespaces, see net.py."""

SINGLE = frozenset({"kill-brokers", "kill-controllers", "kill-all", "power-brokers"}).union(
    *(FAMILIES[family] for family in DAMAGE_FAMILIES)
)
"""Kinds that are never combined with another fault."""
TWO_AT_ONCE = 0.2
IMPATIENT = 0.25
"""Share of steps that strike as soon as a message is accepted, while the cluster is still recovering."""
HOLD_MS = ((0, 300), (300, 2_500), (2_500, 7_000))
"""Shorter than any detection; around the heartbeats; longer than the time-outs."""
HOLD_FULL_MS = (3_000, 12_000)
"""A full disk is noticed when the log needs its next file."""
QUIET_MS = (200, 2_000)


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    kinds: tuple[str, ...]
    quiet_ms: int
    hold_ms: int
    impatient: bool
    dice: int


def kinds_of(families: Collection[str]) -> list[str]:
    """Returns the kinds of these families. ValueError: a family does not exist."""
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise ValueError(f"no fault is called {', '.join(unknown)}; there are {', '.join(FAMILIES)}")
    return [kind for family, kinds in FAMILIES.items() if family in families for kind in kinds]


def make_plan(seed: int, kinds: Sequence[str], count: int) -> list[Step]:
    """Returns the steps. A shorter plan of the same seed and kinds is the start of a longer one. Every kind
    comes once before one is repeated."""
    dice = random.Random(seed)
    steps: list[Step] = []
    bag: list[str] = []
    while len(steps) < count:
        if not bag:
            bag = list(kinds)
            dice.shuffle(bag)
        chosen: tuple[str, ...] = (bag.pop(),)
        partners = [kind for kind in kinds if kind not in SINGLE and kind != chosen[0]]
        if partners and chosen[0] not in SINGLE and dice.random() < TWO_AT_ONCE:
            chosen = (chosen[0], dice.choice(partners))
        hold = HOLD_FULL_MS if any(kind.startswith("fill") for kind in chosen) else dice.choice(HOLD_MS)
        steps.append(
            Step(
                number=len(steps) + 1,
                kinds=chosen,
                quiet_ms=dice.randint(*QUIET_MS),
                hold_ms=dice.randint(*hold),
                impatient=dice.random() < IMPATIENT,
                dice=dice.getrandbits(32),
            )
        )
    return steps
