"""Files of RocketMQ become files of KeelMQ; each line that does not apply here stays as a comment."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.keelmq import app
from keelmq.runtime.config import parse_settings

BROKER = """\
# of our first cluster
brokerClusterName = DefaultCluster
brokerName="broker-a"
brokerIP1=10.0.0.7:10911
listenPort=10911   # the default
storePathRootDir=${user.home}/store
sendMessageThreadPoolNums=16
namesrv.addr=10.0.0.1:9876
enableDLegerCommitLog=true
flushDiskTyp=SYNC_FLUSH
what is this
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["convert-config", *arguments])


def written(path: Path) -> dict[str, str]:
    return parse_settings(path.read_text(), path.name)


def test_every_line_is_kept_changed_or_a_comment_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(BROKER)
    done = run(str(tmp_path / "broker.conf"), "-o", str(tmp_path / "new"))
    assert done.exit_code == 1, done.output
    new = tmp_path / "new" / "broker.conf"
    assert written(new) == {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerIP1": "10.0.0.7",
        "listenPort": "10911",
        "storePathRootDir": "~/store",
        "namesrvAddr": "10.0.0.1:9876",
    }
    lines = new.read_text().splitlines()
    for line in BROKER.splitlines():
        assert any(each.endswith(line) for each in lines), f"lost: {line}"
    assert "line 7, sendMessageThreadPoolNums: without effect: one event loop does" in done.output
    assert "line 9, enableDLegerCommitLog: missing here: there is no DLedger CommitLog; " in done.output
    assert "did you mean flushDiskType?" in done.output
    assert "line 11, what is this: unknown: not key=value" in done.output
    assert "would not start" not in done.output
    assert (tmp_path / "broker.conf").read_text() == BROKER


def test_a_file_that_needs_no_change_ends_with_0_and_stays_as_it_is(tmp_path: Path) -> None:
    text = "# ours\nbrokerName=broker-a\n\nnamesrvAddr=127.0.0.1:9876\n"
    (tmp_path / "a.conf").write_text(text)
    done = run(str(tmp_path / "a.conf"), "-o", str(tmp_path / "new"), "--json")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "new" / "a.conf").read_text() == text
    (file,) = json.loads(done.output)["files"]
    assert [row["verdict"] for row in file["rows"]] == ["kept", "kept"] and file["program"] == "mqbroker"


def test_a_jraft_group_becomes_a_controller_group(tmp_path: Path) -> None:
    (tmp_path / "controller.conf").write_text(
        "controllerType=jRaft\njRaftGroupId=group1\njRaftServerId=10.0.0.2:9880\n"
        "jRaftInitConf=10.0.0.1:9880,10.0.0.2:9880\njRaftControllerRPCAddr=10.0.0.1:9770,10.0.0.2:9770\n"
    )
    done = run(str(tmp_path / "controller.conf"), "-o", str(tmp_path / "new"))
    assert written(tmp_path / "new" / "controller.conf") == {
        "controllerType": "DLedger",
        "controllerDLegerGroup": "group1",
        "controllerDLegerSelfId": "n1",
        "controllerRaftPeers": "n0-10.0.0.1:9880;n1-10.0.0.2:9880",
        "controllerDLegerPeers": "n0-10.0.0.1:9770;n1-10.0.0.2:9770",
    }
    assert (
        done.exit_code == 1
        and "would not start: " in done.output
        and "controllerRaftSecretFile" in done.output
    )


def test_comments_in_chinese_and_other_encodings_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_bytes("# 存储路径\nbrokerName=broker-a\n".encode("gb18030"))
    assert run(str(tmp_path / "a.conf"), "-o", str(tmp_path / "new")).exit_code == 0
    assert "存储路径" in (tmp_path / "new" / "a.conf").read_text()


