"""`keelmq chaos`: a cluster of real processes under traffic and faults, one history of it, and checkers."""
