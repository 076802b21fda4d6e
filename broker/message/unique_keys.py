"""The UNIQ_KEYs of messages that a client sent without one, in RocketMQ's layout."""

from keelmq.remoting.messages.unique_keys import UniqueKeys

__all__ = ["UniqueKeys"]
