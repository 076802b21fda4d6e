"""Exit codes are those of docs/cli.md: every row of its table, and what sections of keelmq's commands say."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.keelmq import app as keelmq_app
from tests.support.admin_parts import DEAD, mqadmin
from tests.unit.cli.mqadmin.test_mqadmin_broker import GROUP, TOPIC
from tests.unit.cli.mqadmin.test_mqadmin_broker import World as BrokerWorld

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text(encoding="utf-8")
OF_MQADMIN = {
    0: ("clusterList -n {ns}", "topicRoute -n {ns} -t {topic}", "getBrokerConfig -b {b}"),
    1: (
        "topicRoute -n {ns} -t no-such-topic",
        "deleteTopic -n {ns} -t no-such-topic -c DefaultCluster",
        "updateBrokerConfig -b {b} -k deleteWhen -v 25",
        "resetOffsetByTime -n {ns} -g no-such-group -t {topic} -s -1",
        "getBrokerConfig -c DefaultCluster -n {ns} --diff",
        "getUser -u nobody -b {b}",
    ),
    2: ("topicRoute -t x", "clusterList -n no-port", "electMaster -a h:1 -bn b -c c", "noSuchCommand"),
    3: ("clusterList -n {dead}", "topicRoute -n {dead} -t {topic}", "brokerStatus -b {dead}"),
    4: ("getNamesrvConfig -n {ns};{dead}", "getBrokerConfig -b {b};{dead}"),
}
OF_KEELMQ = (
    ("status -n {ns}", 0),
    ("status -n {ns};{dead}", 1),
    ("status", 2),
    ("status -n {dead}", 3),
    ("doctor -n {ns}", 0),
    ("doctor -n {dead}", 1),
    ("doctor", 2),
    ("verify -n {ns}", 1),
    ("verify", 2),
    ("verify -n {dead}", 3),
    ("rebalance-masters -n {ns} --dry-run", 1),
    ("rebalance-masters -n {dead} --dry-run", 3),
    ("upgrade -n {ns} --plan --only controllers", 0),
    ("upgrade -n {ns} --plan --to 99.0", 1),
    ("upgrade -n {ns} --to newest", 2),
    ("upgrade -n {dead}", 3),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWorld]:
    with BrokerWorld(tmp_path_factory.mktemp("broker")).running() as world:
        yield world


def arguments(line: str, world: BrokerWorld) -> list[str]:
    return line.format(ns=world.namesrv, b=world.address, dead=DEAD, topic=TOPIC, group=GROUP).split()


def table() -> dict[int, str]:
    """The documented codes with their meanings."""
    return {int(code): text for code, text in re.findall(r"^\| (\d) \| (.+) \|$", PAGE, re.MULTILINE)}


def documented(command: str) -> set[int]:
    """The codes in the section of a command of keelmq."""
    section = PAGE.split(f"### `keelmq {command}`\n", 1)[1].split("\n### ", 1)[0]
    sentences = re.findall(r"Exit codes?:? (.+?)\.(?:\s|$)", section, re.DOTALL)
    return {int(code) for each in sentences for code in re.findall(r"\b(\d)[: ]", each)}


def test_every_code_of_the_table_is_met(world: BrokerWorld) -> None:
    assert table().keys() == OF_MQADMIN.keys() | {5}
    for code, lines in OF_MQADMIN.items():
        for line in lines:
            result = mqadmin(*arguments(line, world))
            assert result.exit_code == code, (line, table()[code], result.output)
            assert bool(result.stderr) is (code != 0) or "--diff" in line, line


@pytest.mark.parametrize("module", ["cli.mqadmin.main", "cli.keelmq"])
def test_an_answer_that_cannot_be_written(world: BrokerWorld, module: str) -> None:
    """Code 5 of the table, of both programs."""
    line = "clusterList -n {ns}" if module == "cli.mqadmin.main" else "version"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments(line, world)],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 5, done.stderr


def test_what_sections_of_keelmq_say_is_met(world: BrokerWorld) -> None:
    for line, code in OF_KEELMQ:
        args = arguments(line, world)
        result = CliRunner().invoke(keelmq_app, args)
        assert result.exit_code == code, (line, result.output)
        assert code in documented(args[0]), f"docs/cli.md does not say when {args[0]} ends with {code}"
