"""The content of messages, for programs, tools and applications: compressed bodies, and unique keys."""
