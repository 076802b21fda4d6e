"""An output as analysts read it: tables in any session of Spark, one row per key, with comments."""
