"""Absences: brokers that receipt handles name and that name servers do not know. Pure.

Name servers forget a group of brokers whose members are all down, so their answer does not say whether it
comes back. A handle of such a group is retried until the group has been absent for GONE_MS and the message is
visible anyway: push consumers would repeat their acknowledgements for ever.
"""

from typing import Final

import msgspec

from proxy.core.handles import Receipt

GONE_MS: Final = 600_000
FORGOTTEN_MS: Final = 60_000
"""If nobody asks for so long, the broker may have been back meanwhile. Push consumers ask every second."""
NAMES_MAX: Final = 1_000
"""Handles may name anything: above this the oldest absences begin anew."""


class _Absence(msgspec.Struct):
    since_ms: int
    asked_ms: int


class Absences:
    def __init__(self) -> None:
        self._absent: dict[str, _Absence] = {}

    def __len__(self) -> int:
        return len(self._absent)

    def answered(self, broker_name: str) -> None:
        """The broker is there."""
        self._absent.pop(broker_name, None)

    def is_gone(self, receipt: Receipt, *, now_ms: int, wall_ms: int) -> bool:
        """Name servers do not know the broker of a handle. Returns whether it is useless to try again."""
        absence = self._absent.get(receipt.broker_name)
        if absence is None or absence.asked_ms + FORGOTTEN_MS < now_ms:
            self._absent.pop(receipt.broker_name, None)
            if len(self._absent) >= NAMES_MAX:
                del self._absent[next(iter(self._absent))]
            absence = self._absent[receipt.broker_name] = _Absence(now_ms, now_ms)
        absence.asked_ms = now_ms
        handle = receipt.handle
        return absence.since_ms + GONE_MS <= now_ms and handle.pop_ms + handle.invisible_ms <= wall_ms
