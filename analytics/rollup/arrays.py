"""Arrow columns as numpy arrays of whole numbers, and sums over runs of equal keys."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    """Returns a column; NULL, which an older file has in a newer column, as 0."""
    values = batch.column(name)
    found: Ints = (values.fill_null(0) if values.null_count else values).to_numpy()
    return found.astype(np.int64, copy=False)


def begins(*keys: npt.NDArray[Any]) -> Bools:
    """Returns whether a run of rows with equal keys begins in a row. `keys`: arrays of one length."""
    differs = np.zeros(max(len(keys[0]) - 1, 0), np.bool_)
    for key in keys:
        differs |= key[1:] != key[:-1]
    return np.append(True, differs)[: len(keys[0])]


def run_starts(*keys: npt.NDArray[Any]) -> Ints:
    """Returns where each run of rows with equal keys begins."""
    return np.flatnonzero(begins(*keys))


def reduced(by: Any, values: Ints, starts: Ints) -> Ints:
    """Returns one number per run: `by`, a ufunc such as np.add, over its values."""
    found: Ints = by.reduceat(values, starts) if len(starts) else values[:0]
    return found


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Returns the rows of a table as one batch."""
    whole = table.combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], table.schema)
