"""Structured Streaming: telemetry files while they grow, to tables and pages some seconds old."""
