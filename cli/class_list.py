"""The run whose classes go into the archive of analytics/class_archive.py: python -m cli.class_list DIRECTORY

It writes Java's class path to DIRECTORY, which the archive must have been made with.
"""

import sys
from pathlib import Path

from analytics import job
from analytics.class_archive import CLASS_PATH
from analytics.fleet import files
from analytics.fleet.plan import KINDS, plan
from analytics.session import spark_session

FROM_TS = 1_767_225_600_000
EVERY_MS = 10_000


def main(work: Path) -> None:
    """Runs the job on an invented fleet, each group with another kind of incident."""
    fleet = plan(1, groups=len(KINDS), hours=1, kinds=KINDS, from_ts=FROM_TS)
    files.write_telemetry(fleet, work / "fleet", every_ms=EVERY_MS, progress=lambda _: None)
    with spark_session(quick=True) as spark:
        job.run(str(work / "fleet"), str(work / "out"))
        (found,) = spark.sql("SELECT reflect('java.lang.System', 'getProperty', 'java.class.path')").collect()
    (work / CLASS_PATH).write_text(found[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
