"""Incidents: spans of windows in which a rule holds, named after what an operator would call them.

Pure: rows of roll-ups that break a rule come in, incidents go out. What is not known is never an incident,
except that it is not known ("gap").
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from keelmq.web.page_files import Incident

LAG_MS = 2_000
"""A p99 lag of a window from here on is a lag incident."""
SKEW_MS = 1_000
FLAPS = 3
MERGE_MS = 120_000
"""Windows that are nearer to each other are one incident."""
LASTING_MS = 120_000
"""How long samples must be missing before it counts."""

WEIGHT = {
    "unclean": 900, "below-min": 700, "lag": 600, "stale-master": 500, "flap": 400, "dead-replica": 350,
    "gap": 300, "failover": 200, "skew": 100,
}  # fmt: skip
"""Kinds, the most serious first."""
MINUTES_MAX = 90
"""More minutes do not make an incident more serious than the next kind."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`merge_ms`: spans nearer to each other are one. `least_ms`, `least_sum`: less is no incident."""

    merge_ms: int = MERGE_MS
    least_ms: int = 0
    least_sum: int = 0


RULES: Mapping[str, Rule] = {
    "lag": Rule(),
    "below-min": Rule(),
    "stale-master": Rule(),
    "unclean": Rule(),
    "failover": Rule(merge_ms=0),
    "flap": Rule(merge_ms=600_000, least_sum=FLAPS),
    "dead-replica": Rule(least_ms=LASTING_MS),
    "gap": Rule(merge_ms=0, least_ms=LASTING_MS),
    "skew": Rule(),
}

SUMMED = ("below-min", "flap", "gap", "stale-master", "unclean")
"""Kinds whose `worst` is the sum of all windows; else it is that of the worst window."""

Mark = tuple[str, str, int | None, int, int, int]
"""A row that breaks a rule: cluster, broker name, replica, from, to, and by how much."""


def find_incidents(kind: str, marks: Iterable[Mark]) -> list[Incident]:
    """Returns the incidents of one kind, by group and time. Marks may come in any order."""
    rule = RULES[kind]
    ordered = sorted(marks, key=lambda each: (each[0], each[1], -1 if each[2] is None else each[2], each[3]))
    found: list[Incident] = []
    span: list[Mark] = []
    for mark in [*ordered, None]:
        end = max((each[4] for each in span), default=0)
        if span and (mark is None or mark[:3] != span[0][:3] or mark[3] - end > rule.merge_ms):
            total = sum(each[5] for each in span)
            if end - span[0][3] >= rule.least_ms and total >= rule.least_sum:
                worst = max(each[5] for each in span)
                found.append(_incident(kind, span[0], end, total if kind in SUMMED else worst))
            span = []
        if mark is not None:
            span.append(mark)
    return found


def without_consequences(incidents: Sequence[Incident]) -> list[Incident]:
    """Returns the incidents without those that another one of the same group explains: an unclean election is
    a fail-over too."""
    unclean = {(each.cluster_name, each.broker_name, each.from_ts // 60_000) for each in incidents
               if each.kind == "unclean"}  # fmt: skip
    return [
        each
        for each in incidents
        if each.kind != "failover"
        or not {(each.cluster_name, each.broker_name, each.from_ts // 60_000 + i) for i in (-1, 0, 1)}
        & unclean
    ]


def severity(incident: Incident) -> int:
    """Returns how serious an incident is, to order them and their groups."""
    minutes = (incident.to_ts - incident.from_ts) // 60_000
    return WEIGHT[incident.kind] + min(MINUTES_MAX, minutes)


def _incident(kind: str, first: Mark, to_ts: int, worst: int) -> Incident:
    cluster, broker, replica, from_ts, _, _ = first
    return Incident(
        kind=kind, cluster_name=cluster, broker_name=broker, replica=replica, from_ts=from_ts, to_ts=to_ts,
        worst=worst,
    )  # fmt: skip
