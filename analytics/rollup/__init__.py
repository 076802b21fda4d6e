"""Roll-ups: an hour's tables of minutes and of the hour, from that hour's compacted rows alone.

Functions here take and give DataFrames; only `store` and `run` touch files.
"""
