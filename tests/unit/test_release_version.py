"""tools/release_version.py: a tag is a release only if everything says the same version."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools import release_version
from tools.release_version import CHANGES, CHART, PACKAGE, differences, version_of

ROOT = Path(__file__).parents[2]


def texts(
    package: str = "0.1.0", chart: str = "0.1.0", app: str = "0.1.0", heading: str = ""
) -> Mapping[str, str]:
    return {
        PACKAGE: f'[project]\nname = "keelmq"\nversion = "{package}"\n',
        CHART: f"apiVersion: v2\nversion: {chart}\nappVersion: {app}\n",
        CHANGES: f"# Changelog\n\n## {heading or '0.1.0 (2027-01-31)'}\n\n### Broker\n",
    }


@pytest.mark.parametrize("heading", ["0.1.0", "0.1.0 (2027-01-31)"])
def test_everything_says_the_same(heading: str) -> None:
    assert list(differences("v0.1.0", texts(heading=heading))) == []
    assert version_of("v0.1.0") == "0.1.0"


@pytest.mark.parametrize(
    ("tag", "found", "says"),
    [
        (
            "v0.1.0",
            texts(package="0.1.0.dev"),
            "pyproject.toml: version is 0.1.0.dev, and the tag is v0.1.0: set it",
        ),
        ("v0.2.0", texts(heading="0.2.0"), "pyproject.toml: version is 0.1.0"),
        ("v0.1.0", texts(chart="0.0.9"), "Chart.yaml: version is 0.0.9, and the tag is v0.1.0"),
        ("v0.1.0", texts(app='"0.0.9"'), "Chart.yaml: appVersion is 0.0.9, and the tag is v0.1.0"),
        ("v0.1.0", texts(heading="0.1.0 (unreleased)"), "CHANGELOG.md: 0.1.0 is called unreleased"),
        ("v0.1.0", texts(heading="0.1.0.1"), "CHANGELOG.md has no heading '## 0.1.0'"),
        ("0.1.0", texts(), "the tag 0.1.0 is not of the form v1.2.3"),
        ("v0.1.0-rc.1", texts(), "the tag v0.1.0-rc.1 is not of the form"),
    ],
)
def test_what_differs_is_named(tag: str, found: Mapping[str, str], says: str) -> None:
    lines = list(differences(tag, found))
    assert says in lines[0] and all("\n" not in line for line in lines)


def test_the_files_of_the_checkout() -> None:
    """They are read, and a wrong tag ends with 1 and one line for each difference."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "release_version.py"), "v99.0.0"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and done.stdout == ""
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()] == [
        PACKAGE,
        CHART,
        CHART,
        *[f"{CHANGES} has no heading '## 99.0.0'"],
    ]


def test_a_version_that_agrees_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in texts().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(release_version, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["release_version.py", "v0.1.0"])
    assert release_version.main() == 0
    assert capsys.readouterr().out == "0.1.0\n"
