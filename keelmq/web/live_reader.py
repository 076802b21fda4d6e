"""Reads what the stream wrote of the last minutes. Safe to call from several threads; keeps nothing large."""

from pathlib import Path

import msgspec

from keelmq.web.live_files import (
    FLEET,
    LIVE,
    LIVE_VERSION,
    MINUTE_MS,
    Live,
    LiveGroup,
    Values,
    find_group,
    minute_file,
)
from keelmq.web.page_files import Column, ReplicaSeries, Series, packed
from keelmq.web.reading import PageFileError, decoded, read_bytes, read_unpacked

MINUTES_MAX = 24 * 60


class LiveFiles:
    """The files below one output directory of analytics."""

    def __init__(self, output_dir: Path) -> None:
        self._output_dir = output_dir
        self._merged: tuple[tuple[int, int], bytes] | None = None

    def head(self) -> Live | None:
        """Returns how far the minutes are; None: no stream has written any. Raises PageFileError."""
        path = self._output_dir / LIVE
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise PageFileError(f"cannot read {path}: {error.strerror}") from None
        live = decoded(path, data, Live)
        if live.v != LIVE_VERSION or live.count > MINUTES_MAX:
            raise PageFileError(f"{path} is of another release: restart the stream with this one")
        return live

    def series(self, live: Live, cluster: str, broker: str, from_ts: int = 0) -> Series | None:
        """Returns the minutes of a group from `from_ts` on; None: there are none. Raises PageFileError."""
        found: dict[int, LiveGroup] = {}
        end = live.start_ts + live.count * MINUTE_MS
        start = max(live.start_ts, from_ts - from_ts % MINUTE_MS)
        for minute in range(start, end, MINUTE_MS):
            path = self._output_dir / minute_file(minute)
            try:
                group = find_group(path.read_bytes(), cluster, broker)
            except FileNotFoundError:
                continue  # a minute without a record, or just deleted
            except OSError as error:
                raise PageFileError(f"cannot read {path}: {error.strerror}") from None
            except msgspec.MsgspecError as error:
                raise PageFileError(f"{path} is damaged: {error}; restart the stream") from None
            if group is not None:
                found[minute] = group
        return _series(found, start, (end - start) // MINUTE_MS) if found else None

    def merged(self, index: bytes, generation: int) -> tuple[int, bytes]:
        """Returns the packed index of the fleet with the last hour in it, and when that was computed; 0: no
        stream has written one. Raises PageFileError."""
        path = self._output_dir / FLEET
        try:
            modified_ns = path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0, index
        known = self._merged
        if known is None or known[0] != (generation, modified_ns):
            text, live = read_unpacked(path, index), read_unpacked(path, read_bytes(path))
            whole = b'%b,"live":%b}' % (text.rstrip()[:-1], live)
            known = self._merged = (generation, modified_ns), packed(whole, level=3)
        return modified_ns, known[1]


def _series(found: dict[int, LiveGroup], start: int, count: int) -> Series:
    lag: dict[str, Column] = {}
    replicas: dict[int, dict[str, Column]] = {}

    def put(columns: dict[str, Column], at: int, values: Values) -> None:
        for name, value in values.items():
            columns.setdefault(name, [None] * count)[at] = value

    for minute, group in found.items():
        at = (minute - start) // MINUTE_MS
        put(lag, at, group.lag)
        for each in group.replicas:
            put(replicas.setdefault(each.broker_id, {}), at, each.values)
    return Series(
        resolution="minute",
        start_ts=start,
        step_ms=MINUTE_MS,
        count=count,
        lag=lag,
        replicas=[ReplicaSeries(broker_id=id, columns=each) for id, each in sorted(replicas.items())],
    )
