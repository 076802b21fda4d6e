"""The whole way: a demo with real kills, the Spark job, the page. The page shows what the demo printed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keelmq.web.page_reader import PageFiles
from tests.cluster.test_demo import ROOT, demo

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.timeout(180)]

KILLED = re.compile(r"kill (\d+): SIGKILL to the master (\S+) ")
WAITED = re.compile(r"kill (\d+): the producer waited (\d+) ms")
COMMAND = re.compile(r"^report +\S+ keelmq report (\S+)$", re.MULTILINE)


def failovers_of(directory: Path) -> list[dict[str, Any]]:
    files = PageFiles(directory / "analytics")
    generation = files.generation()
    (group,) = generation.index.groups
    answer = files.group(generation, group.cluster_name, group.broker_name)
    found: list[dict[str, Any]] = json.loads(bytes(answer.group))["failovers"]
    return found


def test_the_report_shows_what_the_demo_printed(tmp_path: Path) -> None:
    with demo(tmp_path, "--kills", "2") as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, output + errors
    command = COMMAND.search(output)
    assert command, output
    directory = Path(command[1])
    done = subprocess.run(
        [sys.executable, "-m", "cli.keelmq", "report", str(directory)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    page = directory / "report.html"
    assert done.stdout.splitlines()[-1] == str(page)

    killed = [name for _, name in KILLED.findall(output)]
    waited = [int(ms) for _, ms in WAITED.findall(output)]
    failovers = sorted(failovers_of(directory), key=lambda each: int(each["ts"]))
    assert [each["killed_program"] for each in failovers] == killed
    assert [each["gap_ms"] for each in failovers] == waited
    for each in failovers:
        assert each["old_master"] != each["new_master"] and "is not active (connection_" in each["reason"]
        # what the cluster says it took is within what the producer saw; each part may be rounded up by 1 ms
        assert 0 <= each["detect_ms"] + each["elect_ms"] + each["ready_ms"] <= each["gap_ms"] + 3
    text = page.read_text()
    assert len(text) < 2_000_000 and all(name in text for name in killed)
