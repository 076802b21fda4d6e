"""docs/client.md: its examples run, against a broker of this process; its tables name what there is."""

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from keelmq.client import ConsumerSettings
from pytest_keelmq.cluster import TestBroker
from tests.support.client_parts import broker

__all__ = ["broker"]

DOC = (Path(__file__).parents[3] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", DOC, re.DOTALL | re.MULTILINE)
SCRIPTS = [text for text in EXAMPLES if not text.startswith("# test_")]
TESTS = [text for text in EXAMPLES if text.startswith("# test_")]


def run(directory: Path, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_there_are_examples() -> None:
    assert len(SCRIPTS) >= 12 and len(TESTS) == 2


@pytest.mark.parametrize("text", SCRIPTS, ids=lambda text: " ".join(text.split()[-12:-4]))
def test_an_example(text: str, broker: TestBroker, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(text.replace("127.0.0.1:9876", broker.namesrv_addr), encoding="utf-8")
    run(tmp_path, "-W", "error", str(script))


@pytest.mark.slow
def test_the_fixture_in_somebody_elses_tests(tmp_path: Path) -> None:
    """Named, too: a checkout that was installed before the plugin came has no entry point of it."""
    for text in TESTS:
        name = text.split()[1]  # "# test_orders.py"
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "test_shared.py").write_text(
        "def test_one(keelmq_session_broker):\n"
        "    keelmq_session_broker.create_topic('shared', queues=2)\n"
        "def test_two(keelmq_session_broker):\n"
        "    keelmq_session_broker.create_topic('shared', queues=2)\n",
        encoding="utf-8",
    )
    (tmp_path / "test_settings.py").write_text(
        "import pytest\n"
        "class TestMine:\n"
        "    @pytest.fixture\n"
        "    def keelmq_settings(self):\n"
        "        return {'brokerName': 'mine'}\n"
        "    def test_it(self, keelmq_broker):\n"
        "        assert keelmq_broker.messages('none') == []\n"
        "        assert keelmq_broker._settings == {'brokerName': 'mine'}\n",
        encoding="utf-8",
    )
    run(tmp_path, "-m", "pytest", "-q", "-p", "pytest_keelmq.plugin", "-p", "no:cacheprovider")


def test_every_setting_is_in_the_table() -> None:
    table = re.findall(r"^\| `(\w+)` \|", DOC, re.MULTILINE)
    assert [name for name in table if name in {each.name for each in fields(ConsumerSettings)}] == [
        each.name for each in fields(ConsumerSettings)
    ]


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(ValueError, match="fileReservedTim"), TestBroker(settings={"fileReservedTim": 1}):
        pass
