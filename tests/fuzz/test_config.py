"""Configuration files and command lines of the servers: whatever they say, a program starts, or it refuses in
one clear line with exit code 1; no traceback."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import broker.app.program as mqbroker
import namesrv.program as mqnamesrv
from broker.config.broker_config import BrokerConfig
from keelmq.runtime import program
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

Run = Callable[[list[str]], int]
PROGRAMS: dict[str, Run] = {
    "mqnamesrv": lambda argv: mqnamesrv.run("mqnamesrv", argv),
    "mqcontroller": lambda argv: mqnamesrv.run("mqcontroller", argv, controller_only=True),
    "mqbroker": mqbroker.run,
}
KEYS = sorted(
    {
        str(field.alias)
        for model in (BrokerConfig, ControllerConfig, NamesrvConfig)
        for field in model.model_fields.values()
    }
)
VALUES = st.sampled_from(
    [
        "", "0", "1", "-1", "true", "false", "TRUE", "yes", "9876", "65536", "99999999999999999999",
        "9" * 5_000, "1e3", "1.5", "NaN", "0x10", "1_000", "٣", "x", "é", "\x00", "a\x00b",
        "127.0.0.1", "256.1.1.1", "::1", "[::1]", "localhost:", ":1", "h:99999", "a.b:1;c.d:2;", ";", ";;",
        "n0-127.0.0.1:9878", "n0-127.0.0.1:9878;n0-127.0.0.1:9879", "n0", "..", "/dev/null/x",
        "~nobody-of-that-name/x", "x" * 300, "a" * 64 + ".example", "{}", "[]", "null", "%s", "$HOME", "\\",
        '"1"', " 1 ", "1 # 2", "=", "a=b",
    ]
)  # fmt: skip
PAIRS = st.tuples(
    st.one_of(st.sampled_from(KEYS), st.text(max_size=8)), st.one_of(VALUES, st.text(max_size=12))
)
LINES = st.one_of(
    PAIRS.map("=".join), PAIRS.map("=".join), PAIRS.map("=".join), st.text(max_size=30), st.just("# comment")
)
FILES = st.one_of(
    st.lists(LINES, max_size=6).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass")),
    st.binary(max_size=40),
)
WORDS = st.one_of(
    st.sampled_from(
        ["-c", "--set", "-p", "-n", "--log-level", "DEBUG", "--controller-only", "-x", "--", "", "x"]
    ),
    PAIRS.map("=".join),
).filter(lambda word: "\0" not in word)  # no argument of a process has one


def said(capsys: pytest.CaptureFixture[str], run: Run, argv: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr; --help ends by itself."""
    capsys.readouterr()
    try:
        code = run(argv)
    except SystemExit as end:
        code = int(end.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def check(name: str, code: int, out: str, err: str) -> None:
    error_lines = [line for line in err.splitlines() if line.startswith(f"{name}: ")]
    assert "Traceback" not in err, err
    if code == 0:
        assert not error_lines, err
    else:
        assert code == 1, (code, err)
        assert len(error_lines) == 1, err
        assert len(error_lines[0]) > len(name) + 8, "it says what is wrong"
        assert err.endswith("\n")


EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "60"))
ONCE = settings(
    max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_file_is_read_or_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.conf"

    @ONCE
    @given(FILES)
    @example(b"listenPort=" + b"9" * 5_000)
    @example(b"\xff\xfe")
    @example(b"\xef\xbb\xbflistenPort=1")
    @example(b"listenPort")
    @example("listenPort\u2028=1".encode())
    def whatever(data: bytes) -> None:
        path.write_bytes(data)
        check(name, *said(capsys, PROGRAMS[name], ["-c", str(path), "-p"]))

    whatever()


@pytest.mark.parametrize("name", PROGRAMS)
def test_any_command_line_is_read_or_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    @ONCE
    @given(st.lists(WORDS, max_size=5))
    @example(["-c", "/"])
    @example(["--set"])
    @example(["--set", "="])
    @example(["--log-level", "LOUD"])
    @example(["-h"])
    def whatever(words: list[str]) -> None:
        check(name, *said(capsys, PROGRAMS[name], ["-p", *words]))

    whatever()


@pytest.mark.parametrize("name", ["mqnamesrv", "mqbroker"])
def test_any_file_starts_a_program_or_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the check of values: ports, hosts and directories that the system refuses."""

    def stopped(count: int = 1) -> list[asyncio.Event]:
        events = [asyncio.Event() for _ in range(count)]
        for event in events:
            event.set()
        return events

    monkeypatch.setattr(program, "stop_events", stopped)
    monkeypatch.setattr(mqnamesrv, "stop_event", lambda: stopped()[0])
    monkeypatch.setattr(program, "say_ready", lambda line: None)
    monkeypatch.setattr(mqnamesrv, "say_ready", lambda line: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    good = {"listenPort": "0", "bindAddress": "127.0.0.1", "httpPort": "-1"}
    if name == "mqbroker":
        good |= {"storePathRootDir": str(tmp_path / "store"), "brokerIP1": "127.0.0.1", "haListenPort": "0"}
        good |= {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}
    else:
        good |= {"kvConfigPath": str(tmp_path / "kv.json")}
    model = BrokerConfig if name == "mqbroker" else NamesrvConfig
    keys = sorted(str(field.alias) for field in model.model_fields.values())
    bad = st.dictionaries(st.sampled_from(keys), VALUES, min_size=1, max_size=2)

    @settings(ONCE, max_examples=EXAMPLES // 2)
    @given(bad)
    @example({"bindAddress": "a" * 64 + ".example"})
    @example({"bindAddress": "a\x00b"})
    @example({"kvConfigPath": "a\x00b", "storePathRootDir": "a\x00b"})
    @example({"kvConfigPath": "/dev/null/x", "storePathRootDir": "/dev/null/x"})
    @example({"securityPath": "9" * 5_000})
    @example({"securityPath": "~nobody-of-this-name"})
    def whatever(changes: dict[str, str]) -> None:
        lines = {**good, **{key: value for key, value in changes.items() if key in keys}}
        path = tmp_path / "program.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        check(name, *said(capsys, PROGRAMS[name], ["-c", str(path)]))

    whatever()


def test_the_check_sees_a_traceback_and_silence() -> None:
    """Test the tester."""
    for code, err in ((1, ""), (1, "Traceback\n"), (2, "mqbroker: no such thing\n"), (1, "mqbroker: \n")):
        with pytest.raises(AssertionError):
            check("mqbroker", code, "", err)
    check("mqbroker", 1, "", "mqbroker: cannot read x\n")
