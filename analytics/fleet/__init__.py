"""Fleets that do not exist, with incidents in them, to test and measure analytics."""
