"""min_in_sync_replicas in an hour: at its beginning, and every change of it."""

import numpy as np
import pyarrow as pa

from analytics.rollup.arrays import Bools, Ints, arrow, begins, bools_of, numbers_of


def minimum_changes(gid: Ints, ts: Ints, minimum: pa.ChunkedArray, counts: Bools) -> pa.RecordBatch:
    """Returns gid, ts and min_in_sync_replicas of each group's first sample and of those that differ from the
    one in front.

    One value per sample, in the order of group and time. `counts`: whether a sample is of the current master.
    A sample without a minimum, of an older broker, says nothing.
    """
    is_known = counts & bools_of(minimum.is_valid())
    values = numbers_of(minimum)[is_known]
    group = gid[is_known]
    changes = np.flatnonzero(begins(group, values))
    return pa.RecordBatch.from_pydict(
        {
            "gid": arrow(group[changes]),
            "window_ts": arrow(ts[is_known][changes]),
            "min_in_sync_replicas": arrow(values[changes].astype(np.int32)),
        }
    )
