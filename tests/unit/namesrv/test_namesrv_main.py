"""mqnamesrv as an operator meets it: flags, one-line errors, the ready line, SIGTERM."""

import argparse
import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from namesrv.program import build, run

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "namesrv", "--set", "bindAddress=127.0.0.1", "--set", "httpPort=-1"]


@pytest.fixture(autouse=True)
def _quiet_root_logger() -> Iterator[None]:
    """run() configures logging for a process; here it would outlive the test."""
    before = logging.root.handlers[:]
    yield
    logging.root.handlers[:] = before


def one_line_error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert run("mqnamesrv", list(argv)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("mqnamesrv: ")
    return line


def test_an_unknown_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("# ours\nlistenProt=9876\n")
    line = one_line_error(capsys, "-c", str(path))
    assert "'listenProt'" in line and "line 2" in line and "did you mean 'listenPort'?" in line


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--set", "listenPort=many"], "listenPort"),
        (["--set", "listenPort"], "is not KEY=VALUE"),
        (["--nonsense"], "--nonsense"),
        (["-c", "/nowhere/at.all"], "/nowhere/at.all"),
        (["--log-level", "LOUD"], "LOUD"),
    ],
)
def test_what_cannot_run(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in one_line_error(capsys, *argv)


def test_an_embedded_controller_without_a_file_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    """Namesrv pitfall 27: theirs ends with a null pointer."""
    assert run("mqnamesrv", ["--set", "enableControllerInNamesrv=true"]) == 1
    assert "controllerDLegerGroup is required and not set" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["\ufeffenableControllerInNamesrv=true\n", "enableControllerInNamesrv=y\n"])
def test_an_embedded_controller_is_never_left_out_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(text, encoding="utf-8")
    assert "controllerDLegerGroup is required and not set" in one_line_error(capsys, "-p", "-c", str(path))


def test_a_file_that_must_not_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "namesrv.conf"
    path.touch(mode=0)
    if os.access(path, os.R_OK):
        pytest.skip("root may read everything")
    assert f"cannot read {path}: Permission denied" in one_line_error(capsys, "-c", str(path))


def test_a_damaged_kv_file_stops_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":')
    keys = ["listenPort=0", "httpPort=-1", "bindAddress=127.0.0.1", f"kvConfigPath={path}"]
    line = one_line_error(capsys, *(part for key in keys for part in ("--set", key)))
    assert f"{path} is damaged" in line and "kvConfig.json.bak" in line


def test_run_time_settings_are_read_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf, stored = tmp_path / "namesrv.conf", tmp_path / "namesrv.properties"
    conf.write_text(f"enableTopicList=true\nconfigStorePath={stored}\n")
    stored.write_text("enableTopicList=false\n")
    assert run("mqnamesrv", ["-p", "-c", str(conf)]) == 0
    assert "enableTopicList=false" in capsys.readouterr().out.splitlines()


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = one_line_error(
            capsys, "--set", f"listenPort={port}", "--set", "bindAddress=127.0.0.1", "--set", "httpPort=-1"
        )
    assert str(port) in line


def test_print_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=1234\nsupportActingMaster=true\n")
    assert run("mqnamesrv", ["-p", "-c", str(path), "--set", "listenPort=4321"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "listenPort=4321" in out and "supportActingMaster=true" in out


def test_sigterm_stops_cleanly() -> None:
    process = subprocess.Popen(
        [*COMMAND, "--set", "listenPort=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready: mqnamesrv listening on 127.0.0.1:"), ready
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=5)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert out == "" and "Traceback" not in err


async def test_the_controller_plugin_is_found_by_its_entry_point(tmp_path: Path) -> None:
    keys = [
        "controllerDLegerGroup=g",
        "controllerDLegerSelfId=n0",
        "controllerDLegerPeers=n0-127.0.0.1:9878",
        f"controllerStorePath={tmp_path}",
    ]
    arguments = argparse.Namespace(config=None, overrides=keys, print_config=True)
    text = await asyncio.to_thread(build, arguments, {}, controller_only=True)
    assert isinstance(text, str) and "controllerStorePath" in text
