"""keelmq audit, and the reader below it: order, filters, torn lines, rotation while it follows."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli import audit as command
from cli.keelmq import app
from keelmq.runtime.rotated_file import RotatedFile
from keelmq.security.audit.reader import AuditReader


def line(second: int, **more: object) -> dict[str, Any]:
    return {
        "ts": f"2026-03-01T12:00:{second:02}.000Z",
        "program": "mqbroker",
        "node": "b",
        "address": "10.0.0.7:5000",
        "tls": False,
        "code": 17,
        "operation": "UPDATE_AND_CREATE_TOPIC",
        "fields": {"topic": f"t{second}"},
        "resources": [f"Topic:t{second}"],
        "outcome": "ok",
        "answer": 0,
        **more,
    }


def write(path: Path, *lines: dict[str, Any], end: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + end)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two programs, one of them with older files, and a line that a crash has torn."""
    made = tmp_path / "audit"
    write(made / "mqbroker-1.log.10", line(1), line(2))
    write(made / "mqbroker-1.log.2", line(3))
    write(made / "mqbroker-1.log", line(6), end='{"ts": "2026-03-01T12:00:09')
    refused = line(5, outcome="refused", answer=16, claimed="bob", remark="check signature failed.", code=215)
    write(made / "mqbroker-1.refused.log", refused | {"operation": "DELETE_TOPIC_IN_BROKER"})
    changes = {"value": {"old": None, "new": "\x1b[2J"}}
    kv = line(4, program="mqnamesrv", code=100, operation="PUT_KV_CONFIG", user="alice", tls=True)
    kv |= {"fields": {"namespace": "n", "key": "k\x07"}, "resources": [], "changes": changes}
    write(made / "mqnamesrv-2.log", kv, line(7, outcome="failed", answer=1, program="mqnamesrv"))
    (made / "notes.txt").write_text("not ours")
    return made


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["audit", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def shown(directory: Path, *arguments: str) -> list[int]:
    """The seconds of the lines that are shown."""
    output = run("--dir", str(directory), "--json", *arguments)
    return [int(json.loads(each)["ts"][17:19]) for each in output.splitlines() if each.startswith("{")]


def test_files_are_read_in_order_and_merged(directory: Path) -> None:
    assert shown(directory) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["--since", "2026-03-01T12:00:06"], [6, 7]),
        (["--until", "2026-03-01T13:00:03+01:00"], [1, 2]),
        (["--since", "10m"], []),
        (["--user", "alice"], [4]),
        (["--user", "bob"], [5]),
        (["--code", "100", "--code", "215"], [4, 5]),
        (["--operation", "kv_config"], [4]),
        (["--topic", "t3"], [3]),
        (["--topic", "t"], []),
        (["--resource", "T3"], [3]),
        (["--outcome", "refused"], [5]),
        (["--outcome", "failed", "--outcome", "ok", "--topic", "t7"], [7]),
    ],
)
def test_filters(directory: Path, arguments: list[str], seconds: list[int]) -> None:
    assert shown(directory, *arguments) == seconds


def test_single_files(directory: Path) -> None:
    output = run(str(directory / "mqbroker-1.log.2"), str(directory / "mqbroker-1.log"), "--json")
    assert [json.loads(each)["fields"]["topic"] for each in output.splitlines()] == ["t3", "t6"]


def test_a_table(directory: Path) -> None:
    rows = run("--dir", str(directory)).splitlines()
    assert rows[0].split() == ["TIME", "(UTC)", "OUTCOME", "WHERE", "WHO", "WHAT", "ON"]
    assert rows[4] == (
        "2026-03-01 12:00:04.000 ok       b                         "
        "alice 10.0.0.7:5000 TLS               PUT_KV_CONFIG"
        "                       namespace=n key=k\\x07"
    )
    assert rows[5].strip() == 'value: none -> "\\u001b[2J"'
    assert rows[6].split()[2:] == [
        "refused",
        "b",
        "bob?",
        "10.0.0.7:5000",
        "DELETE_TOPIC_IN_BROKER",
        "Topic:t5",
    ]
    assert rows[7].strip() == "check signature failed."


