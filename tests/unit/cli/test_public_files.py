"""Configuration files as RocketMQ's users have published them: each starts here, or stops with its reason.

tests/fixtures/rocketmq_conf has the keys and values of files of 3.2 to 5.5: of brokers, name servers,
controllers, a container, ACL 1.0 and compose files. Names, addresses, paths, secrets and comments are
replaced; the position of a comment, quotes, spacing and typos are as they were.
"""

import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

from broker.config.broker_config import BrokerConfig
from broker.container.config import ContainerConfig
from cli.convert_config.command import Converted
from cli.convert_config.lines import Verdict
from cli.doctor.files import Kind, load
from cli.keelmq import app
from keelmq.health.findings import Level
from keelmq.runtime.config import Config, ConfigError, load_config
from keelmq.security.core.plain_acl import parse_plain_acl
from keelmq.security.plain_acl_files import load_yaml
from namesrv.config import NamesrvConfig
from namesrv.plugins.controller.config import ControllerConfig

FILES = Path(__file__).parents[2] / "fixtures" / "rocketmq_conf"
MODELS: dict[Kind, tuple[type[Config], ...]] = {
    Kind.BROKER: (BrokerConfig,),
    Kind.CONTAINER: (ContainerConfig,),
    Kind.NAMESRV: (NamesrvConfig,),
    Kind.CONTROLLER: (NamesrvConfig, ControllerConfig),
}

NO_KEYS = {
    "TransientStorePoolEnable": "a typo: RocketMQ's keys begin with a small letter",
    "autoDeleteTopicEnable": "no release deletes topics by itself",
    "brokerIp": "a typo: brokerIP1",
    "controllerClusterName": "an invention: a controller serves all clusters",
    "controllerPort": "an invention: the port is that of controllerDLegerPeers",
    "flushCommitLogInterval": "a typo: flushIntervalCommitLog",
    "maxTransferCountOnHeapInDisk": "a typo: maxTransferCountOnMessageInDisk",
    "ongPollingEnable": "a typo: longPollingEnable",
    "sendMessageTimeout": "an invention: producers have sendMsgTimeout",
    "storeCheckPoint": "a typo: storeCheckpoint",
    "storePathConsumerQueue": "a typo: storePathConsumeQueue",
    "storePathindex": "a typo: storePathIndex",
    "traceTopicName": "an invention: msgTraceTopicName",
}
"""Keys of the files that are no key of any release of RocketMQ, and why."""

NO_VARIABLES = {
    "AUTO_DELETE_TOPIC_ENABLE",
    "DEFAULT_TOPIC",
    "PERSISTENT_TOPIC_ENABLE",
}
"""Environment variables of compose files that RocketMQ's image does not read, either."""

COMMENT = "a comment needs a line of its own"
QUOTES = "quotes would be a part of the value"
VARIABLE = "variables are not replaced"
WINDOWS = "this is a path of Windows"
UNKNOWN = "unknown key"
LOG = "the log is in "
NAME = "letters, digits and . _ - % | only"
SECRET = "set controllerRaftSecretFile"
DLEDGER = "there is no DLedger CommitLog; enableControllerMode=true"
ROCKSDB = "there is no RocksDB; "
LITE = "there are no lightweight queues; "


class Reasons(NamedTuple):
    """Why a file does not start. `unchanged`, `converted`: a part of each line that says so, before and after
    the conversion; none: it starts. kind: as an operator has to say it, if the keys do not show it."""

    unchanged: tuple[str, ...] = ()
    converted: tuple[str, ...] = ()
    kind: Kind | None = None


