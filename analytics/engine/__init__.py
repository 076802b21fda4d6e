"""Where the Spark session of a run comes from."""