def test_yaml_files_are_reported_on(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text("accounts:\n- accessKey: RocketMQ\n  secretKey: '12345678'\n")
    (tmp_path / "docker-compose.yml").write_text(
        "services:\n  broker:\n    environment:\n    - NAMESRV_ADDR=namesrv:9876\n    - JAVA_OPT_EXT=-Xmx1g\n"
        "  other:\n    environment: {BROKER_MEM: 1g}\n"
    )
    done = run(str(tmp_path / "plain_acl.yml"), str(tmp_path / "docker-compose.yml"))
    assert "12345678" not in done.output, "a secret"
    assert "broker JAVA_OPT_EXT: without effect: there is no Java" in done.output
    assert "other BROKER_MEM: unknown: " in done.output and done.exit_code == 1


def test_only_services_that_run_rocketmq_are_reported_on(tmp_path: Path) -> None:
    (tmp_path / "compose.yml").write_text(
        "services:\n"
        "  data:\n    image: mysql:8\n    environment: {MYSQL_ROOT_PASSWORD: x}\n"
        "  broker:\n    image: apache/rocketmq:5.3.1\n    command: sh mqbroker --enable-proxy\n"
        "    environment:\n    - BROKER_NAME=broker-a\n    - BROKER_IP1\n    - CLUSTER_NAME=c\n"
        "  page:\n    image: apacherocketmq/rocketmq-dashboard\n"
        "    environment: {rocketmq.config.namesrvAddr: 'n:1'}\n"
        "  empty:\n  cache:\n    image: redis\n"
    )
    done = run(str(tmp_path / "compose.yml"), "--json")
    (file,) = json.loads(done.output)["files"]
    rows = {row["key"]: (row["verdict"], row["note"]) for row in file["rows"]}
    assert rows.keys() == {
        "broker proxy",
        "broker BROKER_NAME",
        "broker BROKER_IP1",
        "broker CLUSTER_NAME",
        "page rocketmq.config.namesrvAddr",
    }
    assert rows["broker proxy"][0] == "kept" and "enableProxy=true" in rows["broker proxy"][1]
    assert "KEELMQ_brokerName" in rows["broker BROKER_NAME"][1]
    assert "KEELMQ_brokerIP1" in rows["broker BROKER_IP1"][1]
    assert "KEELMQ_brokerClusterName" in rows["broker CLUSTER_NAME"][1]
    assert rows["page rocketmq.config.namesrvAddr"][0] == "kept"


COMPOSE = """\
x-common: &common {TZ: UTC, MAX_HEAP_SIZE: 1g}
services:
  a broker:
    image: apache/rocketmq:5.3.1
    environment:
      <<: *common
      NAMESRV_ADDR: namesrv:9876
      BROKER_NAME: '"broker-a"'
      BROKER_IP1: 10.0.0.7:10911
      LISTEN_PORT: 10911
      AUTO_CREATE_TOPIC_ENABLE: true
      FLUSH_DISK_TYPE: ${FLUSH}
      STORE_PATH_ROOT_DIR:
      SOME: "thing\\nKEELMQ_listenPort=1"
"""
MANIFESTS = """\
kind: ConfigMap
data:
  broker.conf: |
    brokerClusterName=c
    brokerName="broker-a"
    enableDLegerCommitLog=true
  plain_acl.yml: "accounts: [{accessKey: tool, secretKey: '12345678'}]"
  note.conf: "a=b"
---
kind: StatefulSet
spec: {template: {spec: {containers: [
  {name: broker, image: 'docker.io/apache/rocketmq:5.3.1', env: [
    {name: NAMESRV_ADDR, value: 'namesrv:9876'},
    {name: BROKER_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
    {name: BROKER_ROLE, value: ASYNC_MASTER}]},
  {name: sidecar, image: fluentd, env: [{name: BROKER_NAME, value: x}]}]}}}
"""
VALUES = """\
broker:
  image: {repository: apache/rocketmq}
  config: &it {deleteWhen: '04'}
  env: [{name: BROKER_CLUSTER_NAME, value: c}]
again: *it
redis: {image: {repository: redis}, env: {BROKER_NAME: x}}
"""


def rows_of(text: str, tmp_path: Path) -> tuple[dict[str, tuple[str, str]], Path]:
    """The verdicts and notes by key, and the directory of the new files."""
    (tmp_path / "given.yaml").write_text(text)
    done = run(str(tmp_path / "given.yaml"), "-o", str(tmp_path / "new"), "--json")
    (file,) = json.loads(done.output)["files"]
    assert sorted(file["outputs"]) == sorted(map(str, (tmp_path / "new").glob("*")))
    return {row["key"]: (row["verdict"], row["note"]) for row in file["rows"]}, tmp_path / "new"


def test_the_environment_of_a_service_becomes_a_file_of_variables(tmp_path: Path) -> None:
    rows, new = rows_of(COMPOSE, tmp_path)
    lines = (new / "a_broker.env").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "TZ=UTC",
        "NAMESRV_ADDR=namesrv:9876",
        "KEELMQ_brokerName=broker-a",
        "KEELMQ_brokerIP1=10.0.0.7",
        "KEELMQ_listenPort=10911",
        "KEELMQ_autoCreateTopicEnable=true",
    ]
    assert rows["a broker BROKER_NAME"] == ("changed", "is KEELMQ_brokerName here; without quotes")
    assert (
        rows["a broker FLUSH_DISK_TYPE"][0] == "unknown"
        and "a template" in rows["a broker FLUSH_DISK_TYPE"][1]
    )
    assert "its value is not in this file" in rows["a broker STORE_PATH_ROOT_DIR"][1]
    assert rows["a broker MAX_HEAP_SIZE"] == ("without effect", "there is no Java")
    assert "# unknown, no program reads it: SOME=thing KEELMQ_listenPort=1" in lines


