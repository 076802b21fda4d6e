"""Names that brokers accept. Pure. Source: RocketMQ 5.3.3 Validators.checkGroup."""

import re
from typing import Final

from keelmq.client.core.checks import check_text

GROUP_BYTES_MAX: Final = 255
LEGAL_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+\Z")


def check_group(group: str) -> str:
    """Returns the name of a producer or consumer group. ValueError: no broker accepts it; a consumer with
    this name would wait for messages for ever. TypeError: it is no text."""
    check_text("group", group)
    if not group:
        raise ValueError("the name of the group is empty")
    if len(group.encode("utf-8", "replace")) > GROUP_BYTES_MAX:
        raise ValueError(f"the name of the group has more than {GROUP_BYTES_MAX} bytes: {group[:40]!r}...")
    if not LEGAL_NAME.match(group):
        raise ValueError(
            f"the name of the group has illegal characters, allowed are A-Z a-z 0-9 _ - % |: {group!r}"
        )
    return group