FILE_REASONS = {
    "auto-delete.conf": Reasons((UNKNOWN,)),
    "blog-4.9.conf": Reasons((UNKNOWN,), (VARIABLE,)),
    "busy-4.5.conf": Reasons(("less than or equal to 16000000",), ("less than or equal to 16000000",)),
    "compose-4.4.conf": Reasons(),
    "compose-host-name.conf": Reasons(),
    "compose-spaces.conf": Reasons(),
    "container-5.3.conf": Reasons(),
    "controlled-5.3.conf": Reasons(("there is no address server; ",)),
    "controlled-replica.conf": Reasons(),
    "controller-alone.conf": Reasons((UNKNOWN,), ("controllerDLegerSelfId is required",)),
    "controller-in-namesrv.conf": Reasons((SECRET,), (SECRET,)),
    "controller-script.conf": Reasons((UNKNOWN,), (SECRET,)),
    "delay-levels.conf": Reasons(),
    "dledger-4.5.conf": Reasons((DLEDGER,)),
    "dledger-blog.conf": Reasons((DLEDGER, UNKNOWN), (LOG,)),
    "dump-3.2.conf": Reasons((UNKNOWN,)),
    "dump-5.1.conf": Reasons((COMMENT,)),
    "helm-5.1.conf": Reasons(),
    "helm-pop.conf": Reasons(),
    "helm-values.conf": Reasons((QUOTES,)),
    "lite-5.5.conf": Reasons((LITE, ROCKSDB)),
    "localhost.conf": Reasons(),
    "managed-4.3.conf": Reasons((NAME,), (NAME,)),
    "namesrv-3.2.conf": Reasons(kind=Kind.NAMESRV),
    "namesrv-4.9.conf": Reasons(),
    "namesrv-5.1.conf": Reasons(),
    "namesrv-empty-values.conf": Reasons(),
    "namesrv-jraft-5.3.conf": Reasons(("there is no jRaft controller; ",), (SECRET,)),
    "operator-dledger.conf": Reasons(),
    "relative-paths.conf": Reasons((LOG,), (LOG,)),
    "rocksdb-5.5.conf": Reasons((ROCKSDB,)),
    "script-auth-5.3.conf": Reasons((UNKNOWN,)),
    "shell-variables.conf": Reasons((VARIABLE,), (VARIABLE,)),
    "slave-placeholder.conf": Reasons((NAME,), (NAME,)),
    "small-underscore.conf": Reasons(),
    "sync-master-tuned.conf": Reasons(),
    "template.conf": Reasons((DLEDGER,), (VARIABLE,)),
    "tiered-5.2.conf": Reasons(("no tiered storage; ",)),
    "trace.conf": Reasons(),
    "tuned-comments.conf": Reasons((UNKNOWN,)),
    "two-masters-3.2.conf": Reasons((LOG,), (LOG,)),
    "windows-4.7.conf": Reasons((WINDOWS,), (WINDOWS,)),
    "windows-escaped.conf": Reasons((UNKNOWN,), (WINDOWS,)),
    "windows-single-broker.conf": Reasons((UNKNOWN,), (WINDOWS,)),
    "windows-slashes-5.5.conf": Reasons((WINDOWS,), (WINDOWS,)),
    "windows-source.conf": Reasons((UNKNOWN,), (WINDOWS,)),
}
YAML_FILES = sorted(path.name for path in FILES.glob("*.yml"))
ACL_FILES = [name for name in YAML_FILES if name.startswith("plain_acl")]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings that a broker has stored below ~/store."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def convert(name: str, output: Path | None = None) -> Converted:
    kind = FILE_REASONS.get(name, Reasons()).kind
    arguments = ["convert-config", str(FILES / name), "--json"]
    arguments += ["--kind", kind] if kind else []
    arguments += ["-o", str(output)] if output else []
    done = CliRunner().invoke(app, arguments)
    (file,) = json.loads(done.output)["files"]
    converted = msgspec.convert(file, Converted)
    left = keys(converted, Verdict.MISSING) | keys(converted, Verdict.UNKNOWN)
    assert done.exit_code == (1 if left or converted.problems else 0)
    return converted


def keys(converted: Converted, verdict: Verdict) -> set[str]:
    return {row.key for row in converted.rows if row.verdict is verdict}


