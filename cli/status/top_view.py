"""The view of `keelmq top`: a state that keys and answers change, and the frame that is drawn of it."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.status.view import STYLES, UNKNOWN, WORDS, size
from keelmq.health.status import ClusterStatus, GroupStatus, ReplicaStatus
from keelmq.runtime.tasks import wait_for_event

EVENTS_MAX = 50
EVENTS_SHOWN = 6
OTHER_LINES = 7
"""Of a frame: the verdict, empty lines, titles and the help."""
Row = tuple[GroupStatus, ReplicaStatus | None]
Column = tuple[str, Callable[[Row], float | str | None], Callable[[Row], str]]


def _sum(group: GroupStatus, name: str) -> float | None:
    values = [value for each in group.replicas if (value := getattr(each, name)) is not None]
    return sum(values) if values else None


def _most(group: GroupStatus, name: str) -> float | None:
    values = [value for each in group.replicas if (value := getattr(each, name)) is not None]
    return max(values) if values else None


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return UNKNOWN if value is None else size(int(value))


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1000:.1f}"


def _share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def _of_group(
    title: str, value: Callable[[GroupStatus], float | None], text: Callable[[float | None], str]
) -> Column:
    return title, lambda row: value(row[0]), lambda row: text(value(row[0]))


def _of_broker(title: str, name: str, text: Callable[[float | None], str]) -> Column:
    return title, lambda row: getattr(row[1], name), lambda row: text(getattr(row[1], name))


NAME: Column = ("GROUP", lambda row: row[0].broker_name, lambda row: row[0].broker_name)
GROUP_COLUMNS: Sequence[Column] = (
    NAME,
    ("STATE", lambda row: row[0].verdict.value, lambda row: WORDS[row[0].verdict]),
    ("MASTER", lambda row: row[0].master_id, lambda row: _number(row[0].master_id)),
    (
        "IN SYNC",
        lambda row: len(row[0].sync_state_set),
        lambda row: f"{len(row[0].sync_state_set)}/{len(row[0].replicas)}",
    ),
    _of_group("IN/S", lambda group: _sum(group, "messages_in_per_s"), _number),
    _of_group("OUT/S", lambda group: _sum(group, "messages_out_per_s"), _number),
    _of_group("LAG", lambda group: _most(group, "lag_bytes"), _bytes),
    _of_group("LAG S", lambda group: _most(group, "lag_ms"), _seconds),
    _of_group("DISK", lambda group: _most(group, "disk_used"), _share),
)
BROKER_COLUMNS: Sequence[Column] = (
    NAME,
    _of_broker("ID", "broker_id", _number),
    ("ADDRESS", lambda row: row[1].address if row[1] else "", lambda row: row[1].address if row[1] else ""),
    ("ROLE", lambda row: row[1].role if row[1] else "", lambda row: row[1].role if row[1] else ""),
    ("IN SYNC", lambda row: bool(row[1] and row[1].is_in_sync), lambda row: _yes(row[1])),
    _of_broker("IN/S", "messages_in_per_s", _number),
    _of_broker("OUT/S", "messages_out_per_s", _number),
    _of_broker("LAG", "lag_bytes", _bytes),
    _of_broker("LAG S", "lag_ms", _seconds),
    _of_broker("DISK", "disk_used", _share),
)


def _yes(replica: ReplicaStatus | None) -> str:
    return "yes" if replica is not None and replica.is_in_sync else "no"


class Screen:
    """The last answer, the changes before it, and the choices made by keys."""

    def __init__(self, wall_text: Callable[[], str] = lambda: time.strftime("%H:%M:%S")) -> None:
        self.found: ClusterStatus | None = None
        self.events: deque[str] = deque(maxlen=EVENTS_MAX)
        self.is_over, self.shows_brokers, self.is_descending, self.sort_by = False, False, False, 0
        self._wall_text, self._pressed = wall_text, asyncio.Event()

    @property
    def columns(self) -> Sequence[Column]:
        """The columns that are shown."""
        return BROKER_COLUMNS if self.shows_brokers else GROUP_COLUMNS

    def take(self, found: ClusterStatus) -> None:
        """Stores an answer, and notes its differences from the last one."""
        if self.found is not None:
            self.events.extend(f"{self._wall_text()} {each}" for each in changes(self.found, found))
        self.found = found

    def press(self, key: str) -> None:
        """Handles a key."""
        if key in ("q", "\x03", "\x04"):
            self.is_over = True
        elif key == "s":
            self.sort_by = (self.sort_by + 1) % len(self.columns)
            self.is_descending = self.sort_by > 0
        elif key == "r":
            self.is_descending = not self.is_descending
        elif key in ("g", "b"):
            self.shows_brokers, self.sort_by, self.is_descending = key == "b", 0, False
        self._pressed.set()

    async def pressed_within(self, seconds: float) -> bool:
        """Waits for a key; returns whether one came in this time."""
        return await wait_for_event(self._pressed, int(seconds * 1_000))

    def rows(self) -> list[Row]:
        """Returns the shown rows, sorted; unknown values come last."""
        groups = self.found.groups if self.found is not None else []
        rows: list[Row] = [(group, None) for group in groups]
        if self.shows_brokers:
            rows = [(group, replica) for group in groups for replica in group.replicas]
        value = self.columns[self.sort_by][1]
        known = [row for row in rows if value(row) is not None]
        known.sort(key=lambda row: value(row), reverse=self.is_descending)  # type: ignore[arg-type, return-value]
        return known + [row for row in rows if value(row) is None]


def changes(before: ClusterStatus, now: ClusterStatus) -> list[str]:
    """Returns a line for each master that changed, and each problem that is new or gone."""
    found = []
    masters = {each.broker_name: each for each in before.groups}
    for group in now.groups:
        last = masters.get(group.broker_name)
        if last is not None and last.master_id != group.master_id:
            who = "no master" if group.master_id is None else f"broker {group.master_id} is master"
            reason = group.last_election.reason if group.last_election else ""
            found.append(f"{group.broker_name}: {who}" + (f": {reason}" if reason else ""))
    old = {(each.check, each.subject): each for each in before.problems}
    new = {(each.check, each.subject): each for each in now.problems}
    found += [f"{new[key].subject}: {new[key].text}" for key in new.keys() - old.keys()]
    found += [f"{old[key].subject}: {key[0]} is OK again" for key in old.keys() - new.keys()]
    return found


def frame(state: Screen, width: int, height: int) -> RenderableType:
    """Returns the whole screen, cut to the terminal's size."""
    found = state.found
    assert found is not None
    first = Text(WORDS[found.verdict], STYLES[found.verdict], no_wrap=True, overflow="ellipsis")
    worst = found.problems[0] if found.problems else None
    first.append(f"  {worst.subject}: {worst.text}" if worst else "  nothing is wrong", "none")
    next_line = Text(
        f"$ {worst.command}" if worst and worst.command else "", no_wrap=True, overflow="ellipsis"
    )
    events = list(state.events)[-EVENTS_SHOWN:]
    rows, room = state.rows(), max(height - OTHER_LINES - EVENTS_SHOWN, 1)
    table = Table(box=None, padding=(0, 1), expand=False, header_style="bold")
    for number, (title, _, _) in enumerate(state.columns):
        mark = ("v" if state.is_descending else "^") if number == state.sort_by else ""
        table.add_column(title + mark, justify="left" if number == 0 else "right", no_wrap=True)
    for row in rows[:room]:
        style = STYLES[row[0].verdict] if row[0].problems else ""
        table.add_row(*(text(row) for _, _, text in state.columns), style=style)
    more = Text(f"and {len(rows) - room} more" if len(rows) > room else "")
    noun = "groups" if state.shows_brokers else "brokers"
    keys = f"q quit  s sort  r reverse  {noun[0]} {noun}   asked in {found.took_ms} ms"
    lines = [Text(each, no_wrap=True, overflow="ellipsis") for each in events]
    return Group(first, next_line, Text(), table, more, *lines, Text(keys[:width], "dim"))
