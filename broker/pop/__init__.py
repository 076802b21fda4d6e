"""Pop consumption: a popped message is invisible for a time, and delivered again unless it is acknowledged.

The broker keeps the progress: clients are stateless, and any number of them share a queue. Checkpoints of
popped messages and their acknowledgements are written to the revive log, so every replica has them.
"""
