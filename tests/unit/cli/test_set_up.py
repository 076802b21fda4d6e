"""tools/env.sh: what ./run makes before it starts a program, wherever the checkout is."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UV = """#!/bin/sh
if [ "$1" = pip ]; then echo "cache ${UV_CACHE_DIR-of the user}" >&2; exit 0; fi
for place; do :; done
echo "made $place"
rm -rf "$place"
mkdir -p "$place/bin"
: > "$place/pyvenv.cfg"
ln -sf /bin/true "$place/bin/python"
ln -sf /bin/echo "$place/bin/keelmq"
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With a space in its path. Nothing is installed: uv and Python are others."""
    root = tmp_path / "a checkout"
    for name in ("run", "tools/env.sh"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    for name in (
        "requirements/run.txt",
        "requirements/analytics.txt",
        "requirements/spark.txt",
        "pyproject.toml",
        "keelmq/leaf.pxd",
        "keelmq/leaf.py",
        "broker/a.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "requirements/downloads").write_text("# MB\nrun 28\nanalytics 158\nspark 584\n")
    (root / "keelmq/web/frontend").mkdir(parents=True)
    uv = root / ".tools" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(UV)
    uv.chmod(0o755)
    return root


def ran(command: str | Path, *arguments: str, **options: object) -> tuple[list[str], str]:
    """Returns the lines of standard output of ./run keelmq hello, or other arguments, and standard error."""
    done = subprocess.run(
        ["sh", str(command), "keelmq", *(arguments or ("hello",))],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


def test_a_second_start_makes_nothing_until_a_source_changes(checkout: Path) -> None:
    assert ran(checkout / "run")[0] == [f"made {checkout}/.venv", "hello"]
    assert ran(checkout / "run") == (["hello"], "")
    (checkout / "keelmq" / "leaf.py").write_text("pass\n")
    out, err = ran(checkout / "run")
    assert out == ["hello"] and "compiling" in err and "cat:" not in err


def test_a_checkout_that_was_moved_gets_programs_of_its_own(checkout: Path) -> None:
    ran(checkout / "run")
    there = checkout.rename(checkout.with_name("there"))
    assert ran(there / "run")[0] == [f"made {there}/.venv", "hello"]
    assert ran(there / "run") == (["hello"], "")


@pytest.mark.parametrize("gone", ["bin/python", "pyvenv.cfg"])
def test_half_a_venv_is_made_again(checkout: Path, gone: str) -> None:
    ran(checkout / "run")
    (checkout / ".venv" / gone).unlink()
    assert ran(checkout / "run")[0] == [f"made {checkout}/.venv", "hello"]


def test_a_checkout_of_somebody_else_is_used_as_it_is(checkout: Path) -> None:
    ran(checkout / "run")
    (checkout / ".tools" / ".lock").chmod(0o444)
    (checkout / ".tools").chmod(0o555)
    try:
        if os.access(checkout / ".tools", os.W_OK):
            pytest.skip("root may write everywhere")
        assert ran(checkout / "run") == (["hello"], "")
    finally:
        (checkout / ".tools").chmod(0o755)


def test_without_its_tools_a_checkout_is_set_up_again(checkout: Path) -> None:
    """`rm -rf .tools` is what a developer does to get rid of caches."""
    ran(checkout / "run")
    (checkout / ".tools" / "bin").rename(checkout / "bin")
    shutil.rmtree(checkout / ".tools")
    python = checkout / "path" / "python3"  # stands for the pip that fetches uv
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nmv "{checkout}/bin" "{checkout}/.tools/bin"\n')
    python.chmod(0o755)
    (checkout / "keelmq" / "leaf.py").write_text("pass\n")
    own = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    out, err = ran(checkout / "run", env=own)
    assert out == ["hello"] and "fetching uv" in err and "compiling" in err


def test_cdpath_does_not_get_into_the_paths(checkout: Path) -> None:
    options = {"cwd": checkout.parent, "env": {**os.environ, "CDPATH": str(checkout.parent)}}
    assert ran("a checkout/run", **options)[0] == [f"made {checkout}/.venv", "hello"]


@pytest.mark.parametrize(
    ("home", "cache"), [("home", "of the user"), ("a file", "{}/.tools/cache"), ("", "{}/.tools/cache")]
)
def test_without_a_home_directory_the_cache_is_in_the_checkout(checkout: Path, home: str, cache: str) -> None:
    (checkout.parent / "home").mkdir()
    (checkout.parent / "a file").touch()
    own = {key: value for key, value in os.environ.items() if key not in ("UV_CACHE_DIR", "XDG_CACHE_HOME")}
    own["HOME"] = str(checkout.parent / home) if home else ""
    assert f"cache {cache.format(checkout)}\n" in ran(checkout / "run", env=own)[1]


@pytest.mark.parametrize(
    ("arguments", "group", "place"),
    [
        ("analytics run --input a --output b", "analytics", ".venv"),
        ("report a", "analytics", ".venv"),
        ("analytics run --remote sc://a:1", "analytics", ".venv"),
        ("analytics run --engine embedded", "analytics", ".venv"),
        ("analytics run --master local[2] --input a", "spark", ".venv-spark"),
        ("analytics run --master=yarn", "spark", ".venv-spark"),
        ("analytics stream --engine spark", "spark", ".venv-spark"),
        ("report a --engine=spark", "spark", ".venv-spark"),
    ],
)
def test_spark_has_an_environment_of_its_own(checkout: Path, arguments: str, group: str, place: str) -> None:
    """And what a set-up downloads is told."""
    out, err = ran(checkout / "run", *arguments.split())
    assert out == [f"made {checkout}/{place}", arguments]
    told = {"analytics": 158, "spark": 584}[group]
    assert f"installing requirements/{group}.txt, {told} MB to download" in err
    assert (err.count("requirements/analytics.txt"), err.count("requirements/spark.txt")) == (
        (1, 0) if group == "analytics" else (0, 1)
    )
    assert ran(checkout / "run", *arguments.split()) == ([arguments], "")
