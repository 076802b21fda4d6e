"""The parts around pysyncobj that make it safe: codec, journal, guard, links, snapshots. Never imports it."""
