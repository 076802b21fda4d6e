"""decode_lines() against decode_record(), line by line."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analytics.compaction import decode as module
from analytics.compaction.columns import KINDS, SCHEMAS, ha_rows, slave_rows, tables_of
from analytics.compaction.decode import BAD_LISTED_MAX, decode_lines
from keelmq.remoting.records import ClockSample, HaSample, Record, ReplicaSample, encode_record
from tests.support.slices import share
from tests.unit.analytics.compaction import model

RECORDS = model.records_at(model.times())
DAMAGE = st.sampled_from(
    [
        b"", b"[]", b"{}", b"null", b"\xff", b"{", b"}", b" ", b"\r", b"\0\0\0",
        b'{"record":"ha_sample"}', b'{"record":"ha_sample","v":1,"ts":', b'{"record":"other","v":1,"ts":1}',
    ]
)  # fmt: skip
CLOCK = ClockSample(
    ts=model.HOUR,
    cluster_name="c",
    broker_name="b",
    broker_id=1,
    controller_id="n1",
    offset_ms=0,
    heartbeats=1,
)


@st.composite
def damaged_lines(draw: st.DrawFn) -> bytes:
    """Returns lines; some are cut, glued together, broken in two, or from another file."""
    out = b""
    for record in draw(st.lists(RECORDS, max_size=6)):
        line = encode_record(record)
        match draw(st.integers(0, 9)):
            case 0:
                line = line[: draw(st.integers(0, len(line)))]
            case 1:
                line = line.replace(b",", b",\n", 1)
            case 2:
                line = line[:-1]
            case 3:
                line = draw(DAMAGE) + b"\n" + line
            case 4:
                line = line.replace(b'"v":1', b'"v":2').replace(b'"ts":', b'"x":[1,{}],"ts":')
            case 5:
                line = line.replace(b"00", b"99999999999999999999", 1)
        out += line
    return out


def model_of(data: bytes, kind: str) -> tuple[list[Record], list[int]]:
    """Returns the good records, and the offsets of bad lines."""
    records, bad, offset = [], [], 0
    for line in data.split(b"\n")[:-1]:
        record = model.good(line, kind)
        if record is None:
            bad.append(offset)
        else:
            records.append(record)
        offset += len(line) + 1
    return records, bad


@settings(max_examples=share(400), deadline=None)
@given(damaged_lines(), st.sampled_from(KINDS))
def test_decodes_what_decode_record_does(data: bytes, kind: str) -> None:
    records, bad = model_of(data, kind)
    decoded = decode_lines(data, kind, first_offset=7)
    assert decoded.consumed == data.rfind(b"\n") + 1
    assert [line.offset - 7 for line in decoded.bad_lines] == bad
    assert decoded.bad.total() == len(bad)
    assert len(decoded.rows) == len(records)
    found = {name: table.to_pylist() for name, table in tables_of(kind, decoded.rows).items()}
    wanted = model.projected({name: [] for name in found} | _rows_of(records, found))
    order = repr
    assert {name: sorted(rows, key=order) for name, rows in found.items()} == {
        name: sorted(rows, key=order) for name, rows in wanted.items()
    }


def _rows_of(
    records: list[Record], names: dict[str, list[dict[str, object]]]
) -> dict[str, list[dict[str, object]]]:
    """Returns the rows of each record: of model.expected() for it alone."""
    rows: model.Rows = {name: [] for name in names}
    for record in records:
        for name, some in model.expected([record]).items():
            if some:
                rows[name] += some
    return rows


@settings(max_examples=share(100), deadline=None)
@given(st.lists(RECORDS, max_size=20))
def test_rows_of_parts_are_rows_of_lines(records: list[Record]) -> None:
    """ha_rows() and slave_rows() undo tables_of()."""
    samples = [record for record in records if isinstance(record, HaSample)]
    unique = {(each.cluster_name, each.broker_name, each.ts, each.broker_id): each for each in samples}
    data = b"".join(encode_record(unique[key]) for key in sorted(unique))
    rows = decode_lines(data, "ha_sample").rows
    tables = tables_of("ha_sample", rows)
    again = pa.concat_tables(
        [ha_rows(tables["master_sample"], tables["replica_sample"]), slave_rows(tables["slave_sample"])]
    )
    assert again.schema == SCHEMAS["ha_sample"] == rows.schema
    assert again.to_pylist() == rows.to_pylist()


def test_lines_that_msgspec_takes_together() -> None:
    """Two records on one line and a blank line; a record of two lines."""
    line = encode_record(CLOCK)
    glued = decode_lines(line[:-1] + line + b"\n" + line, "clock_sample")
    assert [bad.offset for bad in glued.bad_lines] == [0, 2 * len(line) - 1] and len(glued.rows) == 1
    broken = decode_lines(line + line.replace(b',"v"', b',\n"v"') + line, "clock_sample")
    assert broken.bad == {"undecodable": 2} and len(broken.rows) == 2


def test_replicas_are_sorted_and_unique() -> None:
    replicas = tuple(
        ReplicaSample(broker_id=each, ack_offset=at, lag_ms=0, in_sync=True)
        for at, each in enumerate((3, 1, 3))
    )
    master = HaSample(
        ts=1,
        cluster_name="c",
        broker_name="b",
        broker_id=2,
        role="master",
        master_epoch=1,
        max_offset=9,
        confirm_offset=9,
        replicas=replicas,
    )
    tables = tables_of("ha_sample", decode_lines(encode_record(master), "ha_sample").rows)
    found = [(row["replica_id"], row["ack_offset"]) for row in tables["replica_sample"].to_pylist()]
    assert found == [(1, 1), (3, 2)]


def test_half_a_last_line() -> None:
    line = encode_record(CLOCK)
    growing = decode_lines(line + line[:-9], "clock_sample")
    assert (len(growing.rows), growing.consumed, growing.bad_lines) == (1, len(line), [])
    closed = decode_lines(line + line[:-9], "clock_sample", closed=True)
    assert (len(closed.rows), closed.consumed) == (1, 2 * len(line) - 9)
    assert [(bad.offset, bad.reason) for bad in closed.bad_lines] == [(len(line), "incomplete")]
    assert len(decode_lines(line + line[:-1], "clock_sample", closed=True).rows) == 2


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"v":1', b'"v":2', "newer_version"),
        (b'"ts":1767225600000', b'"ts":253402300800000', "ts"),
        (b'"ts":1767225600000', b'"ts":-1', "ts"),
        (b'"heartbeats":1', b'"heartbeats":9223372036854775808', "number_too_large"),
        (b'"heartbeats":1', b'"heartbeats":"1"', "undecodable"),
        (b"clock_sample", b"send_gap", "undecodable"),
        (b"clock_sample", b"of_a_later_release", "undecodable"),
        (b'"record":"clock_sample",', b"", "undecodable"),
    ],
)
def test_reasons(old: bytes, new: bytes, reason: str) -> None:
    line = encode_record(CLOCK)
    assert old in line
    decoded = decode_lines(line + line.replace(old, new) + line, "clock_sample")
    assert [(bad.offset, bad.reason) for bad in decoded.bad_lines] == [(len(line), reason)]
    assert len(decoded.rows) == 2


@pytest.mark.parametrize(
    "pairs", [b"[[-1,1]]", b"[[0,1],[504,1]]", b"[[3,-1]]"], ids=["below", "above", "a negative count"]
)
@pytest.mark.parametrize("name", [b"lag_us", b"confirm_us"])
def test_a_histogram_that_is_not_possible(name: bytes, pairs: bytes) -> None:
    """It would end every later run of the job: buckets are added up by their place."""
    master = HaSample(
        ts=1, cluster_name="c", broker_name="b", broker_id=2, role="master", master_epoch=1, max_offset=9,
        confirm_offset=9,
    )  # fmt: skip
    line = encode_record(master)
    decoded = decode_lines(line + line.replace(b'"%b":[]' % name, b'"%b":%b' % (name, pairs)), "ha_sample")
    assert decoded.bad == {"number_too_large": 1} and len(decoded.rows) == 1


def test_a_record_in_the_wrong_folder() -> None:
    assert decode_lines(encode_record(CLOCK), "send_gap").bad == {"wrong_record": 1}


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_BYTES_MAX", 300)
    long = b'{"x":"' + b"x" * 300 + b'"}\n'
    decoded = decode_lines(long + encode_record(CLOCK), "clock_sample")
    assert decoded.bad == {"line_too_long": 1} and len(decoded.rows) == 1


def test_an_older_line_has_the_defaults() -> None:
    line = (
        b'{"record":"ha_sample","v":1,"ts":5,"cluster_name":"c","broker_name":"b","broker_id":1,"role":"master",'
        b'"master_epoch":1,"max_offset":2,"confirm_offset":1}\n'
    )
    (row,) = decode_lines(line, "ha_sample").rows.to_pylist()
    assert row["min_in_sync_replicas"] == 1 and row["lag_us"] == row["replicas"] == []
    assert decode_lines(line.replace(b'"v":1,', b""), "ha_sample").rows.to_pylist() == [row]


def test_bad_lines_are_listed_up_to_a_number() -> None:
    decoded = decode_lines(b"[]\n" * 100, "ha_sample")
    assert decoded.bad == {"undecodable": 100} and len(decoded.bad_lines) == BAD_LISTED_MAX
