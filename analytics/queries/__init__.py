"""Every number of the analytics as a function DataFrame -> DataFrame of the Spark Connect API: no input or output,
no `sparkContext`, no clock."""
