"""The blocks of commands of the pages, in their order, as a reader pastes them into one shell.

The shell is in a network namespace, which is the host 10.0.0.1 of the pages; each other host is a namespace
on the same bridge. So ports and addresses are those of the page, on any machine. Directories such as
/var/lib/keelmq are below the test's own.
tests/cluster/test_readme.py does the same for README.md, in a fresh clone.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.pages import ROOT, Block, blocks, pages

DIRECTORIES = re.compile(r"(?<![\w.~/])/(etc/keelmq|var/lib/keelmq|data|backups|tmp/keelmq)\b")
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() != 0:
    NAMESPACE.append("--map-root-user")
SHELL = Path(__file__).with_name("pages.sh")
TIMEOUT_S = 400
RUNBOOKS = "docs/runbooks"
OF_GROUP = {
    "NAMESERVERS": "'10.0.0.1:9876;10.0.0.2:9876'",
    "CONTROLLERS": "'10.0.0.1:9878;10.0.0.2:9878'",
    "CONTAINER": "10.0.0.1:10811",
    "CLUSTER": "DefaultCluster",
    "BROKER_NAME": "broker-a",
    "BROKER_ADDRESS": "10.0.0.1:10911",
    "MASTER_ADDRESS": "10.0.0.1:10911",
    "SLAVE_ADDRESS": "10.0.0.2:10911",
    "BROKER": "10.0.0.1",
    "ADDRESS": "10.0.0.2:20911",
    "STORE": "/var/lib/keelmq/b1",
    "CONTROLLER_STORE_PATH": "/var/lib/keelmq/controller-0",
}
"""What the upper-case words of the runbooks stand for in the case "group"."""
PLACEHOLDER = re.compile(rf"\b({'|'.join(OF_GROUP)})\b")


@dataclass(frozen=True)
class Case:
    """Pages that one cluster is enough for. `before`: what the reader has done before a block with this text.
    `prints`: what the commands print."""

    names: tuple[str, ...]
    set_up: str = ""
    before: dict[str, str] = field(default_factory=dict)
    prints: tuple[str, ...] = ()

    def script(self) -> str:
        parts, lines_of_runbooks = [self.set_up], set[str]()
        for name in self.names:
            for block in to_run(name):
                script = block.script()
                if name == RUNBOOKS:  # most of them ask the same, in lines that do not need each other
                    lines = PLACEHOLDER.sub(lambda found: OF_GROUP[found[0]], script).splitlines()
                    script = "\n".join(each for each in lines if each not in lines_of_runbooks)
                    lines_of_runbooks.update(lines)
                parts += [text for part, text in self.before.items() if part in script]
                parts += [f"echo '-- {block.page}:{block.line}'", script]
        return "\n".join([SHELL.read_text(encoding="utf-8"), *parts])


CASES = {
    "tutorial": Case(("docs/tutorial.md",), prints=("none is missing", "connection_refused")),
    "group": Case(
        (
            RUNBOOKS,
            "docs/status.md",
            "docs/store.md",
            "docs/replication.md",
            "docs/durability.md",
            "docs/http.md",
            "docs/console.md",
            "docs/backup.md",
            "docs/controller-log.md",
        ),
        "a_group\na_container",
        {
            "2026-01-31.backup -c n0.conf": "cp controllers-2*.backup controllers-2026-01-31.backup\n"
            "stop 1 2 3\nmv /var/lib/keelmq/controller-0 .",
            "--from-dir": "controllers_again\nstop 5",
            "restore store": "mv /var/lib/keelmq/b2 .",
            "--users": "echo '{\"users\": []}' > /var/lib/keelmq/b1/config/users.json",
            "transferLeader": "HOST=10.0.0.1",
        },
        ("nothing is wrong", "electMaster", "3 replicas are equal"),
    ),
    "coming-over": Case(
        ("docs/coming-over.md",),
        "hosts 10.0.0.2\na_store_of_rocketmq",
        {
            "epochFileCheckpoint": 'kill "$(cat "$LOGS/2.pid")"\nwait "$(cat "$LOGS/2.pid")"',
            "b2.conf": "HOST=10.0.0.2",
        },
        ("FxNormal", "FxOrderGroup", "broker.conf: mqbroker; ", "SyncStateSetNums\t2"),
    ),
    "container": Case(
        ("docs/container.md",),
        "hosts\na_checkout",
        {
            "container plan": "stop 2\ncp deploy/container/1-node/broker-c.conf /etc/keelmq\na_container",
        },
        ("broker-c",),
    ),
    "security": Case(
        ("docs/security.md",),
        'in_memory "$HOME"',
        prints=("b'signed'\n", " 0 failed, 0 warnings", "10.0.0.0/8,192.168.1.7", "BODY: hello", "broker-a"),
    ),
    "kubernetes": Case(("docs/kubernetes.md",), "a_checkout", {"kind create": "rm deploy/k8s/base/raft.key"}),
    "analytics": Case(
        ("docs/analytics.md",),
        "a_checkout\nof=/data/telemetry-of-all-nodes\n"
        "keelmq analytics generate --groups 2 --hours 1 --incidents lag --output $of",
        prints=("pages of 2 groups",),
    ),
    "grpc": Case(("docs/grpc.md",), "hosts"),
    "configuration": Case(("docs/configuration.md",), prints=("made certificates/n2.crt",)),
}


def to_run(name: str) -> list[Block]:
    """The blocks of commands of a page, or of a folder, that have no mark, and the files whose name is their
    first line."""
    of = [ROOT / name] if name.endswith(".md") else sorted((ROOT / name).glob("*.md"))
    found = (block for page in of for block in blocks(page))
    return [each for each in found if (each.is_commands or each.file) and each.mark is None]


needs_namespaces = pytest.mark.skipif(
    not all(map(shutil.which, ("ip", "nsenter", "unshare")))
    or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0,
    reason="no network namespaces here",
)


def run(case: Case, directory: Path, work: Path, path: str) -> None:
    """Pastes the commands into a shell in `work`; `path` is its PATH."""
    for each in (directory / "logs", directory / "home"):
        each.mkdir()
    script = directory / "script"
    script.write_text(DIRECTORIES.sub(rf"{directory}/\1", case.script()), encoding="utf-8")
    environ = {
        "PATH": path,
        "HOME": str(directory / "home"),
        "CHECKOUT": str(ROOT),
        "LOGS": str(directory / "logs"),
        "PYTHONHASHSEED": "0",
    }
    done = subprocess.run(
        [*NAMESPACE, "sh", str(script)],
        cwd=work,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    told = f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0 and "Traceback" not in done.stderr, told
    assert [text for text in case.prints if text not in told] == [], told


@pytest.mark.cluster
@pytest.mark.timeout(TIMEOUT_S + 20)
@needs_namespaces
@pytest.mark.parametrize("name", CASES)
def test_the_commands_of(name: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    bin_first = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(CASES[name], tmp_path, tmp_path / "work", bin_first)


def test_every_block_is_run_or_says_why_not() -> None:
    names = {
        "README.md",
        *(each.page for case in CASES.values() for name in case.names for each in to_run(name)),
    }
    wrong = []
    for block in (block for page in pages() for block in blocks(page) if block.is_commands):
        kind, why = block.mark or ("", "")
        if not kind and block.page not in names:
            wrong.append(f"{block.page}:{block.line}: neither run nor marked")
        if kind == "run by" and not (ROOT / why).exists():
            wrong.append(f"{block.page}:{block.line}: no {why}")
    assert wrong == []
