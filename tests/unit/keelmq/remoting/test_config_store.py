"""ConfigStore: what may change at run time, where it is kept, and that a refusal changes nothing."""

import errno
import os
from pathlib import Path

import pytest

from keelmq.remoting.config_store import IN_MEMORY_ONLY, ConfigStore, rewritten, with_stored
from keelmq.remoting.operation import CommandError
from keelmq.runtime import durable_file
from keelmq.runtime.config import UNKNOWN_KEYS_MAX, ConfigError
from namesrv.config import AT_RUN_TIME, NamesrvConfig

CONF = "# ours\nlistenPort = 9876\n\nenableTopicList=true\ncontrollerDLegerGroup=g\n"


def nothing() -> None:
    """The change is seen in the store itself."""


async def refusal(store: ConfigStore, text: str) -> tuple[int, str]:
    before = store.current
    with pytest.raises(CommandError) as refused:
        await store.update(text.encode())
    assert store.current is before and store.version == 0
    return refused.value.code, refused.value.remark


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv.conf"
    path.write_text(CONF)
    path.chmod(0o640)
    return path


async def test_a_change_is_kept_in_the_configuration_file(conf: Path) -> None:
    seen: list[bool] = []
    store = ConfigStore(
        NamesrvConfig(), path=conf, on_change=lambda: seen.append(store.current.enable_topic_list)
    )
    assert await store.update(b"enableTopicList=false\nscanNotActiveBrokerInterval=700\n") is None
    assert not store.current.enable_topic_list and store.current.scan_not_active_broker_interval == 700
    assert seen == [False]
    assert conf.read_text() == (
        "# ours\nlistenPort = 9876\n\nenableTopicList=false\ncontrollerDLegerGroup=g\n"
        "scanNotActiveBrokerInterval=700\n"
    )
    assert (conf.parent / "namesrv.conf.bak").read_text() == CONF
    assert conf.stat().st_mode & 0o777 == 0o640


async def test_without_a_file_the_answer_says_so() -> None:
    store = ConfigStore(NamesrvConfig(), on_change=nothing)
    assert await store.update(b"enableTopicList=false") == IN_MEMORY_ONLY
    assert not store.current.enable_topic_list


@pytest.mark.parametrize(
    "key",
    [
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "analyticsOutputDir",
        "enableTopicList",
    ],
)
async def test_the_black_list_comes_before_anything_is_applied(conf: Path, key: str) -> None:
    """Pitfall 17 (#6733, #7584): paths were a way in; whatever configBlackList says, they stay blocked."""
    store = ConfigStore(
        NamesrvConfig(config_black_list=" enableTopicList ; x"), path=conf, on_change=pytest.fail
    )
    answer = await refusal(store, f"supportActingMaster=true\n{key}=/tmp/evil\n")
    assert answer == (16, "Can not update config in black list.")
    assert conf.read_text() == CONF


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval = '0' in the request"),
        ("enableTopicList=maybe", "enableTopicList = 'maybe' in the request"),
        ("supportActingMaster=true\nenabelTopicList=true", "did you mean 'enableTopicList'?"),
        ("listenPort=1", "listenPort is read at start only"),
        ("no equals sign", "string2Properties error"),
        ("orderMessageEnable=true", "would win at the next start"),
        ("notifyMinBrokerIdChanged=true", "would win at the next start"),
    ],
)
async def test_a_bad_change_is_refused_as_a_whole(conf: Path, text: str, remark: str) -> None:
    store = ConfigStore(
        NamesrvConfig(),
        on_change=pytest.fail,
        path=conf,
        overrides={"orderMessageEnable": "false"},
        environ={"KEELMQ_notifyMinBrokerIdChanged": "false"},
    )
    code, said = await refusal(store, text)
    assert code == 1 and remark in said
    assert conf.read_text() == CONF


async def test_not_utf_8() -> None:
    with pytest.raises(CommandError, match="string2Properties error"):
        await ConfigStore(NamesrvConfig(), on_change=pytest.fail).update(b"\xff=1")


async def test_a_request_has_a_limit_and_an_error_names_some_keys(conf: Path) -> None:
    """Each unknown key is compared with all known ones: a million of them took ten minutes."""
    store = ConfigStore(NamesrvConfig(), path=conf, on_change=pytest.fail)
    code, remark = await refusal(store, "".join(f"listenPor{number:07}=1\n" for number in range(1_000_000)))
    assert code == 1 and "bytes; 65536 is the limit" in remark
    code, remark = await refusal(store, "".join(f"listenPor{number}=1\n" for number in range(3_000)))
    assert code == 1 and len(remark.splitlines()) == UNKNOWN_KEYS_MAX


async def test_an_empty_body_changes_nothing(conf: Path) -> None:
    store = ConfigStore(NamesrvConfig(), path=conf, on_change=pytest.fail)
    assert await store.update(b"") is None and store.version == 0


async def test_what_cannot_be_stored_is_not_applied(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(durable_file.os, "replace", read_only)
    store = ConfigStore(NamesrvConfig(), path=conf, on_change=pytest.fail)
    code, remark = await refusal(store, "enableTopicList=false")
    assert code == 1 and "namesrv.conf: Read-only file system; nothing was changed" in remark
    assert conf.read_text() == CONF


async def test_a_store_of_its_own_is_read_over_the_configuration_file(conf: Path, tmp_path: Path) -> None:
    """For a -c file that cannot be written, as a ConfigMap: configStorePath keeps what changed."""
    stored = tmp_path / "run-time" / "namesrv.properties"
    config = NamesrvConfig(config_store_path=stored)
    assert with_stored(config, conf, {}, {}) is config, "nothing was stored yet"
    await ConfigStore(config, path=conf, on_change=nothing).update(
        b"enableTopicList=false\nsupportActingMaster=true"
    )
    assert conf.read_text() == CONF
    again = with_stored(config, conf, {}, {"supportActingMaster": "false"})
    assert not again.enable_topic_list
    assert not again.support_acting_master, "--set wins"
    stored.write_text("enableTopicLisst=false\n")
    with pytest.raises(ConfigError, match=r"namesrv\.properties line 1; did you mean 'enableTopicList'"):
        with_stored(config, conf, {}, {})


def test_rewriting_keeps_everything_else() -> None:
    assert rewritten("a=1", {"b": "2"}) == "a=1\nb=2\n"
    assert rewritten("#a=1\na = 1 = 2\na=3\n", {"a": "4"}) == "#a=1\na=4\na=4\n"


def test_every_key_that_can_change_exists() -> None:
    assert {field.alias for field in NamesrvConfig.model_fields.values()} >= AT_RUN_TIME
