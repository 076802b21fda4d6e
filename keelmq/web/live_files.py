"""The last minutes, as files that the stream writes and a name server merges into its pages.

    OUT/live/page.json               how far they are; renamed into place last
    OUT/live/minutes/<ms>.jsonl      a minute: a line of each group, by its name
    OUT/live/fleet.json.gz           the last hour of all groups, by minute

A minute is not packed, so that a reader finds one group in it without decoding the others, and keeps nothing
in memory. Every file is replaced as a whole; `null` is unknown.
"""

import msgspec

from keelmq.web.page_files import STEP_MS, Column

LIVE_VERSION = 1
LIVE = "live/page.json"
MINUTES = "live/minutes"
FLEET = "live/fleet.json.gz"
MINUTE_MS = STEP_MS["minute"]
FLEET_MINUTES = 60

Values = dict[str, int | None]


class Live(msgspec.Struct, kw_only=True, frozen=True):
    """`data_to_ts`: the time of the newest record. `start_ts`, `count`: of the minutes. `every_ms`: from one
    batch of the stream to the next."""

    v: int = LIVE_VERSION
    computed_ts: int
    data_to_ts: int
    start_ts: int
    count: int
    every_ms: int


class LiveReplica(msgspec.Struct, array_like=True, frozen=True):
    """The columns of ReplicaSeries, one number each."""

    broker_id: int
    values: Values


class LiveGroup(msgspec.Struct, array_like=True, frozen=True):
    """A group in a minute: the columns of Series.lag, one number each, and its replicas."""

    cluster_name: str
    broker_name: str
    lag: Values = {}
    replicas: list[LiveReplica] = []


class LiveFleetGroup(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A group in the last hour, one number a minute. `below_min_ms`, `no_master_ms`, `unknown_ms`: empty if
    they are 0 in every minute; of a minute in which controllers' events do not show the group's state, None.
    `samples_ts`: the end of its last minute with a sample of a master."""

    cluster_name: str
    broker_name: str
    ms_p99: Column = []
    ms_max: Column = []
    below_min_ms: Column = []
    no_master_ms: Column = []
    unknown_ms: Column = []
    samples_ts: int | None = None


class LiveFleet(msgspec.Struct, kw_only=True):
    """The last FLEET_MINUTES of all groups; minute i begins at start_ts + i * step_ms."""

    v: int = LIVE_VERSION
    computed_ts: int
    data_to_ts: int
    every_ms: int
    start_ts: int
    step_ms: int = MINUTE_MS
    count: int = FLEET_MINUTES
    groups: list[LiveFleetGroup] = []


def minute_file(minute_ts: int) -> str:
    """Returns the path of a minute's file, below OUT."""
    return f"{MINUTES}/{minute_ts}.jsonl"


def find_group(data: bytes, cluster: str, broker: str) -> LiveGroup | None:
    """Returns a group in the content of a minute's file; None: it has none. Raises msgspec.MsgspecError."""
    head = msgspec.json.encode([cluster, broker])[:-1] + b","
    at = 0 if data.startswith(head) else data.find(b"\n" + head) + 1
    if at == 0 and not data.startswith(head):
        return None
    end = data.find(b"\n", at)
    return msgspec.json.decode(data[at : end if end >= 0 else len(data)], type=LiveGroup)
