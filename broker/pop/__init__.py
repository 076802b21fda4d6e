"""POP consumption: messages are handed out for a while, and come again unless they are acknowledged.

The broker keeps the progress: clients are stateless, and any number of them share a queue. What is out, and
what came back, is written to the revive log, so every replica knows it.
"""
