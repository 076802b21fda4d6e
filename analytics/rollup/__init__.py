"""Roll-ups: an hour's tables of minutes and of the hour, from that hour's compacted rows alone.

`hour` and `filled` are pure functions of Arrow tables; `files` calls them in Python workers, and `events` is
made of queries. Only `files`, `store` and `run` touch files.
"""
