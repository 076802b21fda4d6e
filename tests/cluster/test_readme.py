"""README.md: a fresh clone runs its commands and its Python examples in order, as a reader pastes them.

The clone has an environment of its own, which borrows the installed packages of this one. Commands that take
minutes are only parsed (`--help`). tests/deploy/test_documented.py runs those for Kubernetes.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND_TIMEOUT_S = 150
"""The first ./run may compile the leaf modules, on a busy machine."""
START_TIMEOUT_S = 40
STOP_TIMEOUT_S = 20

ELSEWHERE = re.compile(r"kubectl |\(umask 077; .*raft\.key\)$")
"""Commands that tests/deploy/test_documented.py runs."""
ONLY_PARSED = re.compile(r"\./test\b|\./run$|\./run -|\./run keelmq (bench|chaos|demo|report)\b")
"""Commands of minutes."""
PROGRAMS = {"mqnamesrv": "listenPort", "mqbroker": "listenPort haListenPort fastListenPort"}
"""The port settings of a program, which get free ports here."""


def blocks() -> list[tuple[str, str]]:
    """("sh" or "python", text) of every fenced block, in the order of the page."""
    return BLOCK.findall(README.read_text(encoding="utf-8"))


def commands(text: str) -> list[str]:
    """The lines of a shell block without comments, continued lines joined."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line for line in (re.sub(r"(^|\s+)#.*$", "", line).strip() for line in lines) if line]


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


@dataclass
class Reader:
    """Somebody who pastes the page into a shell in `clone`. `ports` stand for those that the page names."""

    clone: Path
    home: Path
    ports: dict[str, int]
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def environ(self) -> dict[str, str]:
        """Nothing of this test run: neither its settings nor the path to its packages."""
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), "PYTHONHASHSEED": "0"}

    def adapted(self, text: str) -> str:
        """The text with the free port of this run in place of the name server's."""
        return text.replace("127.0.0.1:9876", f"127.0.0.1:{self.ports['mqnamesrv listenPort']}")

    def run(self, command: str) -> str:
        """Output of a command that has to succeed."""
        done = subprocess.run(
            ["sh", "-c", self.adapted(command)],
            cwd=self.clone,
            env=self.environ(),
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
        return done.stdout

    def start(self, command: str) -> None:
        """A command that ends with &: its program goes on until close()."""
        program = shlex.split(command)[1]
        settings = [f"--set {key}={self.ports[f'{program} {key}']}" for key in PROGRAMS[program].split()]
        line = " ".join(
            ["exec", self.adapted(command.removesuffix("&").strip()), *settings, "--set httpPort=-1"]
        )
        with (self.clone / f"{program}.log").open("wb") as log:
            process = subprocess.Popen(
                ["sh", "-c", line], cwd=self.clone, env=self.environ(), stdout=log, stderr=log
            )
        self.processes.append(process)

    def wait_for_broker(self) -> None:
        """Until the name server has its route, as a reader needs a moment for the next paste."""
        deadline = time.monotonic() + START_TIMEOUT_S
        look = self.adapted("./run mqadmin clusterList -n 127.0.0.1:9876 --json")
        while True:
            done = subprocess.run(
                look.split(), cwd=self.clone, env=self.environ(), capture_output=True, text=True, timeout=30
            )
            if done.returncode == 0 and "brokerName" in done.stdout:
                return
            logs = "\n".join(path.read_text(errors="replace") for path in self.clone.glob("*.log"))
            assert all(process.poll() is None for process in self.processes), logs
            assert time.monotonic() < deadline, f"no broker: {done.stdout}{done.stderr}\n{logs}"

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


@contextmanager
def reading(directory: Path) -> Iterator[Reader]:
    clone, home = directory / "keelmq", directory / "home"
    home.mkdir()
    cloned = ["git", "-c", "safe.directory=*", "clone", "--quiet", str(ROOT), str(clone)]
    subprocess.run(cloned, check=True, timeout=60)
    make_environment(clone)
    names = [f"{program} {key}" for program, keys in PROGRAMS.items() for key in keys.split()]
    reader = Reader(clone, home, dict(zip(names, free_ports(len(names)), strict=True)))
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.cluster
@pytest.mark.timeout(400)
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout: nothing to clone")
def test_the_readme_works_in_a_fresh_clone(tmp_path: Path) -> None:
    run: list[str] = []
    starting = False
    with reading(tmp_path) as reader:
        for language, text in blocks():
            if language == "python":
                name = text.split("\n", 1)[0].removeprefix("# ")
                (reader.clone / name).write_text(reader.adapted(text), encoding="utf-8")
                run.append(name)
                continue
            for command in commands(text):
                if ELSEWHERE.match(command) or command.startswith("git clone "):
                    continue
                if command.endswith("&"):
                    reader.start(command)
                    starting = True
                    continue
                if starting:
                    reader.wait_for_broker()
                    starting = False
                if ONLY_PARSED.match(command):
                    assert "usage" in reader.run(f"{command} --help").lower(), command
                    continue
                output = reader.run(command)
                run.append(command)
                if "hello.py" in command:
                    assert output == "greetings b'hello, world'\n"
                if "consumeMessage" in command:
                    assert "hello, world" in output and "hello again" in output
    assert len(run) >= 8, run
    assert {"hello.py", "./run python hello.py", "test_orders.py", "./run pytest test_orders.py"} <= set(run)


def test_every_block_can_be_run() -> None:
    """A clone comes first, a Python block names its file, and the test of Kubernetes reads this page."""
    found = blocks()
    first = commands(found[0][1])
    assert first[0].startswith("git clone ") and first[0].endswith(" && cd keelmq")
    for language, text in found:
        if language == "python":
            assert re.match(r"# \w+\.py\n", text), text
            assert f" {text.split()[1]}" in README.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w+)$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences) == {"sh", "python"} and len(fences) == len(found)


def test_landing_runs_a_command_of_the_readme() -> None:
    """.ci/run ends with the test command that the page tells everybody."""
    last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1]
    told = [command for language, text in blocks() if language == "sh" for command in commands(text)]
    assert last == "./test --ci" and {"./test", "./test --ci", "./test --all"} <= set(told)


def test_commands_of_a_block() -> None:
    text = "./run a # why\n# nothing\n./run b \\\n  --c\n\n./run mqbroker &   # later\n"
    assert commands(text) == ["./run a", "./run b --c", "./run mqbroker &"]
