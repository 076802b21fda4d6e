"""The limits of messages and calls, which clients are told or their requests are checked against. Pure."""

from typing import Final

import msgspec

HOUR_MS: Final = 3_600_000
BATCH_MAX: Final = 32
"""Messages of one receive, and of one send."""
FRAME_ROOM_BYTES: Final = 65_536
"""What the Node client's limit of 4 MiB for a frame leaves for everything besides the body."""
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10_000, 12 * HOUR_MS
RECOVERY_MS_MAX: Final = HOUR_MS
NODE_POLL_MS: Final = 5_000
"""Long polling of Node: its shutdown waits for the polls."""


class Limits(msgspec.Struct, frozen=True):
    """Those that an operator can set, by RocketMQ's names for a proxy's configuration."""

    max_message_size: int = 4 << 20
    user_property_max_num: int = 128
    max_user_property_size: int = 16 << 10
    max_message_group_size: int = 64
    max_delay_ms: int = 24 * HOUR_MS
    poll_ms_min: int = 5_000
    poll_ms_max: int = 20_000

    def body_bytes_max(self, *, is_node: bool) -> int:
        """Bytes of a body that a client is told: Node could send a larger one and never receive it."""
        return self.max_message_size - FRAME_ROOM_BYTES * is_node

    def poll_ms(self, asked_ms: int, left_ms: int | None) -> int:
        """Returns how long a receive waits for messages. left_ms: until the call's deadline; None: it has
        none."""
        asked_ms = min(max(asked_ms, self.poll_ms_min), self.poll_ms_max)
        return asked_ms if left_ms is None else max(min(asked_ms, left_ms), 0)
