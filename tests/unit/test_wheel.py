"""The wheel: the packages in it, and what a program outside of a checkout gets from them."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.slices import first

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "keelmq" / "web" / "static"
PACKAGES = {"analytics", "broker", "cli", "keelmq", "namesrv", "proxy", "pytest_keelmq"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the wheel, unpacked as an installer does; without the compiled modules, which take a
    minute."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    settings = os.environ | {"HATCH_BUILD_NO_HOOKS": "true"}
    done = subprocess.run(build, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def outside(site: Path, cwd: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Python in another folder, with the wheel's files before the checkout that the tests have installed."""
    settings = os.environ | {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, *args]
    return subprocess.run(command, cwd=cwd, env=settings, capture_output=True, text=True, timeout=50)


@pytest.mark.slow
def test_the_wheel_has_our_packages_and_nothing_else(site: Path) -> None:
    assert {each.name for each in site.iterdir() if not each.name.endswith(".dist-info")} == PACKAGES


@pytest.mark.slow
@pytest.mark.skipif(not PAGES.is_dir(), reason="this checkout has not built the pages")
def test_the_sources_have_the_pages(tmp_path: Path) -> None:
    """An installation from them has the console, where no npm is."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    (sources,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sources) as archive:
        names = archive.getnames()
    assert any(name.endswith("/keelmq/web/static/console/index.html") for name in names)
    assert not any("/node_modules/" in name for name in names)


@pytest.mark.parametrize("package", ["keelmq", "pytest_keelmq"])
def test_what_programs_import_declares_its_types(site: Path, package: str) -> None:
    """Without the marker mypy takes all of the package for Any, and with `strict` refuses the import."""
    assert (site / package / "py.typed").is_file()


def test_the_client_imports_no_server(site: Path, tmp_path: Path) -> None:
    """Nor does a module of the program's own named client, web or remoting get in the way."""
    for name in ("client", "remoting", "web"):
        (tmp_path / f"{name}.py").write_text(
            "raise AssertionError('KeelMQ imported the module of a program')"
        )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import keelmq, keelmq.client; "
        "assert keelmq.__file__.startswith(sys.argv[1]), keelmq.__file__; "
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    done = outside(site, tmp_path, "-c", code, str(site))
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & (PACKAGES | {"client", "remoting", "web"}) == {"keelmq"}


@pytest.mark.parametrize(
    ("command", "args"), first(1, [("bench", ["send"]), ("sim", []), ("fuzz", ["frames"])])
)
def test_what_needs_a_checkout_says_so_in_one_line(
    site: Path, tmp_path: Path, command: str, args: list[str]
) -> None:
    done = outside(site, tmp_path, "-m", "cli.keelmq", command, *args)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"keelmq {command}: needs a source checkout")
    assert line.endswith(f"use ./run keelmq {command}")
