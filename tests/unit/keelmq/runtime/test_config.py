"""key=value configuration: sources, their order, and errors that an operator can act on."""

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import pytest
from pydantic import Field, SecretStr, model_validator

from keelmq.runtime.config import (
    Config,
    ConfigError,
    load_config,
    parse_settings,
    to_properties,
    with_settings,
)


class ServerConfig(Config):
    """One key of each kind."""

    broker_name: str = "broker-a"
    listen_port: int = Field(10911, ge=0, le=65535)
    all_ack: bool = False
    raft_secret: SecretStr | None = None


class PathConfig(Config):
    directory: Path = Path("/var/lib/x")
    key_file: Path | None = Path("/etc/key")


class StoreConfig(Config):
    """A second model of the same file, with a rule over two keys."""

    low: int = 1
    high: int = 2
    store_path: str | None = None

    @model_validator(mode="after")
    def _batched(self) -> Self:
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self


def load(
    path: Path | None = None, environ: dict[str, str] | None = None, **overrides: str
) -> tuple[Config, ...]:
    return load_config(ServerConfig, StoreConfig, path=path, environ=environ or {}, overrides=overrides)


def refused(path: Path | None = None, environ: dict[str, str] | None = None, **overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ, **overrides)
    return str(caught.value)


def test_a_file_without_an_end_is_refused(tmp_path: Path) -> None:
    """`-c /dev/zero` read until the memory of the machine was used up."""
    assert refused(Path("/dev/zero")) == "cannot read /dev/zero: it has more than 4194304 bytes"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with contextlib.suppress(BrokenPipeError), ThreadPoolExecutor(1) as writer:
        writer.submit(pipe.write_bytes, b"#" * 8_000_000)
        assert refused(pipe) == f"cannot read {pipe}: it has more than 4194304 bytes"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text("\ufeff# comment\n\n brokerName = a=b \n! more\nlistenPort=1\nallAck=true\nlow=0\n")
    return path


def test_file_then_environment_then_overrides(conf: Path) -> None:
    environ = {"KEELMQ_listenPort": "2", "KEELMQ_high": "9", "HOME": "x"}
    server, store = load(conf, environ, high="10")
    assert server == ServerConfig(broker_name="a=b", listen_port=2, all_ack=True)
    assert store == StoreConfig(low=0, high=10)
    assert load() == (ServerConfig(), StoreConfig())


def test_unknown_keys_get_a_suggestion(conf: Path) -> None:
    with conf.open("a") as file:
        file.write("brokerNme=x\nzzz=1\n")
    assert refused(conf).splitlines() == [
        f"unknown key 'brokerNme' in {conf} line 8; did you mean 'brokerName'?",
        f"unknown key 'zzz' in {conf} line 9",
    ]
    expected = "unknown key 'LISTENPORT' in environment KEELMQ_LISTENPORT; did you mean 'listenPort'?"
    assert refused(environ={"KEELMQ_LISTENPORT": "1"}) == expected
    assert refused(low_="1") == "unknown key 'low_' in --set low_; did you mean 'low'?"
    assert refused(listen_port="1").startswith("unknown key 'listen_port'")


