"""Killing a broker in the middle of writing, again and again."""
