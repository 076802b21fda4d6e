"""Handlers of the data path: sends, pulls, retries, replies, queries. broker/app/handlers.py binds them."""
