"""docs/security.md: its commands, in order, as an operator pastes them into one shell.

A command whose comment says `# refused: TEXT` has to fail with that text. tests/cluster/test_readme.py does
the same for README.md, in a fresh clone."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.lab.ports import free_ports
from tests.cluster.test_readme import BLOCK, commands

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
COMMAND_TIMEOUT_S = 60
START_TIMEOUT_S = 40
STOP_TIMEOUT_S = 20
REFUSED = re.compile(r"#\s*refused: (.+)$", re.MULTILINE)
ADDRESSES = ("127.0.0.1:9876", "127.0.0.1:9878", "127.0.0.1:10911", "127.0.0.1:19876")
"""What the page names: name server, controller, broker, HTTP of the name server."""


def blocks() -> list[tuple[str, str]]:
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def refusals() -> dict[str, str]:
    """Command -> what it must say."""
    found = {}
    for language, text in blocks():
        for line in text.splitlines() if language == "sh" else ():
            if told := REFUSED.search(line):
                found[re.sub(r"\s+#.*$", "", line).strip()] = told[1].strip()
    return found


@dataclass
class Shell:
    """One shell in an empty directory, with free ports in place of those that the page names."""

    directory: Path
    environ: dict[str, str]
    ports: dict[str, int]
    processes: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def adapted(self, text: str) -> str:
        for address, port in self.ports.items():
            if address.startswith("127."):
                text = text.replace(address, f"127.0.0.1:{port}")
        return text

    def export(self, command: str) -> None:
        name, _, value = command.removeprefix("export ").partition("=")
        self.environ[name] = value

    def start(self, command: str) -> None:
        """A command that ends with &."""
        number = self.ports
        of_program = {
            "mqnamesrv": {
                "listenPort": number["127.0.0.1:9876"],
                "controllerRaftPeers": f"n0-127.0.0.1:{number['raft']}",
                "httpPort": number["127.0.0.1:19876"],
            },
            "mqbroker": {
                "listenPort": number["127.0.0.1:10911"],
                "haListenPort": number["ha"],
                "httpPort": -1,
                "mappedFileSizeCommitLog": 1 << 20,
            },
        }
        program = shlex.split(command)[0]
        own = [f"--set {key}={value}" for key, value in of_program[program].items()]
        line = " ".join(["exec", self.adapted(command.removesuffix("&").strip()), *own])
        with (self.directory / f"{program}.log").open("wb") as log:
            self.processes.append(
                subprocess.Popen(
                    ["sh", "-c", line], cwd=self.directory, env=self.environ, stdout=log, stderr=log
                )
            )

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            ["sh", "-c", self.adapted(command)],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
        return done

    def wait_for_broker(self) -> None:
        """As an operator would, with the credentials that are exported by now."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            done = self.run("mqadmin clusterList -n 127.0.0.1:9876 --json")
            if done.returncode == 0 and "broker-a" in done.stdout:
                return
            assert all(process.poll() is None for process in self.processes), self.logs()
            assert time.monotonic() < deadline, f"no broker: {done.stdout}{done.stderr}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.directory.glob("*.log"))

    def close(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    bin_first = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {"PATH": bin_first, "HOME": str(tmp_path), "PYTHONHASHSEED": "0"}
    names = [*ADDRESSES, "raft", "ha"]
    (tmp_path / "work").mkdir()
    found = Shell(tmp_path / "work", environ, dict(zip(names, free_ports(), strict=False)))
    try:
        yield found
    finally:
        found.close()


@pytest.mark.cluster
@pytest.mark.timeout(240)
def test_from_open_to_closed(shell: Shell) -> None:
    expected, refused, run = refusals(), [], []
    for language, text in blocks():
        if language == "python":
            name = text.split("\n", 1)[0].removeprefix("# ")
            (shell.directory / name).write_text(shell.adapted(text), encoding="utf-8")
            continue
        for command in commands(text):
            if command.startswith("export "):
                shell.export(command)
                shell.wait_for_broker()
                continue
            if command.endswith("&"):
                shell.start(command)
                continue
            if command.startswith("curl ") and shutil.which("curl") is None:
                refused += [command] if command in expected else []
                continue
            done = shell.run(command)
            run.append(command)
            if command in expected:
                refused.append(command)
                assert done.returncode != 0 and expected[command] in done.stderr, f"{command}\n{done}"
                continue
            assert done.returncode == 0, f"{command}\n{done}\n{shell.logs()}"
            if "consumeMessage" in command:
                assert "hello" in done.stdout
            if "doctor" in command:
                assert " 0 failed, 0 warnings" in done.stdout, done.stdout
            if "orders.py" in command:
                assert "b'signed'\n" in done.stdout
            if command.startswith("curl "):
                assert "broker-a" in done.stdout, done.stdout
            if "getAcl" in command:
                assert "10.0.0.0/8,192.168.1.7" in done.stdout
    assert refused == list(expected) and len(refused) == 4
    assert any(command.startswith("python ") for command in run)
    assert "open to other machines" not in shell.logs()


def test_five_commands_close_a_cluster() -> None:
    """The first two blocks of the page, before and after the servers are ready; what comes after is use."""
    first = [command for _, text in blocks()[:2] for command in commands(text)]
    assert len(first) == 5
    assert [command.split()[0] for command in first] == [
        "keelmq",
        "mqnamesrv",
        "mqbroker",
        "export",
        "mqadmin",
    ]
