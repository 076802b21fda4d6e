"""Whole groups with authentication and authorization on, and an attacker in their network."""
