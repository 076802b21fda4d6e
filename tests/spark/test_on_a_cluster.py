"""The job on executors in processes of their own: nothing lives in the driver alone."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.spark.histories import random_history, write_telemetry
from tests.spark.programs import EMBEDDED, names

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(EMBEDDED in names(), reason="only Spark has executors"),
]

ROOT = Path(__file__).resolve().parent.parent.parent
EXECUTORS = "local-cluster[2,1,1024]"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FEW_ROWS = {
    "spark.executor.memory": "1g",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.extraJavaOptions": JVM,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Of a cluster for large jobs nothing but its executors is wanted here."""


def run(source: Path, out: Path, *more: str) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "cli.keelmq", "analytics", "run", "--window-ms", "60000"),
            *("--input", str(source), "--output", str(out), *more),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    return done.stdout


def rows_of(directory: Path) -> dict[str, list[dict[str, object]]]:
    """By folder: tables of runs have the time of the run in their path."""
    found: dict[str, list[dict[str, object]]] = {}
    for path in sorted(directory.rglob("*.parquet")):
        name = "/".join(part for part in path.parent.relative_to(directory).parts if "run=" not in part)
        found.setdefault(name, []).extend(pq.ParquetFile(path).read().to_pylist())
    return found


def test_executors_compute_what_the_driver_does(tmp_path: Path) -> None:
    source = tmp_path / "in"
    for seed in range(3):
        write_telemetry(source / f"node-{seed}" / "telemetry", random_history(seed).records())
    settings = [each for name, value in FEW_ROWS.items() for each in ("--conf", f"{name}={value}")]
    said = run(source, tmp_path / "cluster", "--master", EXECUTORS, *settings)
    assert said.startswith(f"{tmp_path / 'cluster' / 'current.json'}: 3 groups from ")
    run(source, tmp_path / "driver", "--master", "local[2]", *settings)
    for part in ("rollup", "tables"):
        assert rows_of(tmp_path / "cluster" / part) == rows_of(tmp_path / "driver" / part)
    assert rows_of(tmp_path / "driver" / "rollup")
