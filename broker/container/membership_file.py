"""MembershipFile: stores which brokers requests added to a container, or removed from it."""

import asyncio
from pathlib import Path

from broker.container.core.members import BadMembers, Members, parse_members
from keelmq.runtime.config import ConfigError
from keelmq.runtime.durable_file import replace_file


class MembershipFile:
    """Written in a thread, one change at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = asyncio.Lock()

    async def load(self) -> Members:
        """Returns the stored members; without a file, none. Raises ConfigError: a start must not omit the
        brokers that were added, or include those that were removed."""
        try:
            return parse_members(await asyncio.to_thread(self.path.read_text, "utf-8"))
        except FileNotFoundError:
            return Members()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError(f"containerStatePath: cannot read {self.path}: {reason}") from error
        except BadMembers as error:
            raise ConfigError(
                f"containerStatePath: {self.path} is damaged ({error}); the previous version is "
                f"{self.path.name}.bak; without the file the brokers of brokerConfigPaths start"
            ) from error

    async def save(self, members: Members) -> None:
        """Replaces the file, durably. Raises OSError."""
        async with self._lock:
            await asyncio.to_thread(replace_file, self.path, members.to_json().encode())
