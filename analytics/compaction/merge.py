"""Rows of one hour and kind: sorted, one per key, within a bounded memory.

Rows come in any order and any number of times. Of rows with one key, the one whose fields, as JSON in the
order of the record, sort last as bytes is kept: the same one in whatever order and portions they come, so
rows that were compacted earlier are merged with new ones like any others.

Rows that do not fit in memory are sorted and written to a temporary file, one batch per group of brokers; in
the end the groups are read from all these files in their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from analytics.compaction.columns import FIELDS, KEYS
from analytics.compaction.equality import equal_rows

GROUP = ["cluster_name", "broker_name"]
PIECE_BYTES = 24 << 10
"""Memory of a table besides its data: a hundred Python and Arrow objects."""

_Group = tuple[str, str]


@dataclass(slots=True)
class _Run:
    """Sorted rows without duplicates; `table` None: in `path`, a batch for each group."""

    groups: dict[_Group, tuple[int, int]]
    """By group: its first row, and the end (exclusive)."""
    nbytes: int
    rows: int
    table: pa.Table | None
    path: Path | None = None
    batches: dict[_Group, int] = field(default_factory=dict)

    def load(self, groups: Sequence[_Group]) -> list[pa.Table]:
        """Returns the rows of these groups, which follow one another."""
        mine = [group for group in groups if group in self.groups]
        if not mine:
            return []
        if self.table is not None:
            begin, end = self.groups[mine[0]][0], self.groups[mine[-1]][1]
            return [self.table.slice(begin, end - begin)]
        with pa.OSFile(str(self.path)) as file:
            reader = pa.ipc.open_file(file)
            return [pa.Table.from_batches([reader.get_batch(self.batches[group]) for group in mine])]


class Accumulator:
    """Collects rows of one kind with add(), spills them with spill(), and returns them once with
    sorted_rows()."""

    def __init__(self, kind: str, folder: Path, name: str) -> None:
        """`folder`: for temporary files; `name`: of this accumulator, for theirs."""
        self.kind, self.nbytes = kind, 0
        self._folder, self._name = folder, name
        self._pieces: list[pa.Table] = []
        self._runs: list[_Run] = []

    def add(self, rows: pa.Table) -> None:
        """Keeps the rows; `nbytes` grows by their size."""
        self._pieces.append(rows)
        self.nbytes += rows.nbytes + PIECE_BYTES

    def spill(self) -> None:
        """Moves the rows in memory to a temporary file. Raises OSError."""
        run = self._take_run()
        if run is None:
            return
        assert run.table is not None
        run.path = self._folder / f"{self._name}-{len(self._runs)}.arrow"
        with pa.OSFile(str(run.path), "wb") as file, pa.ipc.new_file(file, run.table.schema) as writer:
            for at, (group, (begin, end)) in enumerate(run.groups.items()):
                (batch,) = run.table.slice(begin, end - begin).to_batches()
                writer.write_batch(batch)
                run.batches[group] = at
        run.table = None
        self._runs.append(run)

    def sorted_rows(self, load_bytes: int) -> Iterator[pa.Table]:
        """Yields all rows in order, without duplicates, never part of a group. Deletes the temporary files.

        `load_bytes`: about how much is loaded from files at once; one group is always loaded as a whole.
        """
        last = self._take_run()
        runs = self._runs + ([last] if last is not None else [])
        self._runs = []
        if len(runs) == 1 and runs[0].table is not None:
            yield runs[0].table
            return
        for groups in _portions(runs, load_bytes):
            loaded = [table for run in runs for table in run.load(groups)]
            yield sorted_unique(pa.concat_tables(loaded), self.kind)
        for run in runs:
            if run.path is not None:
                run.path.unlink()

    def _take_run(self) -> _Run | None:
        if not self._pieces:
            return None
        rows = pa.concat_tables(self._pieces)
        self._pieces, self.nbytes = [], 0
        rows = sorted_unique(rows, self.kind)
        return _Run(dict(group_ranges(rows)), rows.nbytes, len(rows), rows)


def _portions(runs: Sequence[_Run], load_bytes: int) -> Iterator[list[_Group]]:
    """Yields groups, in order, that are together about `load_bytes` long."""
    sizes: dict[_Group, int] = {}
    for run in runs:
        per_row = run.nbytes // max(1, run.rows) + 1
        for group, (begin, end) in run.groups.items():
            sizes[group] = sizes.get(group, 0) + (end - begin) * per_row
    portion: list[_Group] = []
    total = 0
    for group in sorted(sizes):
        if portion and total + sizes[group] > load_bytes:
            yield portion
            portion, total = [], 0
        portion.append(group)
        total += sizes[group]
    if portion:
        yield portion


def group_ranges(rows: pa.Table) -> Iterator[tuple[_Group, tuple[int, int]]]:
    """Yields each group of sorted rows, with the index of its first row and of the first row after it."""
    begins = [0, *(at + 1 for at in _changes(rows, GROUP))]
    names = rows.select(GROUP).take(pa.array(begins, pa.int64())).to_pylist() if len(rows) else []
    ends = [*begins[1:], len(rows)]
    for name, begin, end in zip(names, begins, ends, strict=False):
        yield (name["cluster_name"], name["broker_name"]), (begin, end)


def sorted_unique(rows: pa.Table, kind: str) -> pa.Table:
    """Returns the rows by key, one for each, in one chunk."""
    key = KEYS[kind]
    rows = rows.combine_chunks()
    order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key])
    if not pc.all(pc.greater(order[1:], order[:-1]), min_count=0).as_py():
        rows = rows.take(order).combine_chunks()
    return _unique(rows, kind)


def _unique(rows: pa.Table, kind: str) -> pa.Table:
    if len(rows) < 2:
        return rows
    fresh = _differs(rows, KEYS[kind])
    if pc.all(fresh).as_py():
        return rows
    again = pc.indices_nonzero(pc.invert(fresh))  # the row before has the same key
    before, after = rows.take(again), rows.take(pc.add(again, pa.scalar(1, pa.uint64())))
    differ = pc.indices_nonzero(pc.invert(equal_rows(before, after))).to_pylist()
    keep = pa.concat_arrays([pa.array([True]), fresh])
    if differ:
        keep = _resolved(rows, kind, keep, [again[at].as_py() + 1 for at in differ])
    return rows.filter(keep).combine_chunks()


def _resolved(rows: pa.Table, kind: str, keep: pa.Array, different: Sequence[int]) -> pa.Array:
    """Returns `keep` with the winner of each key instead of its first row. `different`: rows that are unlike
    the row before, which has the same key."""
    flags = keep.to_pylist()
    done = -1
    for at in different:
        if at < done:
            continue
        begin = at
        while not flags[begin]:
            begin -= 1
        done = at + 1
        while done < len(flags) and not flags[done]:
            done += 1
        values = [canonical(row, kind) for row in rows.slice(begin, done - begin).to_pylist()]
        flags[begin] = False
        flags[begin + max(range(len(values)), key=values.__getitem__)] = True
    return pa.array(flags, pa.bool_())


def canonical(row: dict[str, object], kind: str) -> bytes:
    """Returns a row as JSON, its fields in the order of the record."""
    return msgspec.json.encode([row[name] for name in FIELDS[kind] if name in row])


def _differs(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Returns, for each row but the first, whether it differs from the row before in one of these columns."""
    differs = None
    for name in reversed(names):
        column = rows[name].chunk(0)
        each = pc.not_equal(column[1:], column[:-1])
        differs = each if differs is None else pc.or_(differs, each)
    return differs


def _changes(rows: pa.Table, names: Sequence[str]) -> list[int]:
    if len(rows) < 2:
        return []
    found: list[int] = pc.indices_nonzero(_differs(rows, names)).to_pylist()
    return found
