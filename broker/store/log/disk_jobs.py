"""The disk work of a cut of the log, as jobs in an order in which a crash between any two is safe.

A part of the store that is cut changes its state in memory at once, in the event loop's thread, and returns
jobs that make the same change on disk, durably. A job may run in any thread, and may run again after an
OSError.
"""

from collections import deque
from collections.abc import Callable, Iterable

Job = Callable[[], object]


def run(jobs: Iterable[Job]) -> None:
    """Runs the jobs in order."""
    for job in jobs:
        job()


class DiskJobs:
    """A queue of jobs. A job that failed is the first one of the next run()."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """Appends jobs, to be run after the queued ones."""
        self._jobs.extend(jobs)

    def run(self) -> None:
        """Runs all jobs; the caller holds a lock. OSError: a job failed, it and those after it stay here."""
        while self._jobs:
            self._jobs[0]()
            self._jobs.popleft()
