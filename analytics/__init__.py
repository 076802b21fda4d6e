"""From telemetry records (keelmq/remoting/records.py) to lag, SyncStateSet and fail-over tables, and pages.

compaction/   JSON lines to Parquet          pyarrow, no JVM
rollup/, and the modules beside it           Spark: DataFrame -> DataFrame; job.py ties them together
pages/        tables to page files           pyarrow
stream/       the last minutes, live         Spark Structured Streaming
fleet/        invented fleets, for demos and tests
"""
