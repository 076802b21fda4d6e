"""Page files: what analytics writes and a name server serves.

    OUT/current.json                                    names the generation; renamed into place last
    OUT/pages/<generation>/index.json.gz                all groups, one row each
    OUT/pages/<generation>/groups/<cluster>/<group>/group.json.gz
        .../minute-YYYY-MM-DD.json.gz, hour-YYYY-MM.json.gz, day-YYYY.json.gz, detail.json.gz

The last minutes, from the stream, are in keelmq/web/live_files.py.
A generation never changes once current.json names it. Times are wall-clock ms UTC. Series have an even step;
`null` is unknown and never means 0. Folder names are escaped: any name of a group makes a safe path.
"""

import gzip
import hashlib
import io
import re
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec

PAGES_VERSION = 1
CURRENT = "current.json"
PAGES = "pages"
INDEX = "index.json.gz"
GROUP = "group.json.gz"
GENERATIONS_KEPT = 3

Resolution = Literal["detail", "minute", "hour", "day"]
STEP_MS: dict[str, int] = {"minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
"""Width of a window; that of "detail", less than a minute, depends on the run."""
FILE_DATE = {"detail": None, "minute": "%Y-%m-%d", "hour": "%Y-%m", "day": "%Y"}
"""Which time one file holds: a day of minutes, a month of hours, a year of days."""

POINTS_MAX = 2_000
"""Limit of the points of a series in one answer."""
HEAT_COLUMNS_MAX = 48
INCIDENTS_MAX = 2_000
"""Limit of the incidents in an index; the worst of them stay."""
CONSUMERS_MAX = 10
"""Pairs of consumer group and topic that a series file has of a group: those that are behind the most."""
NAME_CHARACTERS_MAX = 200
UNPACKED_BYTES_MAX = 256 << 20

Column = list[int | None]


class Current(msgspec.Struct, kw_only=True, frozen=True):
    """current.json. `interval_ms`: how often analytics runs; None: by hand."""

    v: int = PAGES_VERSION
    generation: int
    interval_ms: int | None = None


class Incident(msgspec.Struct, kw_only=True, frozen=True, rename={"from_ts": "from", "to_ts": "to"}):
    """`to_ts` is exclusive. `replica`: None for the whole group. `worst`: ms, bytes or a count, by kind.
    `state_ms`: how long the rule held; None: a moment, or not known."""

    kind: str
    cluster_name: str
    broker_name: str
    replica: int | None = None
    from_ts: int
    to_ts: int
    worst: int = 0
    state_ms: int | None = None


class IndexGroup(msgspec.Struct, kw_only=True):
    """A row of the index. Lists have one number for each column of the heat map.

    `availability`: the share of the time with enough replicas in sync, 0 to 1, of what is known. `ms_p99`,
    `ms_max`, `worst_p99_ms`, `worst_ms`: of the worst minute.
    """

    cluster_name: str
    broker_name: str
    ms_p99: Column = []
    ms_max: Column = []
    below_min_ms: Column = []
    unknown_ms: Column = []
    worst_ms: int | None = None
    worst_p99_ms: int | None = None
    below_ms: int | None = None
    unknown_total_ms: int = 0
    availability: float | None = None
    elections: int = 0
    unclean_elections: int = 0
    failovers: int = 0
    longest_gap_ms: int | None = None
    shrinks: int = 0
    flaps: int = 0
    incidents: int = 0
    score: int = 0


class Index(msgspec.Struct, kw_only=True):
    """The fleet. `start_ts`, `step_ms`, `columns`: of the heat map. Groups stand worst first.

    `groups_total` is more than the number of `groups` in a report, which holds the worst ones only.
    """

    v: int = PAGES_VERSION
    generated_ts: int
    interval_ms: int | None = None
    from_ts: int
    to_ts: int
    start_ts: int
    step_ms: int
    columns: int
    detail_ms: int | None = None
    resolutions: list[str] = []
    inputs: list[str] = []
    quality: list[dict[str, Any]] = []
    groups_total: int = 0
    incidents_total: int = 0
    incidents: list[Incident] = []
    groups: list[IndexGroup] = []


class ReplicaSeries(msgspec.Struct, kw_only=True):
    """`columns`: samples, bytes_max, ms_max, last_ack_offset. Without samples, bytes_max is how far behind a
    replica is that was last seen earlier."""

    broker_id: int
    columns: dict[str, Column] = {}


class ConsumerSeries(msgspec.Struct, kw_only=True):
    """`columns`: lag_messages_max, lag_ms_max; of one consumer group and topic, all queues together."""

    consumer_group: str
    topic: str
    columns: dict[str, Column] = {}


class Series(msgspec.Struct, kw_only=True):
    """Windows of one width without a hole: window i begins at start_ts + i * step_ms. All columns have
    `count` numbers."""

    v: int = PAGES_VERSION
    resolution: str
    start_ts: int
    step_ms: int
    count: int
    lag: dict[str, Column] = {}
    state: dict[str, Column] = {}
    replicas: list[ReplicaSeries] = []
    consumers: list[ConsumerSeries] = []


def escaped(name: str) -> str:
    """Returns a folder's name for any group's name; different names give different folders."""
    text = quote(name.encode("utf-8", "surrogatepass"), safe=" ").replace("~", "%7E").replace(".", "%2E")
    if len(text) <= NAME_CHARACTERS_MAX:
        return text or "%"
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{text[: NAME_CHARACTERS_MAX // 2]}~{digest[:32]}"


def series_file(resolution: str, ts: int) -> str:
    """Returns the name of the file that holds the window that begins at `ts`."""
    pattern = FILE_DATE[resolution]
    if pattern is None:
        return f"{resolution}.json.gz"
    return f"{resolution}-{datetime.fromtimestamp(ts // 1_000, UTC).strftime(pattern)}.json.gz"


def series_files(resolution: str, from_ts: int, to_ts: int) -> list[str]:
    """Returns the names of the files that hold windows of [from_ts, to_ts), in their order."""
    step = STEP_MS["day"]
    days = range(from_ts - from_ts % step, max(to_ts, from_ts + 1), step)
    return list(dict.fromkeys(series_file(resolution, ts) for ts in days))


def packed(data: bytes, level: int = 5) -> bytes:
    """Returns `data` gzipped; equal data gives equal bytes."""
    return gzip.compress(data, level, mtime=0)


def unpacked(data: bytes) -> bytes:
    """Raises ValueError if this is not gzip, or more than UNPACKED_BYTES_MAX."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            found = file.read(UNPACKED_BYTES_MAX + 1)
    except (OSError, EOFError) as error:
        raise ValueError(f"not a gzip file: {error}") from None
    if len(found) > UNPACKED_BYTES_MAX:
        raise ValueError(f"more than {UNPACKED_BYTES_MAX} bytes unpacked")
    return found


def cut(series: list[Series], from_ts: int, to_ts: int) -> Series:
    """Returns the windows of [from_ts, to_ts) of files that follow each other, as one series.

    A window that no file has is unknown. At most from the first window of the files to the last one.
    """
    first, last = series[0], series[-1]
    step = first.step_ms
    start = max(from_ts - from_ts % step, first.start_ts)
    count = max(0, min(-(-to_ts // step) * step, last.start_ts + last.count * step) - start) // step
    replicas: dict[int, list[tuple[Series, dict[str, Column]]]] = {}
    consumers: dict[tuple[str, str], list[tuple[Series, dict[str, Column]]]] = {}
    for part in series:
        for replica in part.replicas:
            replicas.setdefault(replica.broker_id, []).append((part, replica.columns))
        for each in part.consumers:
            consumers.setdefault((each.consumer_group, each.topic), []).append((part, each.columns))

    def joined(columns: list[tuple[Series, dict[str, Column]]]) -> dict[str, Column]:
        names = dict.fromkeys(name for _, each in columns for name in each)
        found: dict[str, Column] = {name: [None] * count for name in names}
        for part, each in columns:
            at = (part.start_ts - start) // step
            begin, end = max(at, 0), min(at + part.count, count)
            for name, values in each.items():
                if begin < end:
                    found[name][begin:end] = values[begin - at : end - at]
        return found

    return Series(
        resolution=first.resolution,
        start_ts=start,
        step_ms=step,
        count=count,
        lag=joined([(part, part.lag) for part in series]),
        state=joined([(part, part.state) for part in series]),
        replicas=[ReplicaSeries(broker_id=id, columns=joined(replicas[id])) for id in sorted(replicas)],
        consumers=[
            ConsumerSeries(consumer_group=name, topic=topic, columns=joined(consumers[name, topic]))
            for name, topic in sorted(consumers)
        ],
    )


def choose_resolution(index: Index, from_ts: int, to_ts: int, step_ms: int) -> str | None:
    """Returns the finest resolution of at least `step_ms` a window with POINTS_MAX windows or fewer; the
    widest one if all are finer than `step_ms`. None: the time is too long."""
    widths = {**STEP_MS, "detail": index.detail_ms or 1_000}
    known = sorted(index.resolutions, key=lambda each: widths[each])
    fitting = [each for each in known if -(-(to_ts - from_ts) // widths[each]) <= POINTS_MAX - 1]
    wide = [each for each in fitting if widths[each] >= step_ms]
    found = wide or fitting[-1:]
    return found[0] if found else None


GENERATION_NAME = re.compile(r"\d{1,19}")
