"""What makes pysyncobj safe to use: codec, journal, guard, channel, transport, snapshots. None imports pysyncobj."""
