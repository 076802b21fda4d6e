"""compose.monitoring.yaml: every program of compose.yaml is scraped, and every mounted file is there."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_image import COMPOSE_DIRECTORY, services

MONITORING = COMPOSE_DIRECTORY / "monitoring"


def added() -> dict[str, Any]:
    text = (COMPOSE_DIRECTORY / "compose.monitoring.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_every_program_is_scraped() -> None:
    (job,) = yaml.safe_load((MONITORING / "prometheus.yml").read_text())["scrape_configs"]
    (targets,) = (each["targets"] for each in job["static_configs"])
    http_of = {"mqnamesrv": 19876, "mqbroker": 20911}
    assert targets == [f"{name}:{http_of[each['command'][0]]}" for name, each in services().items()]
    assert job["job_name"] == "keelmq"


def test_every_mounted_file_is_there() -> None:
    volumes = (volume for each in added()["services"].values() for volume in each.get("volumes", []))
    mounts = [each.split(":") for each in volumes]
    files = [(COMPOSE_DIRECTORY / source, target) for source, target, *_ in mounts if source.startswith(".")]
    assert len(files) == 5 and all(path.exists() for path, _ in files)
    assert {source for source, *_ in mounts if not source.startswith(".")} == added()["volumes"].keys()
    (provider,) = yaml.safe_load((MONITORING / "dashboards.yaml").read_text())["providers"]
    assert (COMPOSE_DIRECTORY / "../grafana", provider["options"]["path"]) in files
    assert added()["services"].keys() - {"prometheus", "grafana"} <= services().keys()
    (source,) = yaml.safe_load((MONITORING / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090" and source["type"] == "prometheus"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    config = (MONITORING / "prometheus.yml").read_text()
    shutil.copy(COMPOSE_DIRECTORY / "../prometheus/rules.yaml", tmp_path)
    (path := tmp_path / "prometheus.yml").write_text(config.replace("/etc/prometheus/", f"{tmp_path}/"))
    done = subprocess.run(["promtool", "check", "config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "rules found" in done.stdout, done.stdout + done.stderr
