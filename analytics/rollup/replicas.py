"""What a group's master knows of its replicas per window."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.rollup.arrays import Ints, arrow, bools_of, ints, numbers_of, reduced, run_starts
from analytics.tables import GROUP

HOUR_MS = 3_600_000
_AT_BITS = 12
_LEAST = -(1 << 63)

SAMPLE_COLUMNS = (
    *GROUP, "ts", "broker_id", "master_epoch", "max_offset", "replica_id", "ack_offset", "lag_ms", "in_sync",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplicaCounts:
    """Windows of replicas in ascending order of (gid, at), each once.

    `last`: orders the samples of a replica; last_ack is of the last one.
    """

    gid: Ints
    at: Ints
    replica: Ints
    samples: Ints
    bytes_max: Ints
    ms_max: Ints
    samples_out: Ints
    last: Ints
    last_ack: Ints

    def __len__(self) -> int:
        return len(self.gid)

    @classmethod
    def of_samples(cls, batch: pa.RecordBatch, gid: Ints, base_ms: int) -> "ReplicaCounts":
        """Counts rows of replica_sample of one hour, of current masters, in any order."""
        ts = ints(batch, "ts")
        is_out = bools_of(pc.invert(batch.column("in_sync")))
        ack = ints(batch, "ack_offset")
        return cls(
            gid,
            ts % HOUR_MS // base_ms,
            ints(batch, "replica_id"),
            np.ones(len(gid), np.int64),
            np.maximum(ints(batch, "max_offset") - ack, 0),
            ints(batch, "lag_ms"),
            is_out.astype(np.int64),
            ts * 1024 + ints(batch, "broker_id") % 1024,
            ack,
        )._summed()

    @classmethod
    def merge(cls, counts: Sequence["ReplicaCounts"]) -> "ReplicaCounts":
        """Returns the sum; windows may be in several of them."""
        names = [each.name for each in fields(cls)]
        return cls(*(np.concatenate([getattr(one, name) for one in counts]) for name in names))._summed()

    def widened(self, factor: int) -> "ReplicaCounts":
        """Returns windows that are `factor` times as wide."""
        return self if factor == 1 else replace(self, at=self.at // factor)._summed()

    def rows(self) -> pa.RecordBatch:
        """Returns gid, at and the columns of the table."""
        columns = {
            "gid": self.gid, "at": self.at, "broker_id": self.replica, "samples": self.samples,
            "bytes_max": self.bytes_max, "ms_max": self.ms_max, "samples_out": self.samples_out,
            "last_ack_offset": self.last_ack, "last_ts": self.last // 1024,
        }  # fmt: skip
        return pa.RecordBatch.from_pydict({name: arrow(values) for name, values in columns.items()})

    def _summed(self) -> "ReplicaCounts":
        """Returns the sums of windows with equal (gid, at, replica); self may have each many times."""
        replicas = arrow(self.replica).dictionary_encode()
        window = (self.gid << _AT_BITS) + self.at
        key = window * max(len(replicas.dictionary), 1) + numbers_of(replicas.indices)
        order = np.argsort(key)
        starts = run_starts(key[order])
        lengths = np.diff(np.append(starts, len(key)))
        last = reduced(np.maximum, self.last[order], starts)
        is_last = self.last[order] == np.repeat(last, lengths)

        def highest(values: Ints) -> Ints:
            return reduced(np.maximum, values[order], starts)

        return ReplicaCounts(
            gid=self.gid[order][starts],
            at=self.at[order][starts],
            replica=self.replica[order][starts],
            samples=reduced(np.add, self.samples[order], starts),
            bytes_max=highest(self.bytes_max),
            ms_max=highest(self.ms_max),
            samples_out=reduced(np.add, self.samples_out[order], starts),
            last=last,
            last_ack=reduced(np.maximum, np.where(is_last, self.last_ack[order], _LEAST), starts),
        )
