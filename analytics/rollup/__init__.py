"""Roll-ups: an hour's tables of minutes and of the hour, from that hour's compacted rows alone.

`tables` has a query for each table; `run` computes those of new and changed hours. Only `store` and `run`
touch files.
"""