def test_manifests_of_kubernetes_have_files_and_containers(tmp_path: Path) -> None:
    rows, new = rows_of(MANIFESTS, tmp_path)
    assert {path.name for path in new.iterdir()} == {"broker.conf", "broker.env"}
    assert written(new / "broker.conf") == {"brokerClusterName": "c", "brokerName": "broker-a"}
    assert written(new / "broker.env") == {
        "NAMESRV_ADDR": "namesrv:9876",
        "KEELMQ_brokerRole": "ASYNC_MASTER",
    }
    assert rows["enableDLegerCommitLog"][0] == "missing here" and rows["account tool"][0] == "kept"
    assert rows["note.conf"] == ("unknown", "its keys do not show which program it is for")
    assert "its value is not in this file" in rows["broker BROKER_NAME"][1]
    assert not any(key.startswith("sidecar") for key in rows)


def test_files_of_one_name_get_numbers(tmp_path: Path) -> None:
    data = "kind: ConfigMap\ndata: {broker.conf: 'brokerName=a\n'}\n"
    service = "spec: {containers: [{name: b, env: [{name: TZ, value: UTC}]}]}\n"
    _, new = rows_of("---\n".join([data, data, service, service]), tmp_path)
    assert {path.name for path in new.iterdir()} == {"broker.conf", "broker-2.conf", "b.env", "b-2.env"}


def test_values_of_a_chart(tmp_path: Path) -> None:
    rows, new = rows_of(VALUES, tmp_path)
    assert rows.keys() == {"broker BROKER_CLUSTER_NAME"}
    assert written(new / "broker.env") == {"KEELMQ_brokerClusterName": "c"}


def test_a_yaml_file_that_repeats_itself_ends(tmp_path: Path) -> None:
    text = "services: &all\n  a: {environment: [TZ=UTC], b: *all}\n"
    assert rows_of(text, tmp_path)[0] == {"a TZ": ("kept", "")}


