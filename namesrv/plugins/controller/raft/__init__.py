"""What makes pysyncobj safe: codec, journal, guard, links and snapshots. Never imports pysyncobj."""
