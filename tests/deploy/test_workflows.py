"""The workflow of the git host runs what a developer runs."""

from typing import Any

import yaml

from tests.deploy.conftest import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"


def workflow(name: str) -> dict[Any, Any]:
    found = yaml.safe_load((WORKFLOWS / name).read_text())
    assert isinstance(found, dict)
    return found


def test_ci_runs_what_a_landing_runs() -> None:
    (job,) = workflow("ci.yml")["jobs"].values()
    commands = [step["run"].split()[-1] for step in job["steps"] if "run" in step]
    assert commands == [".ci/run", "docs"]
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o100
    (kept,) = (step["with"]["path"] for step in job["steps"] if "upload-artifact" in step.get("uses", ""))
    assert f"site_dir: {kept}\n" in (ROOT / "mkdocs.yml").read_text()


def test_no_workflow_may_write_to_the_repository() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        assert workflow(path.name)["permissions"] == {"contents": "read"}, path.name
