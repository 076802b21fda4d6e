"""Records as columns. One row per record here, so that duplicates are dropped record by record; then
tables_of() splits ha_sample into the tables of masters, replicas and slaves.

A row has only the fields that the tables keep: a slave's ha_sample has no field that only a master knows.
"""

from array import array
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from analytics.tables import MASTER_SAMPLE, REPLICA_SAMPLE, SLAVE_SAMPLE, TABLES
from keelmq.remoting.records import RECORDS, HaSample, Record, name_of
from keelmq.runtime.log_buckets import BUCKETS

HA_SAMPLE = name_of(HaSample)
KINDS = tuple(name_of(record) for record in RECORDS)
REPLICA = pa.struct(
    [("broker_id", pa.int64()), ("ack_offset", pa.int64()), ("lag_ms", pa.int64()), ("in_sync", pa.bool_())]
)
_FIELDS_OF_MASTER = [
    each
    for each in MASTER_SAMPLE.schema
    if each.name not in ("cluster_name", "broker_name", "ts", "broker_id")
]
_BY_NAME = {table.name: table for table in TABLES}
HA_TABLES = (MASTER_SAMPLE.name, REPLICA_SAMPLE.name, SLAVE_SAMPLE.name)

SCHEMAS: dict[str, pa.Schema] = {
    **{kind: _BY_NAME[kind].schema for kind in KINDS if kind != HA_SAMPLE},
    HA_SAMPLE: pa.schema(
        [
            *list(MASTER_SAMPLE.schema)[:4],
            ("role", pa.string()),
            *_FIELDS_OF_MASTER,
            ("replicas", pa.list_(REPLICA)),
        ]
    ),
}
"""The columns of a record kind; for all but ha_sample, those of its table."""
KEYS: dict[str, tuple[str, ...]] = {
    kind: MASTER_SAMPLE.key if kind == HA_SAMPLE else _BY_NAME[kind].key for kind in KINDS
}
TABLES_OF: dict[str, tuple[str, ...]] = {kind: HA_TABLES if kind == HA_SAMPLE else (kind,) for kind in KINDS}
_DEFAULTS = {each.name: each.default for each in msgspec.structs.fields(HaSample)}
FIELDS = {name_of(record): record.__struct_fields__ for record in RECORDS}
SCHEMA_OF_TABLE = {table.name: table.schema for table in TABLES}


def rows_of(kind: str, records: Sequence[Record]) -> pa.Table:
    """Returns one row per record; for ha_sample, those of masters first. Raises OverflowError or ArrowInvalid
    if a number does not fit its column."""
    schema = SCHEMAS[kind]
    if not records:
        return schema.empty_table()
    if kind != HA_SAMPLE:
        return pa.table(_columns(kind, records), schema=schema)
    masters = [record for record in records if record.role == "master"]  # type: ignore[attr-defined]
    if len(masters) == len(records):
        return pa.table(_columns(kind, records), schema=schema)
    others = [record for record in records if record.role != "master"]  # type: ignore[attr-defined]
    values = dict(zip(FIELDS[kind], zip(*map(astuple, others), strict=True), strict=True))
    slaves = slave_rows(
        pa.table({each.name: _column(each, values[each.name]) for each in SLAVE_SAMPLE.schema})
    )
    return pa.concat_tables([pa.table(_columns(kind, masters), schema=schema), slaves]) if masters else slaves


def tables_of(kind: str, rows: pa.Table) -> dict[str, pa.Table]:
    """Returns the rows of each table of this kind, in the same order."""
    if kind != HA_SAMPLE:
        return {kind: rows}
    is_master = pc.equal(rows["role"], "master")
    masters = rows.filter(is_master)
    slaves = rows.filter(pc.invert(is_master))
    return {
        MASTER_SAMPLE.name: masters.select(MASTER_SAMPLE.schema.names),
        REPLICA_SAMPLE.name: _replicas(masters),
        SLAVE_SAMPLE.name: slaves.select(SLAVE_SAMPLE.schema.names),
    }


def _replicas(masters: pa.Table) -> pa.Table:
    lists = _one(masters["replicas"], pa.list_(REPLICA))
    parents = pc.list_parent_indices(lists)
    each = lists.flatten()
    ids, acks, lags, in_sync = each.flatten()
    columns = dict(
        zip(
            ["cluster_name", "broker_name", "ts", "broker_id", "master_epoch", "max_offset"],
            masters.select(["cluster_name", "broker_name", "ts", "broker_id", "master_epoch", "max_offset"])
            .take(parents)
            .columns,
            strict=True,
        )
    )
    columns |= {"replica_id": ids, "ack_offset": acks, "lag_ms": lags, "in_sync": in_sync}
    return pa.table([columns[name] for name in REPLICA_SAMPLE.schema.names], schema=REPLICA_SAMPLE.schema)


def ha_rows(masters: pa.Table, replicas: pa.Table) -> pa.Table:
    """Returns the rows of SCHEMAS["ha_sample"] that tables_of() made these tables of, both sorted by key."""
    keys = [_text_key(each) for each in (masters, replicas)]
    parents = pc.index_in(keys[1], value_set=keys[0])
    counted = pc.value_counts(parents)
    at = pc.index_in(pa.array(range(len(masters)), pa.int32()), value_set=counted.field("values"))
    counts = pc.fill_null(counted.field("counts").take(at), 0).to_pylist()
    each = pa.StructArray.from_arrays(
        [
            _one(replicas[name], field.type)
            for name, field in zip(("replica_id", "ack_offset", "lag_ms", "in_sync"), REPLICA, strict=True)
        ],
        fields=list(REPLICA),
    )
    lists = pa.ListArray.from_arrays(pa.array(list(accumulate(counts, initial=0)), pa.int32()), each)
    columns = {name: masters[name] for name in masters.column_names}
    columns |= {"role": pa.repeat("master", len(masters)), "replicas": lists}
    schema = SCHEMAS[HA_SAMPLE]
    return pa.table([columns[name] for name in schema.names], schema=schema)


