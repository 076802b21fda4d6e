"""Whole controllers in the virtual world: the plugin as it ships, over a model of the log or over the real
raft; brokers and an operator that ask them; faults; and checkers that see what goes over the network."""
