"""The command that restarts a server: its placeholders, what is refused, and how its end is told."""

import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.upgrade.core.view import Kind, Server
from cli.upgrade.restart_command import UNITS, RestartFailed, parse_command, run_restart
from tests.deploy.test_systemd import ETC

SYSTEMCTL = "env ssh {host} sudo systemctl restart {unit}"


def server(address: str = "10.0.0.2:10911", name: str = "broker-a", kind: Kind = Kind.BROKER) -> Server:
    return Server(kind, address, name, f"{name} at {address}", frozenset({"0.1.0"}))


def test_every_unit_is_one_that_init_writes() -> None:
    assert set(UNITS) == set(Kind)
    for unit in UNITS.values():
        assert (ETC / "systemd" / "system" / f"{unit}.service").is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SYSTEMCTL, ["env", "ssh", "10.0.0.2", "sudo", "systemctl", "restart", "keelmq-broker"]),
        ("env {kind} {address} {name}", ["env", "broker", "10.0.0.2:10911", "broker-a"]),
        (
            "env 'pip install keelmq=={version} && restart {unit}'",
            ["env", "pip install keelmq==0.2.0 && restart keelmq-broker"],
        ),
        ("env {{host}} '$HOME' `id`", ["env", "{host}", "$HOME", "`id`"]),  # there is no shell
    ],
)
def test_placeholders(text: str, words: list[str]) -> None:
    assert parse_command(text).for_server(server(), "0.2.0") == words


def test_an_ipv6_address() -> None:
    words = parse_command("env {host} {address}").for_server(server("[fd00::2]:10911"), "0.2.0")
    assert words == ["env", "fd00::2", "[fd00::2]:10911"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the command is empty"),
        ("env '", "No closing quotation"),
        ("env {hots}", "{hots} is no placeholder; placeholders are {host}, {unit}, {kind}, {address}"),
        ("env {host.label}", "{host.label} is no placeholder"),
        ("env {host!r}", "{host} is no placeholder"),
        ("env {host:>9}", "{host} is no placeholder"),
        ("env {}", "{} is no placeholder"),
        ("env {host", "expected '}' before end of string"),
        ("no-such-program-here {host}", "there is no program 'no-such-program-here' here"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_command(text)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize(
    "name", ["a;reboot", "$(id)", "a b", "-oProxyCommand=x", "a|b", "a\nb", "", "`id`", "a'b"]
)
def test_a_name_that_a_shell_could_read_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="it is not put into a command"):
        parse_command("env {name}").for_server(server(name=name), "0.2.0")
    assert parse_command("env {host}").for_server(server(name=name), "0.2.0"), "it is not in the command"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def test_the_output_is_in_the_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    await run_restart(python("import sys; print('one'); print('two', file=sys.stderr)"), log, timeout_s=30)
    assert sorted(log.read_text().split()) == ["one", "two"]


async def test_its_end_is_told_when_it_fails(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = python("print('one\\n' * 99 + 'no such unit'); raise SystemExit(5)")
    with pytest.raises(RestartFailed) as caught:
        await run_restart(words, log, timeout_s=30)
    told = str(caught.value)
    assert told.startswith(f"{shlex.join(words)}: exit code 5; its output is in {log}, and ends: ")
    assert told.endswith("one / no such unit") and told.count("one /") == 7
    with pytest.raises(RestartFailed, match=r"ended by signal 9; its output is in .*, and empty"):
        await run_restart(python("import os; os.kill(os.getpid(), 9)"), log, timeout_s=30)
    with pytest.raises(RestartFailed, match="Permission denied"):
        await run_restart([str(tmp_path)], log, timeout_s=30)


async def test_it_has_a_time_limit_with_all_that_it_started(tmp_path: Path) -> None:
    """What the command started ends as well: it would go on to restart the server."""
    log = tmp_path / "log"
    inner = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    words = python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])")
    with pytest.raises(RestartFailed, match=r"not done within 2 s, and killed here"):
        await run_restart(words, log, timeout_s=2)
    cmdline = Path(f"/proc/{int(log.read_text())}/cmdline")
    until(lambda: not cmdline.exists() or not cmdline.read_bytes())


def test_it_goes_on_if_this_program_is_interrupted(tmp_path: Path) -> None:
    begun, go, done = (tmp_path / name for name in ("begun", "go", "done"))
    inner = (
        f"from pathlib import Path\nPath({str(begun)!r}).touch()\n"
        f"while not Path({str(go)!r}).exists(): pass\nPath({str(done)!r}).touch()"
    )
    outer = (
        "import asyncio, pathlib\nfrom cli.upgrade.restart_command import run_restart\n"
        f"asyncio.run(run_restart({python(inner)!r}, pathlib.Path({str(tmp_path / 'log')!r}), timeout_s=60))"
    )
    with subprocess.Popen(python(outer), stderr=subprocess.PIPE) as process:
        until(begun.exists)
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate(timeout=20)[1]
    go.touch()
    until(done.exists)


def until(holds: Callable[[], bool]) -> None:
    """Fails if it does not hold in time."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        threading.Event().wait(0.01)
