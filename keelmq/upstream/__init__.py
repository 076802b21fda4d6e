"""The names of RocketMQ's newest release, and what each of its configuration keys means here, as data."""
