"""When each step of a fail-over was done, in ms since the SIGKILL of the master: from the programs' logs.

The programs run on one machine and log with ms, so their times are comparable. A step whose log line is
missing has no time.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from statistics import median

CLOSED, PROVED, ELECTED, SERVING, ROUTED, ACKNOWLEDGED = STEPS = (
    "closed", "proved", "elected", "serving", "routed", "acknowledged",
)  # fmt: skip
"""closed: the active controller sees the master's connection close. proved: its address refuses connections.
elected: the event is on the disks of a majority, and 1008 leaves. serving: the elected broker accepts
messages. routed: the first name server knows it. acknowledged: the producer has an answer to a later send."""

Timeline = dict[str, float]
"""Step -> ms since the kill, in the order of STEPS."""

_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.,](\d{3}) ")
_OF_CONTROLLER = {
    CLOSED: re.compile(r": the heartbeat connection of broker \d+ closed"),
    PROVED: re.compile(r": broker \d+ is dead: "),
    ELECTED: re.compile(r": master is \d+, masterEpoch \d+"),
}
_SERVING = re.compile(r"role change: master at masterEpoch \d+")
_ROUTED = re.compile(r" registered \S+ master at ")


def timeline_of(logs: Mapping[str, str], *, killed_ts: float, acknowledged_ts: float) -> Timeline:
    """Returns the timeline of one kill. `logs`: name of a program -> its log. Times in ms since 1970."""
    lines = {
        name: [(ts, line) for ts, line in _lines(log) if killed_ts - 1 <= ts <= acknowledged_ts + 1]
        for name, log in logs.items()
    }
    found: dict[str, float | None] = {
        SERVING: _first(_SERVING, *lines.values()),
        ROUTED: _first(_ROUTED, *lines.values()),
        ACKNOWLEDGED: acknowledged_ts,
    }
    for of_one in lines.values():  # the other controllers see the close as well
        if _first(_OF_CONTROLLER[ELECTED], of_one) is not None:
            found |= {step: _first(pattern, of_one) for step, pattern in _OF_CONTROLLER.items()}
    return {step: max(0.0, ts - killed_ts) for step in STEPS if (ts := found.get(step)) is not None}


def medians(timelines: Iterable[Timeline]) -> Timeline:
    """Returns the median of each step that has a time in at least one of them."""
    found: dict[str, list[float]] = {}
    for timeline in timelines:
        for step, ms in timeline.items():
            found.setdefault(step, []).append(ms)
    return {step: median(found[step]) for step in STEPS if step in found}


def timeline_text(timeline: Timeline) -> str:
    """Returns the timeline as "closed=1 proved=2 ...", in ms."""
    return " ".join(f"{step}={ms:g}" for step, ms in timeline.items())


def _first(pattern: re.Pattern[str], *logs: list[tuple[float, str]]) -> float | None:
    return min((ts for log in logs for ts, line in log if pattern.search(line)), default=None)


def _lines(log: str) -> Iterable[tuple[float, str]]:
    for line in log.splitlines():
        match = _TIME.match(line)
        if match is not None:
            yield datetime.fromisoformat(match[1]).timestamp() * 1_000 + int(match[2]), line
