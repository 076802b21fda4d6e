"""Manifests of hours with writers and clocks, for tests."""

from collections.abc import Sequence

from analytics.compaction.manifest import HourManifest, Part
from analytics.compaction.times import HOUR_MS, STEP_MS, Clock, Times, Writer

START = 1_767_225_600_000
RowsOf = tuple[str, int, int]
"""Who, and its first and last second in the hour, by its own clock."""


def hour(
    number: int,
    writers: Sequence[RowsOf] = (),
    *,
    clocks: dict[str, int] | None = None,
    measuring: Sequence[RowsOf] = (),
    rows: int = 1_000,
) -> HourManifest:
    """The compacted hour `number` after START. A name like "g1" is broker 1 of group g. `clocks`: offsets in
    ms; None: nothing was measured. `measuring`: controllers with clock samples."""
    hour_ts = START + number * HOUR_MS

    def writer(rows_of: RowsOf) -> Writer:
        name, first, last = rows_of
        return Writer("c", name[:-1], int(name[-1]), hour_ts + first * 1_000, hour_ts + last * 1_000)

    times = {"ha_sample": Times(writers=[writer(each) for each in writers])} if writers else {}
    parts = {"master_sample": [part(f"m{number}", rows, hour_ts)]}
    if clocks is not None:
        off = [offset for offset in clocks.values() if abs(offset) > STEP_MS]
        times["clock_sample"] = Times(
            writers=[
                Writer("", name, 0, hour_ts + first * 1_000, hour_ts + last * 1_000)
                for name, first, last in measuring
            ],
            clocks=[
                Clock("c", name[:-1], int(name[-1]), offset if abs(offset) > STEP_MS else 0)
                for name, offset in clocks.items()
            ],
            shifts=sorted({-offset // HOUR_MS for offset in off}),
        )
        parts["clock_sample"] = [part(f"c{number}", 60, hour_ts)]
    return HourManifest(hour_ts=hour_ts, parts=parts, times=times)


def part(path: str, rows: int, hour_ts: int) -> Part:
    """A part with rows from the beginning of the hour to its end."""
    return Part(path=path, rows=rows, size_bytes=1, min_ts=hour_ts, max_ts=hour_ts + HOUR_MS - 1)
