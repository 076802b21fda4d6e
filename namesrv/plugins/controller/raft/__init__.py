"""What makes pysyncobj safe to use: codec, journal, guard, links, snapshots. Nothing here imports it."""
