"""Decisions of clients, pure: which queues are mine, how far an offset may move, which queue comes next."""
