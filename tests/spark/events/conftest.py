"""Random lives of many groups in one frame; each query runs once for all of them."""

import dataclasses
from collections.abc import Mapping, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from analytics.queries.availability import minimum_changes
from analytics.queries.event_log import group_history
from analytics.queries.failover import elections, with_ready
from analytics.queries.kept import kept
from analytics.queries.skew import clock_pieces
from analytics.queries.sync_state_set import group_spans
from keelmq.remoting.records import ClockSample, ControllerEvent, HaSample, Record, RoleChange
from tests.spark.events.fleet import HOUR_MS, Life, random_life
from tests.spark.frames import chain, frames_of

SEEDS = range(60)


@dataclasses.dataclass(frozen=True)
class Fleet:
    """All groups' truth, and the frames that the queries begin with. [from_ts, to_ts): of the run."""

    lives: Sequence[Life]
    frames: Mapping[type[Record], DataFrame]
    from_ts: int
    to_ts: int
    history: DataFrame
    spans: DataFrame
    minimum: DataFrame
    ready: DataFrame


@pytest.fixture(scope="session")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    lives = [random_life(seed) for seed in SEEDS]
    records = chain(life.records() for life in lives)
    frames = frames_of(spark, tmp_path_factory.mktemp("fleet"), records)
    times = [record.ts for record in records if isinstance(record, ControllerEvent)]
    from_ts, to_ts = min(times) // HOUR_MS * HOUR_MS, max(times) + 1_000
    history = kept(group_history(frames[ControllerEvent], from_ts=from_ts, to_ts=to_ts))
    pieces = kept(clock_pieces(frames[ClockSample]))
    return Fleet(
        lives,
        frames,
        from_ts,
        to_ts,
        history,
        kept(group_spans(history, from_ts=from_ts, to_ts=to_ts)),
        kept(minimum_changes(frames[HaSample])),
        kept(with_ready(kept(elections(history)), frames[RoleChange], pieces)),
    )
