"""Errors that stop an analysis and that a user can correct: one line says what, where and what to do next."""


class AnalyticsError(Exception):
    """Bad input directory, output that cannot be written, no Java, no PySpark."""