def check(lines: list[str], reasons: tuple[str, ...]) -> None:
    """Each line has one of the reasons, and each reason is in a line."""
    assert [line for line in lines if not any(each in line for each in reasons)] == []
    assert [each for each in reasons if not any(each in line for line in lines)] == []


def test_each_file_has_its_reasons() -> None:
    names = {path.name for path in FILES.iterdir()}
    assert names == FILE_REASONS.keys() | set(YAML_FILES) and len(names) >= 25


@pytest.mark.parametrize("name", FILE_REASONS)
def test_no_key_of_a_release_is_unknown(name: str) -> None:
    assert keys(convert(name), Verdict.UNKNOWN) <= NO_KEYS.keys()


@pytest.mark.parametrize("name", FILE_REASONS)
def test_the_converted_file_starts_or_the_report_says_why_not(name: str, tmp_path: Path) -> None:
    converted = convert(name, tmp_path)
    check(converted.problems, FILE_REASONS[name].converted)
    loaded, _ = load(tmp_path / name, Kind(converted.program), name)
    assert (loaded is not None) == (not converted.problems)


@pytest.mark.parametrize("name", FILE_REASONS)
def test_the_converted_file_has_every_line_of_the_original(name: str, tmp_path: Path) -> None:
    convert(name, tmp_path)
    lines = (tmp_path / name).read_text().splitlines()
    for line in (FILES / name).read_text().splitlines():
        place = next((i for i, each in enumerate(lines) if each.endswith(line.strip())), None)
        assert place is not None, f"lost: {line}"
        del lines[: place + 1]  # in the same order


@pytest.mark.parametrize("name", FILE_REASONS)
def test_a_program_starts_with_the_file_as_it_is_or_says_why_not(name: str) -> None:
    path, kind = FILES / name, Kind(convert(name).program)
    models = MODELS[kind]
    if kind is Kind.NAMESRV and "enableControllerInNamesrv = true" in path.read_text():
        models = MODELS[Kind.CONTROLLER]
    try:
        load_config(*models, path=path, environ={}, overrides={})
    except ConfigError as error:
        check(str(error).splitlines(), FILE_REASONS[name].unchanged)
    else:
        assert FILE_REASONS[name].unchanged == ()


@pytest.mark.parametrize("name", FILE_REASONS)
def test_the_doctor_says_the_same_as_the_program(name: str) -> None:
    _, findings = load(FILES / name, Kind(convert(name).program), name)
    check([each.text for each in findings if each.level is Level.FAILED], FILE_REASONS[name].unchanged)


@pytest.mark.parametrize("name", YAML_FILES)
def test_yaml_files_are_reported_on_without_an_unknown_name(name: str) -> None:
    rows = convert(name).rows
    assert rows
    unknown = {row.key.partition(" ")[2] for row in rows if row.verdict is Verdict.UNKNOWN}
    assert unknown <= NO_VARIABLES


@pytest.mark.parametrize("name", ACL_FILES)
def test_access_control_files_are_read_as_they_are(name: str) -> None:
    acl, warnings = parse_plain_acl([(name, load_yaml((FILES / name).read_bytes(), name))])
    told = [row.key.removeprefix("account ") for row in convert(name).rows if row.key.startswith("account ")]
    assert warnings == [] and sorted(acl.accounts) == sorted(told) != []


def test_the_tables_have_no_row_that_nothing_needs() -> None:
    converted = [convert(name) for name in (*FILE_REASONS, *YAML_FILES)]
    unknown = set[str]().union(*(keys(each, Verdict.UNKNOWN) for each in converted))
    assert {key.partition(" ")[2] or key for key in unknown} == NO_KEYS.keys() | NO_VARIABLES
    counts = Counter(row.verdict for each in converted for row in each.rows)
    print(f"{len(converted)} files: {', '.join(f'{counts[each]} {each}' for each in Verdict)}")
    assert all(counts[each] for each in Verdict)
