"""Compaction: from files of JSON lines to one sorted Parquet file per hour and table. pyarrow and msgspec; no
Spark, no Java."""
