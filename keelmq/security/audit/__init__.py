"""The audit log: a line of JSON for each request that administers, in rotated files of each program."""
