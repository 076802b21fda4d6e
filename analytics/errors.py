"""What stops an analysis and a person can mend: one line that says what, where and what to do next."""


class AnalyticsError(Exception):
    """Bad input directory, output that cannot be written, no Java, no PySpark."""
