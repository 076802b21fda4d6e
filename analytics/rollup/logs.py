"""Of which log of the controllers a masterEpoch is: controllers that are built anew count from 1 again.

Only events name their log. A sample is of the newest log that has named its epoch by then, else of the first.
The epochs of a group's second log in an hour become larger than all of the first, and so on. A log without a
sample does not count: it is left over, or the brokers run on with the epochs of the log before. Lines of
older writers name no log. In an hour with one log, which is nearly every one, nothing changes.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from analytics.rollup.arrays import Bools, Ints, numbers_of, reduced, run_starts

LOG = 1 << 40
"""What is added to the epochs of each log; epochs are smaller."""


@dataclass(frozen=True)
class Views:
    """Masters in the groups' views of controllers' events, in any order."""

    gid: Ints
    ts: Ints
    log: pa.Array
    """log_id; "" or NULL: the line names none."""
    epoch: Ints
    is_elected: Bools
    """Whether this event began the epoch."""


class EpochLogs:
    """The logs of an hour. First add() all events, then ask, samples of masters first."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[str, tuple[int, dict[int, int]]]] = {}
        """By group and log: when it was seen first, and when each epoch of it was."""
        self._order: dict[int, list[str]] = {}
        """The logs of the groups that have several."""
        self._sampled: set[tuple[int, str]] = set()

    def add(self, views: Views) -> None:
        """Takes events of this hour."""
        logs = views.log.fill_null("").dictionary_encode()
        code, names = numbers_of(logs.indices), logs.dictionary.to_pylist()
        starts = run_starts(views.gid, code, views.epoch)
        firsts = reduced(np.minimum, views.ts, starts)
        for at, first in zip(starts.tolist(), firsts.tolist(), strict=True):
            name, group, epoch = names[code[at]], int(views.gid[at]), int(views.epoch[at])
            if not name or epoch <= 0:  # without a name, or without a master
                continue
            of_group = self._seen.setdefault(group, {})
            began, epochs = of_group.get(name, (first, {}))
            epochs[epoch] = min(first, epochs.get(epoch, first))
            of_group[name] = min(began, first), epochs
            if len(of_group) > 1:
                self._order[group] = sorted(of_group, key=lambda each: (of_group[each][0], each))

    def of_samples(self, gid: Ints, epoch: Ints, ts: Ints) -> Ints:
        """Returns the epochs of samples, larger ones for a newer log."""
        if not self._order:
            return epoch
        found = epoch.copy()
        starts = run_starts(gid, epoch)
        for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(gid)], strict=True):
            group, number = int(gid[start]), int(epoch[start])
            for place, name in enumerate(self._order.get(group, ())):
                first = self._seen[group][name][1].get(number)
                is_of_log = ts[start:end] >= first if first is not None else np.False_
                if np.any(is_of_log):
                    found[start:end][is_of_log] = number + place * LOG
                    self._sampled.add((group, name))
        return found

    def of_events(self, views: Views) -> tuple[Ints, Bools]:
        """Returns the epochs of events, larger ones for a newer log, and which events count."""
        counts = np.ones(len(views.gid), np.bool_)
        if not self._order:
            return views.epoch, counts
        found = views.epoch.copy()
        logs = views.log.fill_null("").to_pylist()
        for row, (group, name) in enumerate(zip(views.gid.tolist(), logs, strict=True)):
            order = self._order.get(group, ())
            if name in order and found[row] > 0:
                found[row] += order.index(name) * LOG
                counts[row] = (group, name) in self._sampled
        return found, counts
