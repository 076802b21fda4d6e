"""Lag of consumer groups in series files: of each broker group the pairs of consumer group and topic that are
behind the most."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from analytics.pages.grid import GROUP, Axis, Grid, GroupName
from keelmq.web.page_files import CONSUMERS_MAX

COLUMNS = ("lag_messages_max", "lag_ms_max")
IDS = ("consumer_group", "topic")


def consumer_texts(rows: Any, axis: Axis, groups: Sequence[GroupName]) -> dict[GroupName, list[str]]:
    """Returns for each group its ConsumerSeries as JSON text. `rows`: of the roll-up consumer_lag."""
    if rows is None or not len(rows):
        return {}
    names = [rows[name].cast(pa.string()).combine_chunks() for name in IDS]
    pairs = pc.binary_join_element_wise(*names, "\0").dictionary_encode()
    rows = rows.drop_columns(list(IDS)).append_column("pair", pairs.indices.cast(pa.int64()))
    rows = _worst(rows)
    found: dict[GroupName, list[str]] = {}
    for (group, pair), columns in Grid(rows, axis, groups, "pair").texts(COLUMNS):
        consumer, _, topic = pairs.dictionary[pair].as_py().partition("\0")
        head = msgspec.json.encode({"consumer_group": consumer, "topic": topic}).decode()
        text = ",".join(f'"{name}":{values}' for name, values in columns.items())
        found.setdefault(group, []).append(f'{head[:-1]},"columns":{{{text}}}}}')
    return found


def _worst(rows: Any) -> Any:
    """Returns the rows of the CONSUMERS_MAX pairs of each group with the most messages behind."""
    keys = [*GROUP, "pair"]
    bare = pa.table({name: rows[name].cast(pa.string()) if name in GROUP else rows[name] for name in
                     (*keys, "lag_messages_max")})  # fmt: skip
    most = bare.group_by(keys).aggregate([("lag_messages_max", "max")])
    order = [
        *((name, "ascending") for name in GROUP),
        ("lag_messages_max_max", "descending"),
        ("pair", "ascending"),
    ]
    counts: dict[GroupName, int] = {}
    kept: dict[str, list[Any]] = {name: [] for name in keys}
    for row in most.sort_by(order).to_pylist():
        group = row["cluster_name"], row["broker_name"]
        counts[group] = counts.get(group, 0) + 1
        if counts[group] <= CONSUMERS_MAX:
            for name in keys:
                kept[name].append(row[name])
    if len(kept["pair"]) == len(most):
        return rows
    wanted = pa.table(kept, schema=most.select(keys).schema)
    at = bare.append_column("row", pa.array(range(len(bare)), pa.int64()))
    return rows.take(at.join(wanted, keys, join_type="left semi").sort_by("row")["row"])
