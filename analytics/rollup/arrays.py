"""Arrow columns as numpy arrays of whole numbers and back, and sums over runs of equal keys.

Columns and arrays share their memory. pa.array() and to_numpy() do that, too, but import pandas where it is
installed: half a CPU second in each process.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def ints(batch: pa.RecordBatch, name: str) -> Ints:
    """Returns a column; NULL, which an older file has in a newer column, as 0."""
    return numbers_of(batch.column(name))


def numbers_of(column: pa.Array | pa.ChunkedArray) -> Ints:
    """Returns the numbers of a column; NULL as 0."""
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    found = np.from_dlpack(whole.fill_null(0) if whole.null_count else whole)
    return found.astype(np.int64, copy=False)


def bools_of(column: pa.Array | pa.ChunkedArray) -> Bools:
    """Returns a column of BOOLEAN; NULL as false."""
    return numbers_of(column.cast(pa.uint8())).astype(np.bool_)


def arrow(values: npt.NDArray[Any], is_there: Bools | None = None) -> pa.Array:
    """Returns numbers or bools as a column, with NULL where nothing is there."""
    bits = None if is_there is None else pa.py_buffer(np.packbits(is_there, bitorder="little"))
    is_bool = values.dtype == np.bool_
    data = np.packbits(values, bitorder="little") if is_bool else np.ascontiguousarray(values)
    type_ = pa.bool_() if is_bool else pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [bits, pa.py_buffer(data)])


def texts(values: Sequence[str]) -> pa.Array:
    """Returns a column of strings."""
    encoded = [each.encode() for each in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


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