def slave_rows(slaves: pa.Table) -> pa.Table:
    """Returns rows of slave_sample as rows of SCHEMAS["ha_sample"]: as rows_of() makes them."""
    schema = SCHEMAS[HA_SAMPLE]
    columns = [
        slaves[each.name] if each.name in slaves.column_names else _default(each, len(slaves))
        for each in schema
    ]
    return pa.table(columns, schema=schema)


def _default(field: pa.Field, count: int) -> pa.Array:
    if count <= _DEFAULTS_KEPT:
        return _kept_default(field).slice(0, count)
    return _new_default(field, count)


@cache
def _kept_default(field: pa.Field) -> pa.Array:
    return _new_default(field, _DEFAULTS_KEPT)


def _new_default(field: pa.Field, count: int) -> pa.Array:
    if pa.types.is_list(field.type):
        nothing = pa.array([], field.type.value_type)
        return pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), nothing)
    return pa.repeat(pa.scalar(_DEFAULTS[field.name], field.type), count)


def _text_key(rows: pa.Table) -> pa.Array:
    """Returns cluster, group, ts and broker id as one string; names hold no 0 byte that would matter: equal
    strings then come from equal rows of the same file only."""
    parts = [
        rows["cluster_name"],
        rows["broker_name"],
        *(rows[name].cast(pa.string()) for name in ("ts", "broker_id")),
    ]
    return _one(pc.binary_join_element_wise(*parts, "\0"), pa.string())


def _one(column: pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return chunks[0]
    return pa.concat_arrays(chunks) if chunks else pa.array([], type_)


# -- columns of records ------------------------------------------------------------------------------------
#
# Measured: structs to tuples, transposed by zip(), and numbers through array.array are three times as fast as
# a list of attributes for each column.

_Values = Sequence[Any]
_DEFAULTS_KEPT = 16_384
_HISTOGRAMS = frozenset({"lag_us", "confirm_us"})


def _columns(kind: str, records: Sequence[Record]) -> dict[str, pa.Array]:
    values = dict(zip(FIELDS[kind], zip(*map(astuple, records), strict=True), strict=True))
    return {each.name: _column(each, values[each.name]) for each in SCHEMAS[kind]}


def _column(field: pa.Field, values: _Values) -> pa.Array:
    if pa.types.is_integer(field.type):
        return _integers(values, field.type)
    if field.name == "replicas" and pa.types.is_list(field.type) and field.type != pa.list_(pa.int64()):
        return _replica_lists(values)
    if field.name in _HISTOGRAMS:
        fields = list(field.type.value_type)
        numbers = list(zip(*chain.from_iterable(values), strict=True)) or [()] * len(fields)
        columns = [_integers(each, item.type) for each, item in zip(numbers, fields, strict=True)]
        _check_histogram(*columns)
        return _list_array(values, pa.StructArray.from_arrays(columns, fields=fields))
    if pa.types.is_list(field.type):
        return _list_array(values, _integers(list(chain.from_iterable(values)), field.type.value_type))
    if pa.types.is_struct(field.type):
        return pa.array([msgspec.to_builtins(value) for value in values], field.type)
    repeated = _repeated(values, field.type)
    return pa.array(values, field.type) if repeated is None else repeated


def _check_histogram(buckets: pa.Array, counts: pa.Array) -> None:
    """Raises OverflowError if there is no such bucket, or a count is negative: code that adds histograms up
    uses buckets as list indexes."""
    if len(buckets):
        found, least = pc.min_max(buckets).as_py(), pc.min(counts).as_py()
        if found["min"] < 0 or found["max"] >= BUCKETS or least < 0:
            raise OverflowError("a histogram with a bucket or a count that is not possible")


def _repeated(values: _Values, type_: pa.DataType) -> pa.Array | None:
    """Returns the column if all values are equal, as in most columns of one broker; else None."""
    if values and values[0] == values[-1] and values.count(values[0]) == len(values):
        return pa.repeat(pa.scalar(values[0], type_), len(values))
    return None


def _integers(values: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    if (repeated := _repeated(values, type_)) is not None:
        return repeated
    try:
        numbers = values if isinstance(values, array) else array("q", values)  # type: ignore[type-var]
    except TypeError:  # there is a None
        return pa.array(values, type_)
    found = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    return found if type_ == pa.int64() else found.cast(type_)


def _replica_lists(lists: Sequence[Sequence[Any]]) -> pa.Array:
    columns = list(zip(*map(astuple, chain.from_iterable(lists)), strict=True)) or [()] * len(REPLICA)
    arrays = [_column(each, column) for each, column in zip(REPLICA, columns, strict=True)]
    found = _list_array(lists, pa.StructArray.from_arrays(arrays, fields=list(REPLICA)))
    ids, parents = arrays[0], pc.list_parent_indices(found)
    ascend = pc.or_(pc.greater(ids[1:], ids[:-1]), pc.not_equal(parents[1:], parents[:-1]))
    return found if pc.all(ascend, min_count=0).as_py() else _replica_lists(list(map(_ordered, lists)))


def _ordered(replicas: Sequence[Any]) -> Sequence[Any]:
    """Returns the replicas by id; of two with the same id, the last one."""
    return [each for _, each in sorted({each.broker_id: each for each in replicas}.items())]


def _list_array(lists: Sequence[Sequence[Any]], flat: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(list(accumulate(map(len, lists), initial=0)), pa.int32()), flat)
