"""Page files, which name servers serve, from roll-ups and run tables."""

from analytics.pages.writer import write_pages

__all__ = ["write_pages"]
