"""Spark schemas and records are one definition: a field that is renamed must fail here, not on a page."""

import pytest
from pyspark.sql import types as spark

from analytics.schema import CORRUPT, default_values, required_fields, schema_of
from keelmq.remoting.records import RECORDS, ControllerEvent, HaSample, Record, RoleChange, SendGap

pytestmark = pytest.mark.spark

WHO = ["record", "v", "ts", "cluster_name", "broker_name"]

READ_BY_NAME: dict[type[Record], set[str]] = {
    HaSample: {
        "role", "max_offset", "confirm_offset", "lag_ms", "lag_ms_max", "lag_bytes_max",
        "min_in_sync_replicas", "replicas",
    },
    RoleChange: {"broker_id", "role", "master_epoch"},
    ControllerEvent: {
        "event_id", "type", "controller_id", "before", "after", "refused", "reason", "unclean",
        "last_heartbeat_ts", "detected_ts",
    },
    SendGap: {"broker_id", "program", "started_ts", "gap_ms"},
}  # fmt: skip
"""The columns that the queries name."""


@pytest.mark.parametrize("record", RECORDS)
def test_each_column_that_is_read_exists(record: type[Record]) -> None:
    names = schema_of(record).names
    assert names[: len(WHO)] == WHO
    assert names[-1] == CORRUPT
    assert set(names) - {CORRUPT} == {"record", *record.__struct_fields__}
    assert READ_BY_NAME[record] <= set(names)


def test_types() -> None:
    schema = schema_of(ControllerEvent)
    assert schema["event_id"].dataType == spark.LongType()
    assert schema["unclean"].dataType == spark.BooleanType()
    assert schema["refused"].dataType == spark.StringType()
    after = schema["after"].dataType
    assert isinstance(after, spark.StructType)
    assert after["master_broker_id"].dataType == spark.LongType()
    assert after["sync_state_set"].dataType == spark.ArrayType(spark.LongType())
    replicas = schema_of(HaSample)["replicas"].dataType
    assert isinstance(replicas, spark.ArrayType)
    assert isinstance(replicas.elementType, spark.StructType)
    assert replicas.elementType.names == ["broker_id", "ack_offset", "lag_ms", "in_sync"]


def test_what_a_line_must_have() -> None:
    assert required_fields(SendGap) == [
        "ts", "cluster_name", "broker_name", "broker_id", "program", "started_ts", "gap_ms",
    ]  # fmt: skip
    assert default_values(HaSample)["lag_ms_max"] == 0
    assert "sync_state_set" not in default_values(HaSample)


def test_no_two_records_differ_in_the_type_of_a_field() -> None:
    """A table that joins them would."""
    types: dict[str, object] = {}
    for record in RECORDS:
        for field in schema_of(record):
            assert types.setdefault(field.name, field.dataType) == field.dataType
