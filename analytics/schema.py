"""The Spark schema of each record, derived from its msgspec Struct in keelmq.remoting.records.

One definition: a field that is renamed there is renamed here, and a test says so before a page is empty.
"""

import msgspec
from msgspec import inspect
from pyspark.sql import types as spark

from keelmq.remoting.records import Record

GROUP = ("cluster_name", "broker_name")
"""The columns that name a broker group."""

CORRUPT = "_corrupt"
"""The text of a line that is not a record; NULL for all others."""

_SIMPLE: dict[type[inspect.Type], spark.DataType] = {
    inspect.IntType: spark.LongType(),
    inspect.StrType: spark.StringType(),
    inspect.BoolType: spark.BooleanType(),
    inspect.LiteralType: spark.StringType(),
}


def schema_of(record: type[Record]) -> spark.StructType:
    """Returns the fields in the order of a line: the tag ("record") first, the column for corrupt lines
    last."""
    tag = record.__struct_config__.tag_field
    assert tag is not None
    fields = [spark.StructField(tag, spark.StringType()), *_fields(record)]
    return spark.StructType([*fields, spark.StructField(CORRUPT, spark.StringType())])


def required_fields(record: type[Record]) -> list[str]:
    """Returns the fields without a default; a line that lacks one is not a record."""
    return [field.encode_name for field in msgspec.structs.fields(record) if field.required]


def default_values(record: type[Record]) -> dict[str, object]:
    """Returns the defaults for lines of older writers, which lack newer fields. None and () are left out."""
    return {
        field.encode_name: field.default
        for field in msgspec.structs.fields(record)
        if not field.required and isinstance(field.default, int | str)
    }


def _fields(struct: type[msgspec.Struct]) -> list[spark.StructField]:
    described = inspect.type_info(struct)
    assert isinstance(described, inspect.StructType)
    return [spark.StructField(field.encode_name, _spark_type(field.type)) for field in described.fields]


def _spark_type(described: inspect.Type) -> spark.DataType:
    match described:
        case inspect.UnionType(types=types):
            (only,) = [each for each in types if not isinstance(each, inspect.NoneType)]
            return _spark_type(only)
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return spark.ArrayType(_spark_type(item))
        case inspect.StructType(cls=struct):
            return spark.StructType(_fields(struct))
    return _SIMPLE[type(described)]
