"""The documented command of spark-submit, with the Spark of .venv-spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from analytics.engine.sessions import SPARK
from cli.spark_submit import search_from
from tests.spark.engine import ENGINE, FEW_ROWS, JVM
from tests.spark.histories import random_history, write_telemetry
from tests.spark.jdk import provide_java

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "cli" / "spark_submit.py"


def test_the_packages_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python puts the folder of a program in front, and cli/keelmq.py is not the package keelmq."""
    monkeypatch.setattr(sys, "path", [str(PROGRAM.parent), "/elsewhere"])
    search_from(PROGRAM)
    assert sys.path == [str(ROOT), "/elsewhere"]


def test_help_without_spark() -> None:
    """The file runs as it is, wherever the working directory is."""
    done = subprocess.run(
        [sys.executable, PROGRAM, "run", "--help"], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "--remote" in done.stdout, done.stderr


@pytest.mark.skipif(ENGINE != SPARK, reason="needs spark-submit")
@pytest.mark.slow
def test_it_computes_in_the_spark_that_is_started(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "in" / "telemetry", random_history(1).records())
    provide_java(tmp_path)
    command = [Path(sys.executable).with_name("spark-submit"), "--master", "local[2]"]
    settings = FEW_ROWS | {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": JVM}
    command += [each for name, value in settings.items() for each in ("--conf", f"{name}={value}")]
    command += [PROGRAM, "run", "--input", tmp_path / "in", "--window-ms", "60000"]
    done = subprocess.run(
        [*command, "--output", tmp_path / "out"], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4_000:]
    said = done.stdout + done.stderr  # spark-submit joins the two of the program
    assert f"{tmp_path}/out/current.json: 1 groups from " in said
    assert "analytics: the Spark session that is there, master local[2]" in said
