"""./run: which requirements it installs before it starts a program."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SET_UP = 'prepare() { echo "prepare $*"; }\n'


@pytest.mark.parametrize(
    ("arguments", "prepared"),
    [
        ("keelmq status", ["run"]),
        ("keelmq report", ["run", "analytics"]),
        ("sim --seeds 1", ["run", "test"]),
        ("pytest", ["run", "test"]),
        ("pytest test_orders.py", ["run", "test"]),
        ("python -m pytest test_orders.py", ["run", "test"]),
        ("python -m tests.bench.compare", ["run", "test"]),
        ("python -m timeit", ["run"]),
    ],
)
def test_what_a_program_needs_is_installed_first(tmp_path: Path, arguments: str, prepared: list[str]) -> None:
    shutil.copy(ROOT / "run", tmp_path)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "env.sh").write_text(SET_UP)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("keelmq", "pytest", "python"):
        (programs / name).symlink_to("/bin/true")
    done = subprocess.run(
        [str(tmp_path / "run"), *arguments.split()], capture_output=True, text=True, timeout=30
    )
    told = f"prepare {' '.join(prepared)}\n"
    assert (done.returncode, done.stdout) == (0, told), done.stderr
