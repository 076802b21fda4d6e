"""min_in_sync_replicas in an hour: at its beginning, and every change of it."""

import numpy as np
import pyarrow as pa

from analytics.rollup.arrays import Bools, Ints, begins


def minimum_changes(gid: Ints, ts: Ints, minimum: pa.ChunkedArray, counts: Bools) -> pa.RecordBatch:
    """Returns gid, ts and min_in_sync_replicas of each group's first sample and of those that differ from the
    one in front.

    One value per sample, in the order of group and time. `counts`: whether a sample is of the current master.
    A sample without a minimum, of an older broker, says nothing.
    """
    is_known = counts & minimum.is_valid().to_numpy()
    values = minimum.fill_null(0).to_numpy()[is_known]
    group = gid[is_known]
    changes = np.flatnonzero(begins(group, values))
    return pa.RecordBatch.from_pydict(
        {
            "gid": pa.array(group[changes]),
            "window_ts": pa.array(ts[is_known][changes]),
            "min_in_sync_replicas": pa.array(values[changes].astype(np.int32)),
        }
    )
