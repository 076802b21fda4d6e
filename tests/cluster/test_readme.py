"""README.md: a fresh clone runs its commands and its Python examples in order, as a reader pastes them.

The clone has an environment of its own, which borrows the installed packages of this one.
tests/cluster/test_pages.py does the same for the other pages, without a clone.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cluster.test_pages import TIMEOUT_S, Case, needs_namespaces, run
from tests.support.pages import ROOT, Block, blocks

PAGE = Case(("README.md",), prints=("greetings b'hello, world'\n", "BODY: hello again", "[100%]"))


def make_environment(clone: Path) -> None:
    """A new .venv in the clone. Our modules are the clone's, the other packages are those that run this test.
    What ./run installs goes into it, never into the environment of this checkout."""
    venv, here = clone / ".venv", Path(sys.prefix)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    (packages,) = venv.glob("lib/python*/site-packages")
    (packages / "clone.pth").write_text(f"{clone}\n{sysconfig.get_path('purelib')}\n")
    for script in (here / "bin").iterdir():
        target = venv / "bin" / script.name
        if target.exists() or not script.is_file() or not script.read_bytes().startswith(b"#!"):
            continue
        code = script.read_text(encoding="utf-8").replace(str(here), str(venv))
        target.write_text(code, encoding="utf-8")
        target.chmod(0o755)
    for stamp in here.glob(".*.*-*"):
        (venv / stamp.name).touch()
    (clone / ".tools").symlink_to(ROOT / ".tools")


@pytest.mark.cluster
@pytest.mark.timeout(TIMEOUT_S + 20)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: nothing to clone")
@needs_namespaces
def test_the_readme_works_in_a_fresh_clone(tmp_path: Path) -> None:
    clone = tmp_path / "keelmq"
    cloned = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(clone)]
    subprocess.run(cloned, check=True, timeout=60)
    make_environment(clone)
    run(PAGE, tmp_path, clone, os.environ["PATH"])


def test_a_clone_comes_first() -> None:
    first = next(blocks(ROOT / "README.md")).text
    assert first.startswith("git clone ") and first.splitlines()[0].endswith(" && cd keelmq")


def test_landing_runs_a_command_of_the_readme() -> None:
    """.ci/run ends with the test command that the page tells everybody."""
    last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    text = "".join(each.text for each in blocks(ROOT / "README.md"))
    told = {line.partition("#")[0].strip() for line in text.splitlines()}
    assert last == "./test --ci" and {"./test", "./test --ci", "./test --all"} <= told


def test_the_script_of_a_block() -> None:
    text = "git clone <x> y\n./run a \\\n  --c\nmqbroker &   # later\nx    # refused: no\n./run b --watch 2\n"
    script = Block("a.md", 1, "sh", text, None).script()
    assert script == "\n./run a --c\nstart mqbroker\nrefused 'no' x\nwatched ./run b --watch 2\n"
    assert Block("a.md", 1, "", "$ a\nprinted\n$ b\n", None).script() == "a\nb\n"
    assert (
        Block("a.md", 1, "python", "# a.py\n1\n", None).script().splitlines()[0]
        == "cat > a.py <<'END OF FILE'"
    )


def test_the_marks_of_blocks() -> None:
    """Of one block, and of a page."""
    (found,) = (each for each in blocks(ROOT / "docs" / "analytics.md") if "spark-submit" in each.text)
    assert found.mark == ("not run", "needs a cluster of Spark") and found.is_commands
    marks = {each.mark and each.mark[0] for each in blocks(ROOT / "docs" / "cli.md")}
    assert marks == {"not run"}
