"""The memory of a compaction, measured in a process of its own."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from analytics.compaction.manifest import folder_of
from keelmq.remoting.records import HaSample, ReplicaSample, encode_record
from tests.unit.analytics.compaction.model import HOUR, contents, run

MIB = 1 << 20
PANDAS_BYTES = 64 * MIB if find_spec("pandas") else 0
"""pyarrow loads pandas where it is installed (keelmq[analytics]; keelmq[compact] has none)."""
MEASURED = """
import json, sys
from analytics.compaction.compactor import compact
from analytics.compaction.scan import find_sources
(manifest,) = compact(find_sources([sys.argv[1]]), sys.argv[2], memory_bytes=int(sys.argv[3]))
# not ru_maxrss, which begins with the parent's
status = dict(line.split(":") for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) << 10
print(json.dumps([peak, manifest.counts["ha_sample"].rows]))
"""


def line(ts: int) -> bytes:
    replicas = tuple(
        ReplicaSample(broker_id=each, ack_offset=ts, lag_ms=ts % 7, in_sync=True) for each in (2, 3)
    )
    histogram = tuple((60 + at, 1 + ts % (at + 2)) for at in range(8))
    return encode_record(
        HaSample(
            ts=HOUR + ts,
            cluster_name="DefaultCluster",
            broker_name="broker-000",
            broker_id=1,
            role="master",
            master_epoch=1,
            max_offset=ts,
            confirm_offset=ts - ts % 100,
            sync_state_set=(1, 2, 3),
            replicas=replicas,
            lag_us=histogram,
            confirm_us=histogram,
        )
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_large_hour_fits_the_memory(tmp_path: Path) -> None:
    """360 000 lines, 200 MB: in 320 MiB, and the same bytes as with more memory."""
    folder = tmp_path / "in" / "ha_sample" / folder_of(HOUR)
    folder.mkdir(parents=True)
    data = b"".join(map(line, range(0, 3_600_000, 1_000)))
    for group in range(100):
        (folder / f"n{group}-1.jsonl").write_bytes(data.replace(b"broker-000", b"broker-%03d" % group))
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "in"), str(tmp_path / "out"), str(320 * MIB)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=240)
    peak, rows = json.loads(done.stdout)
    assert rows == 360_000
    assert peak < 320 * MIB + PANDAS_BYTES, f"{peak / MIB:.0f} MiB"
    run(tmp_path / "in", tmp_path / "out2", memory_bytes=8 << 30)
    assert contents(tmp_path / "out") == contents(tmp_path / "out2")
