"""Helpers that tests of several folders use. No tests are in here."""
