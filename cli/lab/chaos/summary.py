"""The result of a run as text: a table of recovery times, the findings, the verdict line."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from cli.lab.chaos.checkers import Recovery, World, duplicated, recoveries, shown

TWO = "two at once"

Findings = Mapping[str, Sequence[str] | None]


def table(found: Sequence[Recovery]) -> Iterator[str]:
    """Yields a line per kind of fault: count, time to the first accepted send, longest time without one."""
    groups: dict[str, list[Recovery]] = {}
    for recovery in found:
        groups.setdefault(recovery.kinds[0] if len(recovery.kinds) == 1 else TWO, []).append(recovery)
    yield f"{'':<24} {'':>5}   first accepted send   longest time without"
    yield f"{'fault':<24} {'count':>5} {'p50 ms':>10} {'max ms':>10} {'p50 ms':>10} {'max ms':>10}"
    for kind, members in sorted(groups.items(), key=lambda each: (each[0] == TWO, each[0])):
        times = [member.ms for member in members if member.ms is not None]
        gaps = [member.gap_ms for member in members]
        never = len(members) - len(times)
        p50, most = (f"{median(times):.0f}", str(max(times))) if times else ("-", "-")
        remark = f"  {never} x never" if never else ""
        first = f"{kind:<24} {len(members):>5} {p50:>10} {most:>10}"
        yield f"{first} {median(gaps):>10.0f} {max(gaps):>10}{remark}"


def findings_text(findings: Findings) -> Iterator[str]:
    """Yields a line for each finding that is shown, with the checker's name before it."""
    for name, found in findings.items():
        for line in shown(found or ()):
            yield f"{name}: {line}"


def verdict(seed: int, world: World, findings: Findings) -> str:
    """Returns the CHAOS line: the seed, counts, and the number of findings of each checker."""
    found = recoveries(world)
    times = [recovery.ms for recovery in found if recovery.ms is not None]
    counts: dict[str, int | str] = {
        "seed": seed,
        "faults": len(found),
        "sent": len(world.invoked),
        "acked": sum(1 for _ in world.acked),
        "read": sum(len(read.messages) for read in world.reads),
        "duplicated": duplicated(world),
        **{name: "unknown" if each is None else len(each) for name, each in findings.items()},
        "batched": world.bursts.acked_messages,
        "damages": len(world.damages),
        "recovery_ms_p50": round(median(times)) if times else 0,
        "recovery_ms_max": max(times, default=0),
    }
    return "CHAOS " + " ".join(f"{name}={value}" for name, value in counts.items())


def is_clean(world: World, findings: Findings) -> bool:
    """Returns whether messages were read back and no checker found anything."""
    return bool(world.final) and not any(findings.values())
