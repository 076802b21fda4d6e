"""Comparison of replicas' answers. Pure."""
