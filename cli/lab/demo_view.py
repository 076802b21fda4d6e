"""The output of the demo: a live screen (rich) or plain log lines, from the same pictures and events."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cli.lab.ack_log import AckLog
from cli.lab.observer import Picture

EVENTS_SHOWN = 14
REFRESH_PER_SECOND = 5
ROLE_STYLES = {"master": "bold green", "slave": "cyan", "down": "bold red"}


class Counts(Protocol):
    """The counts of an AckLog that the screen shows."""

    @property
    def sent(self) -> int:
        """Messages started."""

    @property
    def acked(self) -> int:
        """Messages acknowledged."""

    @property
    def retried(self) -> int:
        """Acknowledged messages that needed more than one attempt."""

    @property
    def gaps_ms(self) -> list[int]:
        """The gap of each fail-over so far."""

    @property
    def is_waiting(self) -> bool:
        """Whether a gap is not over yet."""


class View(Protocol):
    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def event(self, text: str) -> None:
        """Shows a line about something that has just happened."""

    def show(self, picture: Picture, ack_log: Counts) -> None:
        """Shows the cluster's state and the counts; called several times a second."""


class PlainView:
    """One line per event, and one line whenever the picture changes in more than offsets."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def event(self, text: str) -> None:
        """Prints the line after the seconds since the start."""
        print(f"[{time.monotonic() - self._started:6.2f} s] {text}", flush=True)

    def show(self, picture: Picture, ack_log: Counts) -> None:
        """Prints a line if masters, roles or the SyncStateSet differ from the last picture."""
        roles = ", ".join(f"{replica.name} {replica.role}" for replica in picture.replicas)
        line = f"{_headline(picture)}; {roles}"
        if line != self._last:
            self._last = line
            self.event(f"  cluster: {line}; acked {ack_log.acked}")


class LiveView:
    """Redrawn in place; the last events stay on the terminal."""

    def __init__(self, console: Console) -> None:
        self._started = time.monotonic()
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._picture = Picture()
        self._rates: deque[tuple[float, int]] = deque(maxlen=2 * REFRESH_PER_SECOND)
        self._ack_log: Counts = AckLog()
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def event(self, text: str) -> None:
        """Adds the line to the newest EVENTS_SHOWN and redraws."""
        self._events.append(f"{time.monotonic() - self._started:6.2f} s  {text}")
        self._draw()

    def show(self, picture: Picture, ack_log: Counts) -> None:
        """Redraws with this picture and these counts."""
        self._picture, self._ack_log = picture, ack_log
        self._rates.append((time.monotonic(), ack_log.acked))
        self._draw()

    def _draw(self) -> None:
        self._live.update(Group(self._replicas(), self._traffic(), self._history()), refresh=True)

    def _replicas(self) -> Panel:
        table = Table(expand=True, box=None)
        for title in ("replica", "id", "role", "in SyncStateSet", "max offset", "confirmOffset", "address"):
            table.add_column(title)
        for replica in self._picture.replicas:
            table.add_row(
                replica.name,
                _or_dash(replica.broker_id),
                Text(replica.role, style=ROLE_STYLES[replica.role]),
                "yes" if replica.in_sync else "no",
                _or_dash(replica.max_offset),
                _or_dash(replica.confirm_offset),
                replica.address,
            )
        return Panel(table, title=_headline(self._picture), title_align="left")

    def _traffic(self) -> Text:
        ack_log = self._ack_log
        gaps = ", ".join(f"{gap_ms} ms" for gap_ms in ack_log.gaps_ms[-8:]) or "none yet"
        waiting = "  [no master: sends wait]" if ack_log.is_waiting else ""
        return Text(
            f" sent {ack_log.sent:,}   acknowledged {ack_log.acked:,}   {self._rate():,.0f} msg/s   "
            f"retried {ack_log.retried:,}   gaps: {gaps}{waiting}"
        )

    def _rate(self) -> float:
        if len(self._rates) < 2:
            return 0.0
        (begin_s, begin_acked), (end_s, end_acked) = self._rates[0], self._rates[-1]
        return (end_acked - begin_acked) / max(end_s - begin_s, 0.001)

    def _history(self) -> Panel:
        return Panel(Text("\n".join(self._events)), title="events", title_align="left")


def make_view(*, plain: bool) -> View:
    """Live only on a terminal: a pipe or a log file gets lines."""
    if plain or not sys.stdout.isatty():
        return PlainView()
    return LiveView(Console())


def _headline(picture: Picture) -> str:
    members = ",".join(map(str, picture.sync_state_set)) or "-"
    return (
        f"master {picture.master or 'none'} (masterEpoch {picture.master_epoch}), SyncStateSet {{{members}}} "
        f"(epoch {picture.sync_state_set_epoch}), controller leader {picture.controller_leader or 'none'}"
    )


def _or_dash(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
