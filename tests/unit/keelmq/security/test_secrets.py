"""Secrets of configurations: masked wherever settings are shown, not on command lines, not in files that
others may read, and no request reads or changes them. tests/cluster/test_secrets.py asks real programs."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import broker.app.program
import namesrv.program
from broker.config.broker_config import BrokerConfig
from keelmq import Credentials, TlsSettings
from keelmq.remoting.config_store import ConfigSources, ConfigStore, StoredConfig
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations.auth import UserInfo
from keelmq.runtime import durable_file
from keelmq.runtime.config import (
    Config,
    ConfigError,
    load_config,
    secret_keys,
    setting_sources,
    to_properties,
)
from keelmq.runtime.durable_file import replace_file
from keelmq.runtime.tls.settings import TlsConfig
from keelmq.security.config import SecurityConfig
from keelmq.security.core.users import User
from keelmq.security.private_file import exposed, exposed_settings, exposed_tls_file, read_private
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import AT_RUN_TIME, ControllerConfig
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.settings import LiveConfig

CANARY = "canary-7f3a9c51-canary"
CONTROLLER = {
    "controllerDLegerGroup": "g",
    "controllerDLegerPeers": "n0-127.0.0.1:9878",
    "controllerDLegerSelfId": "n0",
}
MODELS: dict[type[Config], dict[str, str]] = {
    BrokerConfig: {"brokerName": "b"},
    NamesrvConfig: {},
    ControllerConfig: CONTROLLER,
}
STORED: tuple[type[StoredConfig], ...] = (BrokerConfig, NamesrvConfig)
MASK = "**********"


def secret_values(model: type[Config]) -> dict[str, str]:
    """A valid value for every key of the model that is secret."""
    texts = {
        "initAuthenticationUser": json.dumps({"username": "admin", "password": CANARY}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "inner", "secretKey": CANARY}),
    }
    return {key: texts.get(key, CANARY) for key in secret_keys(model)}


def loaded(model: type[Config]) -> Config:
    settings = {**MODELS[model], **secret_values(model)}
    (config,) = load_config(model, path=None, environ={}, overrides=settings)
    return config


def path_keys(model: type[Config]) -> set[str]:
    return {
        field.alias or name
        for name, field in model.model_fields.items()
        if Path in (field.annotation, *get_args(field.annotation))
    }


# -- what is shown ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_no_text_of_a_configuration_has_a_secret(model: type[Config]) -> None:
    config = loaded(model)
    assert secret_keys(model), "a model without secrets proves nothing"
    for text in (repr(config), str(config), to_properties(config), config.model_dump_json(by_alias=True)):
        assert CANARY not in text
    shown = dict(line.split("=", 1) for line in to_properties(config).splitlines())
    assert {shown[key] for key in secret_keys(model)} == {MASK}


@pytest.mark.parametrize("model", MODELS)
def test_every_key_that_sounds_secret_is_one(model: type[Config]) -> None:
    """A new key must be a SecretStr, or the path of a file."""
    sounds = {
        field.alias or name
        for name, field in model.model_fields.items()
        if any(word in name for word in ("password", "secret", "credential", "token", "init_auth"))
    }
    assert sounds - path_keys(model) == secret_keys(model)


def test_no_repr_has_a_secret(tmp_path: Path) -> None:
    shown: list[Any] = [
        ConfigSources(environ={"KEELMQ_initAuthenticationUser": CANARY}),
        Credentials("inner", CANARY, CANARY),
        TlsSettings(password=CANARY),
        TlsSettings(password=CANARY).files(),
        UserInfo(username="u", password=CANARY),
        User("u", CANARY),
        RaftSettings(self_id="n0", members={}, directory=tmp_path, cluster_id="c", secret=CANARY.encode()),
    ]
    for each in shown:
        assert CANARY not in repr(each) and CANARY not in str(each)


def test_errors_of_models_do_not_repeat_their_input() -> None:
    """They may end in a log, as part of a traceback."""
    with pytest.raises(ValidationError) as config_error:
        NamesrvConfig.model_validate({"tls.server.keyPassword": [CANARY]})
    with pytest.raises(ValidationError) as wire_error:
        UserInfo.model_validate({"username": "u", "password": [CANARY]})
    assert CANARY not in f"{config_error.value}{wire_error.value!r}"


@pytest.mark.parametrize("model", MODELS)
def test_a_bad_secret_is_not_in_the_error(model: type[Config]) -> None:
    for key in secret_keys(model):
        values = {**MODELS[model], key: f"{{{CANARY}"}
        try:
            load_config(model, path=None, environ={}, overrides=values)
        except ConfigError as error:
            assert CANARY not in str(error) and key in str(error)


# -- where secrets come from -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", sorted(secret_keys(BrokerConfig)))
def test_the_broker_refuses_a_secret_on_its_command_line(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert broker.app.program.run(["--set", f"{key}={CANARY}"]) == 1
    said = capsys.readouterr().err
    assert f"--set {key} shows a secret" in said and f"KEELMQ_{key}" in said and CANARY not in said


@pytest.mark.parametrize("key", sorted(secret_keys(NamesrvConfig, ControllerConfig)))
def test_the_controller_refuses_a_secret_on_its_command_line(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--set", "enableControllerInNamesrv=true", "--set", f"{key}={CANARY}"]
    assert namesrv.program.run("mqnamesrv", arguments) == 1
    said = capsys.readouterr().err
    assert f"--set {key} shows a secret" in said and CANARY not in said


@pytest.mark.parametrize(
    ("mode", "is_exposed"), [(0o600, False), (0o400, False), (0o640, True), (0o604, True)]
)
def test_a_configuration_file_with_a_secret_that_others_may_read(
    tmp_path: Path, mode: int, is_exposed: bool
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"brokerName=b\ntls.server.keyPassword={CANARY}\ntls.client.keyPassword=x\n")
    path.chmod(mode)
    sources = setting_sources(BrokerConfig, path=path, environ={}, overrides={})
    found = list(exposed_settings(secret_keys(BrokerConfig), sources))
    if not is_exposed:
        assert found == []
        return
    assert found == [f"{path} has secrets in it and mode {mode:o}: others may open it; chmod 600 {path}"]
    with pytest.raises(ValueError, match="chmod 600"):
        read_private(path, 1_000)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another group")
@pytest.mark.parametrize(
    ("mode", "owner", "is_exposed"), [(0o640, 0, False), (0o644, 0, True), (0o640, 7, True)]
)
def test_root_may_grant_a_secret_to_the_group_of_a_program(
    tmp_path: Path, mode: int, owner: int, is_exposed: bool
) -> None:
    """As `keelmq init` installs them: keelmq doctor runs as root, the program does not."""
    path = tmp_path / "member.json"
    path.write_text("{}")
    path.chmod(mode)
    os.chown(path, owner, 10_001)
    assert (exposed(path) is not None) == is_exposed


def test_a_configuration_file_without_a_secret_may_be_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerName=b\n")
    path.chmod(0o644)
    environ = {"KEELMQ_tls.server.keyPassword": CANARY}
    sources = setting_sources(BrokerConfig, path=path, environ=environ, overrides={})
    assert list(exposed_settings(secret_keys(BrokerConfig), sources)) == []
    assert exposed(tmp_path / "absent") is None


def test_a_secret_below_security_path_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "security.conf"
    path.write_text(f"tls.server.keyPassword={CANARY}\n")
    path.chmod(0o644)
    overrides = {"securityPath": str(tmp_path)}
    sources = setting_sources(NamesrvConfig, path=None, environ={}, overrides=overrides)
    (found,) = exposed_settings(secret_keys(NamesrvConfig), sources)
    assert found.startswith(f"{path} has secrets in it and mode 644")


def test_the_start_warns_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(f"tls.server.mode=disabled\nhttpPort=-1\ntls.server.keyPassword={CANARY}\n")
    path.chmod(0o644)
    arguments = namesrv.program.make_parser("mqnamesrv").parse_args(["-c", str(path)])
    namesrv.program.build(arguments, {}, controller_only=False)
    assert f"chmod 600 {path}" in caplog.text and CANARY not in caplog.text


def test_a_tls_file_with_a_password_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "tls.properties"
    config = NamesrvConfig.model_validate({"tls.config.file": path})
    for text, mode, count in (
        (f"tls.server.keyPassword={CANARY}\n", 0o644, 1),
        (f"tls.server.keyPassword={CANARY}\n", 0o600, 0),
        ("tls.server.authClient=false\n", 0o644, 0),
    ):
        path.write_text(text)
        path.chmod(mode)
        found = list(exposed_tls_file(config))
        assert len(found) == count and all(f"chmod 600 {path}" in each for each in found)


def test_a_new_version_of_a_private_file_is_private_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """25 rewrites the -c file, which may have a secret in it."""
    path, modes = tmp_path / "broker.conf", []
    path.write_text(CANARY)
    path.chmod(0o600)
    sync = os.fsync
    monkeypatch.setattr(
        durable_file.os,
        "fsync",
        lambda number: (modes.append(os.fstat(number).st_mode & 0o777), sync(number)),
    )
    replace_file(path, b"new")
    assert modes[0] == 0o600 and path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "broker.conf.bak").stat().st_mode & 0o777 == 0o600


# -- what requests change --------------------------------------------------------------------------------


def dangerous(model: type[Config]) -> Iterator[str]:
    """Secrets, switches of security and TLS, and every path of a file."""
    switches = {
        field.alias or name
        for base in (SecurityConfig, TlsConfig)
        for name, field in base.model_fields.items()
        if name in model.model_fields
    }
    yield from sorted(secret_keys(model) | switches | path_keys(model) | {"rocketmqHome", "configBlackList"})


@pytest.mark.parametrize(
    ("model", "key"), [(model, key) for model in STORED for key in dangerous(model)], ids=str
)
async def test_no_request_changes_security(model: type[StoredConfig], key: str) -> None:
    """25 and 318. The answer has no value in it, so nothing can be read back, either."""
    config = loaded(model)
    assert isinstance(config, StoredConfig)
    store = ConfigStore(config, on_change=pytest.fail)
    with pytest.raises(CommandError) as refused:
        await store.update(f"{key}=/tmp/evil".encode())
    assert refused.value.code in (1, 16) and CANARY not in refused.value.remark
    assert store.current is config and store.version == 0


@pytest.mark.parametrize("key", list(dangerous(ControllerConfig)))
def test_no_request_changes_security_of_controllers(key: str) -> None:
    """1009."""
    config = loaded(ControllerConfig)
    assert isinstance(config, ControllerConfig)
    live = LiveConfig(config, State)
    with pytest.raises(CommandError) as refused:
        live.check_changes(f"{key}=/tmp/evil".encode())
    assert refused.value.code in (1, 16) and CANARY not in refused.value.remark
    assert live.current is config


def test_nothing_dangerous_can_change_at_run_time() -> None:
    for model, keys in (
        (BrokerConfig, BrokerConfig.AT_RUN_TIME),
        (NamesrvConfig, NamesrvConfig.AT_RUN_TIME),
        (ControllerConfig, AT_RUN_TIME),
    ):
        assert not keys & set(dangerous(model))


def test_the_black_lists_are_rocketmqs() -> None:
    """With configBlackList itself, which a request could empty otherwise. Source: RocketMQ 5.3.3
    AdminBrokerProcessor and DefaultRequestProcessor, validateBlackListConfigExist."""
    assert {"brokerConfigPath", "configBlackList", "rocketmqHome"} <= BrokerConfig.BLACK_LIST
    assert {"kvConfigPath", "configBlackList", "configStorePath", "rocketmqHome"} <= NamesrvConfig.BLACK_LIST
    assert loaded(BrokerConfig).config_black_list == "configBlackList;brokerConfigPath"  # type: ignore[attr-defined]
    assert loaded(NamesrvConfig).config_black_list == "configBlackList;configStorePath;kvConfigPath"  # type: ignore[attr-defined]


def test_the_operators_black_list_counts() -> None:
    config = BrokerConfig(broker_name="b", config_black_list="brokerPermission; maxMessageSize")
    for key in ("brokerPermission", "maxMessageSize", "brokerConfigPath"):
        store = ConfigStore(config, on_change=pytest.fail)
        with pytest.raises(CommandError, match="Can not update config in black list") as refused:
            asyncio.run(store.update(f"{key}=6".encode()))
        assert refused.value.code == 16
