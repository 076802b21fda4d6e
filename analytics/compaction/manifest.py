"""What compaction has written, per hour (UTC, of `ts`): a JSON file that is written after its parts.

    OUT/compacted/<table>/dt=YYYY-MM-DD/hour=HH/<part>.parquet
    OUT/compacted/manifest/dt=YYYY-MM-DD-hour=HH.json

Readers take the paths from the manifests and never list the folders: a folder also holds parts that are
being written, and old ones until a later run deletes them.
"""

import re
import time
from calendar import timegm
from collections.abc import Iterable

import msgspec

from analytics.compaction.decode import BadLine
from analytics.compaction.storage import Storage, Stored, open_storage
from analytics.compaction.times import Clock, Times, Writer
from analytics.errors import AnalyticsError

HOUR_MS = 3_600_000
MANIFEST_VERSION = 1
COMPACTED = "compacted"
MANIFESTS = f"{COMPACTED}/manifest"

_NAME = re.compile(r"dt=(\d{4}-\d\d-\d\d)-hour=(\d\d)\.json", re.ASCII)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file. `path`: below OUT. `min_ts`, `max_ts`: of its rows, both included."""

    path: str
    rows: int
    size_bytes: int
    min_ts: int
    max_ts: int


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of record. `rows`: records that are kept. `duplicates`: good lines that are not.

    `bad_lines`: by reason, of the files that belong to this hour.
    """

    rows: int = 0
    duplicates: int = 0
    bad_lines: dict[str, int] = {}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A file that rows of this hour came from, as it was when it was read last; it may be deleted since.

    `path` is without ".open". `read_bytes`: of a compressed file, decompressed ones. `head`: a digest of its
    first bytes. `rows`: good lines of this hour. `home`: the file belongs to this hour, so the members below
    are of the whole file: `hours` with good lines, `bad` lines by reason, the first of them, and `error`:
    why the rest of the file could not be read, and `failed`: for the system's error, which may pass.
    `record_version`: the newest that its reader knew.
    """

    path: str
    kind: str
    size_bytes: int
    modified_ns: int
    read_bytes: int
    head: str
    rows: int
    home: bool = True
    hours: list[int] = []
    bad: dict[str, int] = {}
    bad_lines: list[BadLine] = []
    error: str = ""
    failed: bool = False
    record_version: int = 1


class HourManifest(msgspec.Struct, frozen=True, kw_only=True):
    """`hour_ts`: ms of the hour's beginning. `parts`: by table, in the order of their rows; a table without
    rows is left out, and all are if there were bad lines only. `counts`: by kind of record. `times`: by kind,
    of those with any; none: compacted by a version that did not record them."""

    hour_ts: int
    version: int = MANIFEST_VERSION
    parts: dict[str, list[Part]] = {}
    counts: dict[str, Counts] = {}
    sources: list[Source] = []
    times: dict[str, Times] = {}

    @property
    def writers(self) -> list[Writer]:
        """The writers of this hour's samples and events."""
        return [each for times in self.times.values() for each in times.writers]

    @property
    def clocks(self) -> list[Clock]:
        """The brokers whose clocks controllers compared in this hour."""
        return [each for times in self.times.values() for each in times.clocks]

    @property
    def shifts(self) -> list[int]:
        """How many hours brokers' clocks were ahead: see Times.shifts."""
        return sorted({each for times in self.times.values() for each in times.shifts})

    def all_parts(self) -> list[Part]:
        """Returns the parts of all tables."""
        return [part for parts in self.parts.values() for part in parts]

    def paths(self) -> set[str]:
        """Returns the paths of all parts, below OUT."""
        return {part.path for part in self.all_parts()}

    @property
    def rows(self) -> int:
        """The number of rows, of all tables."""
        return sum(part.rows for part in self.all_parts())


def read_manifests(out: str) -> list[HourManifest]:
    """Returns the manifests of all hours below `out` (a directory or a URL), by hour; none: nothing is
    compacted.

    Raises AnalyticsError if `out` cannot be read, or a manifest is damaged or of a newer version.
    """
    with open_storage(out) as storage:
        return [read_manifest(storage, hour_ts) for hour_ts in manifest_hours(storage)]


def manifest_hours(storage: Storage) -> list[int]:
    """Returns the hours that have a manifest, in ascending order."""
    return sorted(hours_of_files(storage.files(MANIFESTS)))


def hours_of_files(files: Iterable[Stored]) -> dict[int, int]:
    """Returns for each manifest among these files its hour, and when it was written, in ns."""
    found = ((_NAME.fullmatch(each.name), each.modified_ns) for each in files)
    return {hour_of(match[1], match[2]): modified_ns for match, modified_ns in found if match is not None}


def read_manifest(storage: Storage, hour_ts: int) -> HourManifest:
    """Returns the manifest of this hour. Raises AnalyticsError; FileNotFoundError if there is none."""
    name = manifest_name(hour_ts)
    data = storage.read(name)
    try:
        found = msgspec.json.decode(data, type=HourManifest)
    except msgspec.MsgspecError as error:
        raise AnalyticsError(
            f"{storage.url}/{name} is damaged ({error}); delete it and compact that hour again"
        ) from None
    if found.version > MANIFEST_VERSION:
        raise AnalyticsError(f"{storage.url}/{name} is of a newer version of KeelMQ: use that one")
    return found


def manifest_name(hour_ts: int) -> str:
    """Returns the path of an hour's manifest, below OUT."""
    return f"{MANIFESTS}/{folder_of(hour_ts).replace('/', '-')}.json"


def folder_of(hour_ts: int) -> str:
    """Returns "dt=YYYY-MM-DD/hour=HH"."""
    return time.strftime("dt=%Y-%m-%d/hour=%H", time.gmtime(hour_ts // 1000))


def hour_of(day: str, hour: str) -> int:
    """Returns the ms at which the hour begins. Raises ValueError if there is no such day or hour."""
    return timegm(time.strptime(f"{day} {hour}", "%Y-%m-%d %H")) * 1000
