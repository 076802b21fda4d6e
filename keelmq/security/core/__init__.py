"""The decisions, without I/O, clock or random numbers: time comes in as now_ms, nonces as arguments."""
