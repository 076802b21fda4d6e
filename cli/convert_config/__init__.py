"""`keelmq convert-config`: files of RocketMQ become files of KeelMQ, with a report on each key."""