def test_two_services_of_one_name_overwrite_nothing(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.yml").write_text("services: {b: {environment: [TZ=UTC]}}\n")
    done = run(*(str(tmp_path / f"{name}.yml") for name in ("one", "two")), "-o", str(tmp_path / "new"))
    assert done.exit_code == 2 and not (tmp_path / "new").exists()


def test_a_problem_names_the_file_and_no_directory_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\nstorePathRootDir=D:/store\n")
    done = run(str(tmp_path / "broker.conf"))
    assert "would not start: storePathRootDir = 'D:/store' in broker.conf line 2: " in done.output


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.conf", None, "No such file"),
        ("a.conf", "listenPort=1\n", "--kind"),
        ("a.yml", "{", "not YAML"),
        ("a.yml", "[" * 5_000, "not YAML"),
        ("a.yml", "a: 1\n", "neither a plain_acl.yml nor a compose file"),
    ],
)
def test_what_cannot_be_converted(name: str, content: str | None, says: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    done = run(str(tmp_path / name))
    assert done.exit_code == 2 and says in " ".join(done.output.replace("│", "").split())


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    for folder in ("a", "b", "old"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "broker.conf").write_text(BROKER)
    given, new = str(tmp_path / "a" / "broker.conf"), str(tmp_path / "new")
    assert run(given, "-o", str(tmp_path / "a")).exit_code == 2, "its own conversion"
    assert run(given, "-o", str(tmp_path / "old")).exit_code == 2, "another file"
    assert run(given, str(tmp_path / "b" / "broker.conf"), "-o", new).exit_code == 2, "two of one name"
    assert not Path(new).exists() and (tmp_path / "old" / "broker.conf").read_text() == BROKER


def test_a_private_file_stays_private(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=a\n")
    (tmp_path / "broker.conf").chmod(0o600)
    run(str(tmp_path / "broker.conf"), "-o", str(tmp_path / "new"))
    assert (tmp_path / "new" / "broker.conf").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerName=a\n")
    (tmp_path / "afile").touch()
    done = run(str(tmp_path / "broker.conf"), "-o", str(tmp_path / "afile" / "new"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        f"keelmq: {tmp_path}/afile/new/broker.conf cannot be written: Not a directory"
    ]


@pytest.mark.parametrize("services", ["5", "[1]", "{a: 1}", "{a: {environment: 7}}", "{a: {image: [x]}}"])
def test_a_compose_file_of_other_types_has_no_settings(services: str, tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(f"services: {services}\n")
    assert "no settings" in run(str(tmp_path / "a.yml")).output


def test_addresses_of_ipv6_and_of_every_interface(tmp_path: Path) -> None:
    lines = ["2001:db8::10", "[2001:db8::10]:10911", "0.0.0.0:10911"]
    for number, value in enumerate(lines):
        (tmp_path / f"{number}.conf").write_text(f"brokerName=a\nbrokerIP1={value}\n")
        run(str(tmp_path / f"{number}.conf"), "-o", str(tmp_path / "new"))
    found = [written(tmp_path / "new" / f"{number}.conf").get("brokerIP1") for number in range(3)]
    assert found == ["2001:db8::10", "2001:db8::10", None]


def test_a_secret_is_neither_changed_nor_shown(tmp_path: Path) -> None:
    secret = "ab #cd$HOME"
    text = f"brokerName=a\ntls.server.keyPassword={secret}\nobjectStoreSecretKey={secret}\n"
    (tmp_path / "a.conf").write_text(text)
    for more in ((), ("--json",)):
        done = run(str(tmp_path / "a.conf"), "-o", str(tmp_path / f"new{len(more)}"), *more)
        assert secret not in done.output
    assert written(tmp_path / "new0" / "a.conf")["tls.server.keyPassword"] == secret


PROXY = {
    "rocketMQClusterName": "DefaultCluster",
    "namesrvAddr": "10.0.0.1:9876",
    "grpcServerPort": 8081,
    "grpcMaxInboundMessageSize": 9_000_000,
    "useDelayLevel": False,
}


def test_the_json_of_a_proxy_becomes_a_file_of_mqproxy(tmp_path: Path) -> None:
    (tmp_path / "rmq-proxy.json").write_text(json.dumps(PROXY))
    done = run(str(tmp_path / "rmq-proxy.json"), "-o", str(tmp_path / "new"))
    assert done.exit_code == 0, done.output
    assert written(tmp_path / "new" / "rmq-proxy.conf") == {
        "namesrvAddr": "10.0.0.1:9876",
        "grpcServerPort": "8081",
        "grpcMaxInboundMessageSize": "9000000",
    }


@pytest.mark.parametrize("text", ["[1]", "{", '"x"', "[" * 100_000])
def test_json_that_is_no_settings(text: str, tmp_path: Path) -> None:
    (tmp_path / "rmq-proxy.json").write_text(text)
    done = run(str(tmp_path / "rmq-proxy.json"))
    assert done.exit_code == 2 and "JSON" in done.output
