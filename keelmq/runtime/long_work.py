"""LongWork: a thread that works for seconds beside the event loop calls it in between.

It lets the loop's thread run, and ends the work if the result is no longer awaited. The loop gets Python's
lock within the switch interval (program.let_the_loop_in), but not the CPU: where both threads have one, the
kernel lets the working one finish its time slice of 3 to 4 ms first, unless it sleeps.
"""

import time
from typing import Final

WORK_S: Final = 0.001
"""Between two sleeps."""
SLEEP_S: Final = 0.00005
"""With the wake-up, a tenth of WORK_S: the work takes that much longer."""


class GivenUp(Exception):
    """The result of this work is no longer awaited."""


class LongWork:
    """between() is for the working thread, give_up() for any other. is_shared: whether the event loop serves
    others meanwhile."""

    def __init__(self, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._is_given_up = False
        self._slept_s = 0.0

    def give_up(self) -> None:
        """The next between() raises GivenUp."""
        self._is_given_up = True

    def between(self) -> None:
        """To be called at least once per millisecond, where the work may be left."""
        if self._is_given_up:
            raise GivenUp("the work was given up, since its result is not needed any more")
        if self._is_shared and time.monotonic() - self._slept_s >= WORK_S:
            time.sleep(SLEEP_S)
            self._slept_s = time.monotonic()
