"""Every number of the analytics as a function DataFrame -> DataFrame of the Spark Connect API.

No input or output, no `sparkContext`, no clock.
"""
