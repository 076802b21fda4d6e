"""Decisions of clients, as pure functions: queue assignment, offset windows, choice of the next queue."""
