"""Equality of rows with lists and structs in them, column by column: pyarrow compares plain columns only."""

import pyarrow as pa
import pyarrow.compute as pc


def equal_rows(left: pa.Table, right: pa.Table) -> pa.Array:
    """Returns, for each row of two tables with one schema and as many rows, whether they are equal; NULL
    equals NULL."""
    equal = pa.repeat(pa.scalar(True), len(left))
    for name in left.column_names:
        equal = pc.and_(equal, _equal(_one(left[name]), _one(right[name])))
    return equal


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    if pa.types.is_struct(left.type):
        both = _both_or_neither(left, right)
        for mine, other in zip(left.flatten(), right.flatten(), strict=True):
            both = pc.and_(both, _equal(mine, other))
        return both
    if pa.types.is_list(left.type):
        return _equal_lists(left, right)
    same = pc.fill_null(pc.equal(left, right), False)
    return pc.or_(same, pc.and_(left.is_null(), right.is_null()))


def _equal_lists(left: pa.Array, right: pa.Array) -> pa.Array:
    lengths = [pc.fill_null(pc.list_value_length(each), -1) for each in (left, right)]
    equal = pc.equal(*lengths)
    if not pc.all(equal, min_count=0).as_py():
        alike = pc.indices_nonzero(equal)
        inner = _equal_lists(left.take(alike), right.take(alike))
        wrong = alike.filter(pc.invert(inner))
        return pc.and_(equal, pc.invert(_flags(wrong, len(left))))
    parents = pc.list_parent_indices(left)
    wrong = parents.filter(pc.invert(_equal(left.flatten(), right.flatten())))
    return pc.invert(_flags(wrong, len(left)))


def _flags(positions: pa.Array, count: int) -> pa.Array:
    """Returns `count` values, True at these positions."""
    flags = bytearray(count)
    for at in positions.to_pylist():
        flags[at] = 1
    return pa.array(flags, pa.uint8()).cast(pa.bool_())


def _both_or_neither(left: pa.Array, right: pa.Array) -> pa.Array:
    return pc.equal(left.is_null(), right.is_null())


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
