"""Commands that destroy ask a person, and nobody else; completion; what KeelMQ will never have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.mqadmin import confirmation
from cli.mqadmin.coverage import NEVER, never_text
from cli.mqadmin.main import app
from keelmq.upstream import keys as upstream
from tests.unit.cli.mqadmin.test_mqadmin_broker import GROUP, World, ran, value

ASKING = (
    "electMaster", "cleanBrokerMetadata", "deleteTopic", "deleteSubGroup", "deleteUser", "deleteAcl",
    "wipeWritePerm", "resetOffsetByTime", "skipAccumulatedMessage", "removeController", "removeBroker",
    "deleteKvConfig",
)  # fmt: skip


def typed(answer: str, *args: str) -> Result:
    result = CliRunner().invoke(app, list(args), input=answer)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def topics(world: World) -> list[str]:
    return [str(each["topic"]) for each in value("topicList", "-n", world.namesrv)]


def made(world: World, topic: str) -> tuple[str, ...]:
    """Creates the topic, and returns the command that deletes it."""
    ran("updateTopic", "-n", world.namesrv, "-c", "DefaultCluster", "-t", topic)
    return ("deleteTopic", "-n", world.namesrv, "-c", "DefaultCluster", "-t", topic)


def test_a_person_is_shown_what_happens_and_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "is_interactive", lambda: True)
    delete = made(world, "doomed")
    no = typed("n\n", *delete)
    assert no.exit_code == 1 and "success" not in no.stdout
    assert f"would delete topic [doomed] at {world.address}" in no.stderr
    assert "Do this now?" in no.stderr and "nothing was changed" in no.stderr
    again = typed("n\n", *delete)
    assert "would delete topic [doomed]" in again.stderr, "it is still there"
    yes = typed("y\n", *delete)
    assert yes.exit_code == 0 and "delete topic [doomed] from cluster [DefaultCluster] success." in yes.stdout


def test_yes_and_dry_run_do_not_ask(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "is_interactive", lambda: True)
    delete = made(world, "doomed-2")
    shown = typed("", *delete, "--dry-run")
    assert shown.exit_code == 0 and "Do this now?" not in shown.stderr
    gone = typed("", *delete, "--yes")
    assert gone.exit_code == 0 and "Do this now?" not in gone.stderr


def test_a_preview_that_fails_is_told_and_the_question_follows(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confirmation, "is_interactive", lambda: True)
    answer = typed("n\n", "deleteSubGroup", "-b", world.address, "-g", "nobody")
    assert answer.exit_code == 1 and "cannot show what this would do" in answer.stderr


def test_scripts_are_not_asked(world: World) -> None:
    """The runner's standard input is no terminal."""
    done = ran(*made(world, "doomed-3"))
    assert "success" in done.stdout and "Do this now?" not in done.stderr


def test_what_would_be_lost_with_a_group(world: World) -> None:
    shown = ran("deleteSubGroup", "-b", world.address, "-g", GROUP, "--dry-run")
    assert f"would delete group [{GROUP}] at {world.address}: 6 messages not consumed" in shown.stdout
    (row,) = value("deleteSubGroup", "-b", world.address, "-g", GROUP, "--dry-run")
    assert (row["known"], row["behind"]) == (True, 6)
    assert (
        "does not exist" in ran("deleteSubGroup", "-b", world.address, "-g", "x", "--dry-run", code=1).stderr
    )


def test_every_command_that_destroys_has_both_options() -> None:
    commands = {each.name: each.callback for each in app.registered_commands}
    for name in ASKING:
        annotations = getattr(commands[name], "__annotations__", {})
        assert {"yes", "dry_run"} <= annotations.keys(), name


def test_every_command_of_rocketmq_is_here_or_says_why_not() -> None:
    names = {each.name for each in app.registered_commands}
    theirs = set(upstream.names().commands)
    assert len(theirs) == 96 and theirs <= names and set(NEVER) <= theirs
    for name in NEVER:
        refused = ran(name.upper(), "-n", "10.0.0.1:9876", "-c", "DefaultCluster", "-x", code=1)
        assert refused.stderr == f"mqadmin: {never_text(name)}\n" and not refused.stdout
    shown = ran("--help").stdout
    assert not any(name in shown for name in NEVER)


@pytest.mark.parametrize(
    ("module", "variable", "words", "expected"),
    [
        (
            "cli.mqadmin.main",
            "_MQADMIN_COMPLETE",
            "mqadmin topic",
            {"topicList", "topicRoute", "topicStatus"},
        ),
        ("cli.mqadmin.main", "_MQADMIN_COMPLETE", "mqadmin topicRoute --na", {"--namesrvAddr"}),
        ("cli.keelmq", "_KEELMQ_COMPLETE", "keelmq container ", {"list", "status", "move"}),
    ],
)
def test_completion(module: str, variable: str, words: str, expected: set[str], tmp_path: Path) -> None:
    """As the script of --show-completion asks."""
    environ = {**os.environ, variable: "complete_bash", "COMP_WORDS": words, "HOME": str(tmp_path)}
    environ["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    run = subprocess.run(
        [sys.executable, "-c", f"from {module} import main; main()"],
        env=environ, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert expected <= set(run.stdout.split()), run