def test_one_line_per_wrong_value(conf: Path) -> None:
    with conf.open("a") as file:
        file.write("listenPort=70000\nallAck=perhaps\nhigh=0\n")
    lines = refused(conf).splitlines()
    assert f"listenPort = '70000' in {conf} line 8: Input should be less than or equal to 65535" in lines
    assert any(line.startswith(f"allAck = 'perhaps' in {conf} line 9: ") for line in lines)
    assert any(line.startswith("low must be below high (") for line in lines)
    assert len(lines) == 3


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "none.conf"
    assert refused(missing) == f"cannot read {missing}: No such file or directory"
    bad = tmp_path / "bad.conf"
    bad.write_bytes(b"listenPort=1\n# \xd6\xd0\n")
    assert refused(bad) == (
        f"cannot read {bad}: line 2 is not UTF-8 text; convert the file, such as with iconv -f GBK -t UTF-8"
    )
    bad.write_text("listenPort\n")
    assert refused(bad) == f"{bad} line 1: 'listenPort' is not key=value"


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """As of `-c <(...)`. At the second reading it was empty: a broker with defaults."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for text in ("brokerName=a\n", "brokerName=b\n"):
        writing = threading.Thread(target=pipe.write_text, args=(text,), daemon=True)
        writing.start()
        assert load(pipe) == load(brokerName="a")
    assert pipe.read_text() == "brokerName=b\n"
    writing.join()


def test_properties_round_trip_and_hide_secrets(tmp_path: Path) -> None:
    config = ServerConfig(all_ack=True, raft_secret=SecretStr("hush"))
    text = to_properties(config)
    assert text == "allAck=true\nbrokerName=broker-a\nlistenPort=10911\nraftSecret=**********\n"
    path = tmp_path / "out.conf"
    path.write_text(to_properties(StoreConfig(low=-5)))
    assert load(path)[1] == StoreConfig(low=-5)


def test_configs_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        ServerConfig().listen_port = 1  # type: ignore[misc]


def test_an_empty_path_is_never_the_current_directory() -> None:
    """As from `KEELMQ_storePathRootDir=$UNSET`."""
    (config,) = load_config(PathConfig, path=None, environ={}, overrides={"keyFile": ""})
    assert isinstance(config, PathConfig) and config.key_file is None
    with pytest.raises(ConfigError, match="directory = '' in --set directory: is empty: write a path"):
        load_config(PathConfig, path=None, environ={}, overrides={"directory": ""})


def test_variables_of_the_tools_are_no_keys(conf: Path) -> None:
    """A shell with credentials for mqadmin can start programs."""
    of_tools = {"KEELMQ_CREDENTIALS": "f", "KEELMQ_ACCESS_KEY": "a", "KEELMQ_SECRET_KEY": "s"}
    assert load(conf, of_tools) == load(conf)
    assert "'CREDENTIAL'" in refused(conf, {"KEELMQ_CREDENTIAL": "f"})


class Heartbeats(Config):
    heartbeat_ms: int = 1_000
    silence_ms: int = 5_000
    secret: SecretStr = SecretStr("")

    @model_validator(mode="after")
    def _together(self) -> Self:
        if self.heartbeat_ms >= self.silence_ms:
            raise ValueError(f"heartbeatMs {self.heartbeat_ms} must be below silenceMs")
        if self.secret.get_secret_value() == "beat":
            raise ValueError("secret and heartbeatMs must differ")
        return self


def test_a_conflict_of_keys_names_both_where_they_are_set(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"

    def refusal(text: str, **overrides: str) -> str:
        path.write_text(text)
        with pytest.raises(ConfigError) as refused:
            load_config(
                Heartbeats,
                path=path,
                environ={"KEELMQ_silenceMs": "70"} if overrides else {},
                overrides=overrides,
            )
        return str(refused.value)

    text = "heartbeatMs 9000 must be below silenceMs"
    assert refusal("# first\nheartbeatMs=9000\n") == (
        f"{text} (heartbeatMs = '9000' in {path} line 2; silenceMs is 5000 by default: "
        "change it, or set silenceMs)"
    )
    assert refusal("silenceMs=7\nheartbeatMs=9000") == (
        f"{text} (heartbeatMs = '9000' in {path} line 2; silenceMs = '7' in {path} line 1: "
        "change one of them)"
    )
    assert refusal("", heartbeatMs="9000") == (
        f"{text} (heartbeatMs = '9000' in --set heartbeatMs; silenceMs = '70' in environment "
        "KEELMQ_silenceMs: change one of them)"
    )
    assert "secret = '**********'" in refusal("secret=beat")


def test_a_conflict_with_a_value_in_force() -> None:
    with pytest.raises(ConfigError) as refused:
        with_settings(Heartbeats(silence_ms=2_000), {"heartbeatMs": "3000"}, "the request")
    assert str(refused.value).endswith(
        "(heartbeatMs = '3000' in the request; silenceMs is 2000 now: change it, or set silenceMs)"
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"127.0.0.1\:9876;127.0.0.2\:9876", "127.0.0.1:9876;127.0.0.2:9876"),
        (r"a\=b\#c\!", "a=b#c!"),
        (r"a\b\\c", r"a\b\\c"),
        (r"a\\:b", r"a\\:b"),
        ("a:b=c#d!", "a:b=c#d!"),
    ],
)
def test_values_that_java_has_escaped(written: str, read: str) -> None:
    assert parse_settings(f"namesrvAddr={written}", "the file") == {"namesrvAddr": read}
