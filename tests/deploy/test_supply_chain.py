"""Lock files, the bill of materials and the check for vulnerabilities. All of it without a network."""

import base64
import hashlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.deploy.conftest import ROOT

TOOLS = ROOT / "tools"
GROUPS = sorted(path.stem for path in (ROOT / "requirements").glob("*.txt"))


def needs_supply() -> None:
    if importlib.util.find_spec("cyclonedx") is None:
        pytest.skip("the tools of the supply chain are not installed: `make supply`")


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("locked")


@pytest.fixture
def vulnerabilities(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("vulnerabilities")


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    needs_supply()
    return json.loads(run_sbom(tmp_path_factory.mktemp("bill") / "bill.json"))  # type: ignore[no-any-return]


def run_sbom(output: Path) -> bytes:
    """The tool validates what it writes against CycloneDX's schema."""
    subprocess.run(
        [sys.executable, str(TOOLS / "sbom.py"), "--output", str(output)], check=True, capture_output=True
    )
    return output.read_bytes()


# -- lock files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_every_package_has_hashes(locked: ModuleType, group: str) -> None:
    """An installation with --require-hashes accepts no other file."""
    packages = locked.read_lock(group)
    assert packages and all(package.hashes for package in packages)
    text = (ROOT / "requirements" / f"{group}.txt").read_text()
    assert "://" not in text and "--index" not in text


def test_all_lock_files_are_checked_and_agree(locked: ModuleType) -> None:
    """One version of a package in the whole checkout: what is audited is what runs."""
    assert set(locked.LOCKS) == set(GROUPS)
    versions: dict[str, set[str]] = {}
    for group in GROUPS:
        for package in locked.read_lock(group):
            versions.setdefault(package.name, set()).add(package.version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_what_a_set_up_downloads_is_known() -> None:
    """Analytics took 456 MB for Spark alone; the embedded engine must save 200 of them."""
    lines = (ROOT / "requirements" / "downloads").read_text().splitlines()[1:]
    sizes = {group: int(size) for group, size in map(str.split, lines)}
    assert sizes.keys() == set(GROUPS) - {"supply", "grpc_client"}
    assert 0 < sizes["analytics"] <= 256 < sizes["spark"]


def test_a_lock_line_without_a_hash_is_found(locked: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"fastapi==1\.0 has no hash"):
        locked.parse_lock("fastapi==1.0\n    # via keelmq (pyproject.toml)\n", "run.txt")
    with pytest.raises(ValueError, match="not a locked package: git"):
        locked.parse_lock("git+ssh://example/x\n", "run.txt")


# -- the bill of materials -------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_bill_has_every_locked_package(bill: dict[str, Any], locked: ModuleType) -> None:
    found = {
        each["purl"]: each for each in bill["components"] if each.get("purl", "").startswith("pkg:pypi/")
    }
    packages = locked.read_lock("run")
    assert found.keys() == {f"pkg:pypi/{package.name}@{package.version}" for package in packages}
    for package in packages:
        listed = found[f"pkg:pypi/{package.name}@{package.version}"]["hashes"]
        assert {each["content"] for each in listed} == set(package.hashes)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    product = bill["metadata"]["component"]
    assert (product["name"], product["version"]) == (project["name"], project["version"])


def test_the_bill_says_what_only_a_build_needs(bill: dict[str, Any]) -> None:
    """The image of deploy/docker removes them; a scanner need not worry about them."""
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert {scopes[name] for name in ("hatchling", "cython", "setuptools")} == {"excluded"}
    assert {scopes[name] for name in ("cryptography", "cffi", "fastapi", "starlette")} == {"required"}


def test_the_bill_knows_who_needs_a_package(bill: dict[str, Any]) -> None:
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    assert "pypi:cffi" in needs["pypi:cryptography"] and "pypi:starlette" in needs["pypi:fastapi"]
    assert "pypi:fastapi" in needs["keelmq"] and "pypi:cffi" not in needs["keelmq"]


def test_the_bill_has_the_sources_of_compiled_modules_and_the_scripts_of_pages(bill: dict[str, Any]) -> None:
    files = {each["name"]: each for each in bill["components"] if each["type"] == "file"}
    leaves = {
        str(path.relative_to(ROOT))
        for package in ("keelmq", "broker")
        for types in (ROOT / package).rglob("*.pxd")
        for path in (types, types.with_suffix(".py"))
    }
    vendored = {path.name for path in (ROOT / "keelmq/web/vendor").iterdir() if path.suffix != ".txt"}
    assert leaves and files.keys() == leaves | vendored
    for name, component in files.items():
        path = ROOT / name if name in leaves else ROOT / "keelmq/web/vendor" / name
        assert component["hashes"][0]["content"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_bill_has_the_npm_packages_of_the_pages(bill: dict[str, Any]) -> None:
    """The bundle has parts of them; what only builds and tests need is not in it."""
    folder = ROOT / "keelmq" / "web" / "frontend"
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    running = {
        path.removeprefix("node_modules/"): each
        for path, each in locked.items()
        if path and not each.get("dev")
    }
    found = {each["name"]: each for each in bill["components"] if each.get("purl", "").startswith("pkg:npm/")}
    assert found.keys() == {"swagger-ui-dist", *running}
    direct = set(json.loads((folder / "package.json").read_text())["dependencies"])
    assert {"echarts", "zrender"} <= running.keys() and "vite" not in running and direct <= running.keys()
    for name, each in running.items():
        assert found[name]["purl"] == f"pkg:npm/{name}@{each['version']}"
        (digest,) = found[name]["hashes"]
        encoded = base64.b64encode(bytes.fromhex(digest["content"])).decode()
        assert (digest["alg"], f"sha512-{encoded}") == ("SHA-512", each["integrity"])
    needs = {each["ref"]: set(each.get("dependsOn", ())) for each in bill["dependencies"]}
    assert "npm:zrender" in needs["npm:echarts"] and "npm:zrender" not in needs["keelmq"]
    assert {f"npm:{name}" for name in direct} <= needs["keelmq"]


@pytest.mark.slow
def test_the_bill_is_the_same_each_time(bill: dict[str, Any], tmp_path: Path) -> None:
    assert json.loads(run_sbom(tmp_path / "again.json")) == bill
    assert run_sbom(tmp_path / "one.json") == run_sbom(tmp_path / "two.json")


# -- the check for vulnerabilities -----------------------------------------------------------------------

CLEAN = {"name": "anyio", "version": "4.16.0", "vulns": []}
BAD = {
    "name": "h11",
    "version": "0.14.0",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-2025-43859"], "fix_versions": ["0.16.0"]}],
}
UNKNOWN = {"name": "isal", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("packages", "code", "text"),
    [
        ([CLEAN], 0, "no known vulnerabilities in 1 locked packages"),
        ([CLEAN, BAD], 1, "h11 0.14.0: PYSEC-1 CVE-2025-43859 (fixed in: 0.16.0)"),
        # pip-audit itself exits with 0 here.
        ([CLEAN, UNKNOWN], 3, "no database reachable: 1 of 2 packages"),
        ([BAD, UNKNOWN], 1, "h11 0.14.0"),
        ([], 3, "no database reachable: 0 of 0 packages"),
    ],
)
def test_verdicts(vulnerabilities: ModuleType, packages: list[object], code: int, text: str) -> None:
    found, line = vulnerabilities.verdict(json.dumps({"dependencies": packages}), "")
    assert found == code and line.startswith(text)


def test_a_database_that_cannot_be_reached_is_no_vulnerability(vulnerabilities: ModuleType) -> None:
    errors = "Traceback ...\nConnectionError: no route\n"
    assert vulnerabilities.verdict("", errors) == (3, "no database reachable: ConnectionError: no route")
    assert vulnerabilities.verdict("[]", "")[0] == 3


@pytest.mark.slow
def test_without_a_network(vulnerabilities: ModuleType) -> None:
    """The whole tool, with a proxy that does not exist: it ends, and says what it could not do."""
    needs_supply()
    proxy = "http://127.0.0.1:1"
    done = subprocess.run(
        [sys.executable, str(TOOLS / "vulnerabilities.py")],
        env={**os.environ, "HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "NO_PROXY": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == vulnerabilities.NOT_CHECKED, done.stderr
    assert "no database reachable" in done.stderr and "nothing was checked" in done.stderr
    assert "Traceback" not in done.stderr
