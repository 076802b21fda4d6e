"""Comparison of what replicas say. Pure."""