def test_damaged_lines_are_counted(directory: Path) -> None:
    path = directory / "mqbroker-1.log.2"
    path.write_text("garbage\n[1]\n\n" + path.read_text())
    output = run("--dir", str(directory), "--json")
    assert "2 lines are damaged" in output
    assert output.count('"ts"') == 7


def test_a_folder_with_other_logs_is_no_empty_audit_log(tmp_path: Path) -> None:
    (tmp_path / "broker.log").write_text("2026-03-01 12:00:00.000 INFO broker: started\n")
    output = run("--dir", str(tmp_path), code=1)
    assert "no files of an audit log" in output and "auditPath" in output


def test_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "auditPath" in run("--dir", str(tmp_path / "nowhere"), code=1)
    (tmp_path / "x.txt").write_text("")
    assert "is no file of an audit log" in run(str(tmp_path / "x.txt"), code=1)
    assert "not a time" in run("--since", "yesterday", code=2)
    monkeypatch.setenv("HOME", str(tmp_path))
    output = run(code=1)
    assert "there is no audit log in ~/store/audit" in output and "--dir" in output
    (tmp_path / "store").mkdir()
    write(tmp_path / "store" / "audit" / "mqbroker-1.log", line(1))
    assert "Topic:t1" in run()
    assert "no such line" in run("--user", "nobody")


def test_a_directory_without_files_is_named(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, home = tmp_path / "empty", tmp_path / "home"
    empty.mkdir()
    (empty / "notes.txt").write_text("")
    output = run("--dir", str(empty), code=1)
    assert f"there are no audit files in {empty}" in output and "~/store/audit" in output
    assert "no such line" not in output
    output = run("--dir", str(empty), "--dir", str(directory))
    assert f"there are no audit files in {empty}" in output and "Topic:t1" in output

    monkeypatch.setenv("HOME", str(home))
    (home / "store" / "audit").mkdir(parents=True)
    assert f"there are no audit files in {home}/store/audit" in run(code=1)
    (home / "namesrv").mkdir()
    write(home / "namesrv" / "audit" / "mqnamesrv-1.log", line(1))
    output = run()
    assert "there are no audit files" not in output and "Topic:t1" in output


def test_what_follows_waits_for_the_first_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> Iterator[None]:
        write(tmp_path / "mqbroker-1.log", line(1))
        yield
        raise KeyboardInterrupt

    step = steps()
    monkeypatch.setattr(command.time, "sleep", lambda _: next(step))
    output = run("--dir", str(tmp_path), "--follow")
    assert f"there are no audit files in {tmp_path}" in output and "Topic:t1" in output


def test_a_file_that_only_others_may_read_says_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Only the user that runs the program may read" in run("--dir", str(directory), code=1)


def test_it_follows_over_a_rotation(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path, "mqbroker-1", bytes_max=300, files=3)
    reader = AuditReader([tmp_path])

    def seconds() -> list[int]:
        return [int(entry["ts"][17:19]) for entry in reader.read()]

    def append(second: int) -> None:
        file.append(json.dumps(line(second)).encode() + b"\n")

    append(1)
    assert seconds() == [1]
    assert seconds() == []
    append(2)  # a new file
    assert (tmp_path / "mqbroker-1.log.1").exists()
    assert seconds() == [2]
    file.append(json.dumps(line(3)).encode()[:10])
    assert seconds() == []
    reader.close()
    file.close()


def test_follow_goes_on_until_ctrl_c(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> Iterator[None]:
        with (directory / "mqnamesrv-2.log").open("a") as file:
            file.write(json.dumps(line(8)) + "\n")
        yield
        raise KeyboardInterrupt

    step = steps()
    monkeypatch.setattr(command.time, "sleep", lambda _: next(step))
    output = run("--dir", str(directory), "--json", "--follow")
    assert [json.loads(each)["ts"][17:19] for each in output.splitlines()][-2:] == ["07", "08"]
