"""The workflows of the git host: what they run exists, and they publish what the checkout has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
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
        found = workflow(path.name)
        assert found["permissions"] == {"contents": "read"}, path.name
        of_jobs = [job.get("permissions", {}) for job in found["jobs"].values()]
        assert {each.get("contents", "read") for each in of_jobs} == {"read"}, path.name


def test_a_release_passes_what_a_landing_passes() -> None:
    """The same steps, and nothing is built or published before them."""
    jobs = workflow("release.yml")["jobs"]
    (landing,) = workflow("ci.yml")["jobs"].values()

    def run(job: dict[Any, Any]) -> list[object]:
        return [
            step.get("run", step.get("uses")) for step in job["steps"] if "upload" not in step.get("uses", "")
        ]

    assert run(jobs["test"]) == run(landing)
    for name in jobs.keys() - {"version", "test"}:
        assert "test" in ancestors(jobs, name), name
    assert ancestors(jobs, "test") == {"version"}
    assert {"sources", "wheels", "images", "chart"} <= ancestors(jobs, "pypi"), "it cannot be taken back"


def ancestors(jobs: dict[str, Any], name: str) -> set[str]:
    needs = jobs[name].get("needs", [])
    found = {needs} if isinstance(needs, str) else set(needs)
    return found.union(*(ancestors(jobs, each) for each in found))


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_what_a_workflow_names_exists(path: Path) -> None:
    """Files of the checkout, make targets, jobs and their outputs; every action has a version."""
    jobs = workflow(path.name)["jobs"]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for name, job in jobs.items():
        assert ancestors(jobs, name) <= jobs.keys() and job["timeout-minutes"] > 0
        for step in job["steps"]:
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"]), step["uses"]
                continue
            words = step["run"].split()
            files = [word for word in words if re.match(r"\.ci/|tools/|requirements/|deploy/", word)]
            assert [each for each in files if not (ROOT / each).exists()] == []
            made = [words[at + 1] for at, word in enumerate(words) if word == "make"]
            assert set(made) <= set(targets)
    for job, output in re.findall(r"needs\.(\w+)\.outputs\.(\w+)", path.read_text()):
        assert output in jobs[job]["outputs"]


def test_every_image_is_published_for_both_architectures() -> None:
    images = workflow("release.yml")["jobs"]["images"]
    matrix = images["strategy"]["matrix"]["include"]
    files = {
        path for path in (ROOT / "deploy" / "docker").glob("Dockerfile*") if path.suffix != ".dockerignore"
    }
    assert {ROOT / each["file"] for each in matrix} == files
    for each in matrix:
        text = (ROOT / each["file"]).read_text()
        assert f"-t {each['image']}:" in text and "ARG VERSION=" in text and "ARG REVISION=" in text
    (build,) = (step["with"] for step in images["steps"] if "build-push" in step.get("uses", ""))
    assert build["platforms"] == "linux/amd64,linux/arm64"


def test_a_registry_is_a_setting_of_the_repository() -> None:
    """Without it nothing is pushed, and no file has the name of one."""
    jobs = workflow("release.yml")["jobs"]
    for name in ("images", "chart"):
        assert jobs[name]["if"] == "vars.REGISTRY != ''"
    text = (WORKFLOWS / "release.yml").read_text()
    assert not re.search(r"\b[\w-]+\.(io|com|dev|org)\b", text)


def test_only_the_job_that_publishes_has_an_identity() -> None:
    jobs = workflow("release.yml")["jobs"]
    with_identity = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert with_identity == {"docs", "pypi"}
    assert jobs["pypi"]["environment"] == "pypi" and "password" not in str(jobs["pypi"])
    packages = {
        step["with"]["name"]
        for job in jobs.values()
        for step in job["steps"]
        if "upload-artifact" in step.get("uses", "") and step["with"]["path"] == "dist"
    }
    (got,) = (step["with"] for step in jobs["pypi"]["steps"] if "download" in step.get("uses", ""))
    assert all(name.startswith(got["pattern"].removesuffix("*")) for name in packages) and len(packages) == 2


def test_the_pages_are_where_the_builds_expect_them() -> None:
    """The containers that build wheels and images have no npm."""
    jobs = workflow("release.yml")["jobs"]
    for name in ("test", "sources", "wheels", "images"):
        (path,) = (
            step["with"]["path"]
            for step in jobs[name]["steps"]
            if step.get("with", {}).get("name") == "pages"
        )
        assert path == "keelmq/web/static"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_a_shell_reads_its_commands(path: Path) -> None:
    for job in workflow(path.name)["jobs"].values():
        for step in job["steps"]:
            if "run" in step:
                done = subprocess.run(["bash", "-n"], input=step["run"], capture_output=True, text=True)
                assert (done.returncode, done.stderr) == (0, "")
