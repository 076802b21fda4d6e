"""PySpark: from the telemetry records (keelmq/remoting/records.py) to lag, SyncStateSet and fail-over tables.

job.py reads and writes; everything else is DataFrame -> DataFrame, without Python UDFs.
"""
