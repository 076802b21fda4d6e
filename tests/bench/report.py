"""What a suite returns, and how it is printed: a table for people, one JSON line for programs."""

import json
import os
import platform
import statistics
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from keelmq.runtime import compiled


@dataclass(frozen=True)
class Measurement:
    """`ratio` is value / yardstick where both have one unit, and what the goal is about."""

    value: float
    unit: str
    yardstick: float
    ratio: float


Results = dict[str, Measurement]
ROUNDS = 3


def alternate(*subjects: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """The median of each subject; they take turns, so that a slow minute of the machine meets all of them."""
    samples: list[list[float]] = [[] for _ in subjects]
    for _ in range(rounds):
        for sample, subject in zip(samples, subjects, strict=True):
            sample.append(subject())
    return [statistics.median(each) for each in samples]


def median(values: Iterable[float]) -> float:
    return statistics.median(values)


def print_table(results: Results) -> None:
    width = max(len(name) for name in results)
    print(machine())
    print(f"{'':{width}}  {'value':>12} {'unit':<12} {'yardstick':>12} {'ratio':>8}")
    for name, each in results.items():
        value = f"{each.value:>12,.3f} {each.unit:<12}"
        print(f"{name:{width}}  {value} {each.yardstick:>12,.3f} {each.ratio:>8.3f}")


def print_json(results: Results) -> None:
    print(json.dumps({name: _rounded(asdict(each)) for name, each in results.items()}, sort_keys=True))


def machine() -> str:
    optimised = "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS"))
    build = "with" if optimised else "without"  # Debian's has none, and optimises all the same
    load = os.getloadavg()[0]
    python = f"Python {platform.python_version()} (configured {build} --enable-optimizations)"
    leaves = f", {compiled.report()}" if compiled.leaves else ""  # compare.py imports none
    return f"{os.cpu_count()} cores, {python}, load {load:.2f}{leaves}"


def _rounded(values: dict[str, object]) -> dict[str, object]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}
