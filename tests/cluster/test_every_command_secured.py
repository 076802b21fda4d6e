"""Every command that talks to servers, at a closed cluster: as its administrator, who may do all of it, and
as a user without rights, who gets one line and exit code 1.

The cluster has authentication, authorization and TLS as `keelmq init-security` sets them. A command that is
not in the table fails the test.
"""

import json
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner, Result

from cli import keelmq
from cli.lab.container_cluster import ContainerCluster
from cli.lab.secure import SECURITY, credentials_path, secured
from cli.mqadmin import main as mqadmin
from cli.mqadmin.coverage import NEVER
from cli.private_tree import write_private

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

START_TIMEOUT_S = 60
CLUSTER = "KeelCluster"
REFUSED = 1


class Row(NamedTuple):
    """args: {name} is a value of the running cluster. code, text: exit code and output for the administrator.
    refusal: what the user without rights reads; None: the command asks no server before it ends."""

    args: str
    code: int = 0
    text: str = ""
    refusal: str | None = "NO_PERMISSION"


IN_CONTAINER = "check signature failed"
"""Containers have users of their own, which brokers and name servers do not exchange."""

MQADMIN: Mapping[str, Row] = {
    "updateTopic": Row("-n {n} -c {cluster} -t orders"),
    "updateTopicList": Row("-n {n} -c {cluster} -f {topics}"),
    "updateTopicPerm": Row("-n {n} -c {cluster} -t orders -p 6"),
    "topicRoute": Row("-n {n} -t orders"),
    "topicList": Row("-n {n}"),
    "topicStatus": Row("-n {n} -t orders"),
    "topicClusterList": Row("-n {n} -t orders"),
    "allocateMQ": Row("-n {n} -t orders -i 10.0.0.1,10.0.0.2"),
    "updateOrderConf": Row("-n {n} -t orders -m get", 1, "QUERY_NOT_FOUND"),
    "sendMessage": Row("-n {n} -t orders -p hello -k key-1"),
    "checkMsgSendRT": Row("-n {n} -t orders -a 2 -s 16"),
    "sendMsgStatus": Row("-n {n} -b {group} -c 2"),
    "clusterRT": Row("-n {n} -a 1 -s 16"),
    "consumeMessage": Row("-n {n} -t orders"),
    "printMsg": Row("-n {n} -t orders"),
    "printMsgByQueue": Row("-n {n} -t orders -a {group} -i 0"),
    "queryMsgByKey": Row("-n {n} -t orders -k key-1"),
    "queryMsgByOffset": Row("-n {n} -t orders -b {group} -i {queue} -o 0"),
    "queryMsgById": Row("-n {n} -t orders -i {id}"),
    "queryMsgByUniqueKey": Row("-n {n} -t orders -i {key}"),
    "queryMsgTraceById": Row("-n {n} -i {key}", 1, "nothing has been traced", "nothing has been traced"),
    "queryCq": Row("-n {n} -t orders -q {queue} -i 0"),
    "updateSubGroup": Row("-n {n} -c {cluster} -g readers"),
    "updateSubGroupList": Row("-n {n} -c {cluster} -f {groups}"),
    "getConsumerConfig": Row("-n {n} -g readers"),
    "setConsumeMode": Row("-n {n} -c {cluster} -t orders -g readers -m PULL"),
    "resetOffsetByTime": Row("-n {n} -g readers -t orders -s 0 --yes"),
    "skipAccumulatedMessage": Row("-n {n} -g readers -t orders --yes"),
    "cloneGroupOffset": Row("-n {n} -s readers -d others -t orders"),
    "consumerProgress": Row("-n {n} -g readers", 1, "TOPIC_NOT_EXIST"),
    "consumerConnection": Row("-n {n} -g readers", 1),
    "consumerStatus": Row("-n {n} -g readers", 1),
    "producerConnection": Row("-n {n} -g nobody -t orders", 1),
    "producer": Row("-b {b}"),
    "resendDeadLetter": Row("-n {n} -g readers -i {group}:0:0", 1),
    "brokerStatus": Row("-b {b}"),
    "brokerConsumeStats": Row("-b {b}"),
    "getBrokerConfig": Row("-b {b}"),
    "updateBrokerConfig": Row("-b {b} -k scrubBytesPerSecond -v 1048576"),
    "getBrokerEpoch": Row("-n {n} -b {group}"),
    "haStatus": Row("-b {b}"),
    "cleanExpiredCQ": Row("-n {n} -b {b}"),
    "deleteExpiredCommitLog": Row("-n {n} -b {b}"),
    "cleanUnusedTopic": Row("-n {n} -b {b}"),
    "setCommitLogReadAheadMode": Row("-b {b} -m 0"),
    "resetMasterFlushOffset": Row("-b {b} -o 0", 1, "REQUEST_CODE_NOT_SUPPORTED"),
    "clusterList": Row("-n {n}"),
    "statsAll": Row("-n {n}"),
    "exportMetadata": Row("-n {n} -c {cluster} -f {out}"),
    "exportConfigs": Row("-n {n} -c {cluster} -f {out}"),
    "exportMetrics": Row("-n {n} -c {cluster} -f {out}"),
    "updateKvConfig": Row("-n {n} -s space -k key -v value"),
    "deleteKvConfig": Row("-n {n} -s space -k key --yes"),
    "wipeWritePerm": Row("-n {n} -b {group} --yes"),
    "addWritePerm": Row("-n {n} -b {group}"),
    "getNamesrvConfig": Row("-n {n}"),
    "updateNamesrvConfig": Row("-n {n} -k orderMessageEnable -v false"),
    "getControllerMetaData": Row("-a {a}"),
    "getSyncStateSet": Row("-a {a} -b {group}"),
    "getControllerConfig": Row("-a {a}"),
    "updateControllerConfig": Row("-a {a} -k enableElectUncleanMaster -v false"),
    "getElections": Row("-a {a}"),
    "electMaster": Row("-a {a} -bn {group} -c {cluster} -b 1 --dry-run", 1, "MASTER_STILL_EXIST"),
    "cleanBrokerMetadata": Row("-a {a} -bn {group} -c {cluster} -b 99 --dry-run", 1),
    "exportControllerState": Row("-a {a} -o {out}/state.json"),
    "importControllerState": Row("-a {a} -f {saved}/state.json"),
    "addController": Row("-a {a} -id n0 -p {a}", 0, "already a member"),
    "removeController": Row("-a {a} -id n9 --dry-run", 0, "not a member"),
    "transferLeader": Row("-a {a} -id n0"),
    "createUser": Row("-n {n} -u bob -p its-own-secret"),
    "updateUser": Row("-n {n} -c {cluster} -u bob -s disable"),
    "createAcl": Row("-n {n} -c {cluster} -s User:bob -r Topic:orders -a Pub -d Allow"),
    "updateAcl": Row("-n {n} -c {cluster} -s User:bob -r Topic:orders -a Pub,Sub -d Allow"),
    "getUser": Row("-n {n} -c {cluster} -u bob"),
    "listUser": Row("-n {n}"),
    "getAcl": Row("-n {n} -c {cluster} -s User:bob"),
    "listAcl": Row("-n {n} -c {cluster}"),
    "copyUser": Row("-f {b} -t {b} -u bob", 1, "does not return the password"),
    "copyAcl": Row("-f {b} -t {b} -s User:bob"),
    "deleteAcl": Row("-n {n} -c {cluster} -s User:bob --yes"),
    "deleteUser": Row("-n {n} -c {cluster} -u bob --yes"),
    "addBroker": Row("-c {container} -b {conf}", 1, "not an absolute path below", IN_CONTAINER),
    "removeBroker": Row("-c {container} -b nobody:none:7 --dry-run", 1, "", IN_CONTAINER),
    "deleteSubGroup": Row("-n {n} -c {cluster} -g others --yes"),
    "deleteTopic": Row("-n {n} -c {cluster} -t spare --yes"),
}
KEELMQ: Mapping[str, Row] = {
    "status": Row("-n {n} -a {a}"),
    "doctor": Row("-n {n} -a {a}"),
    "verify": Row("-n {n}"),
    "rebalance-masters": Row("-n {n} -a {a} --dry-run"),
    "upgrade": Row("-n {n} -a {a} --plan", 0, "nothing to do"),
    "backup controllers": Row("{out}/controllers.backup -a {a}"),
    "backup store": Row("{out}/store -b {b}", 1, "backupPath is not set"),
    "backup metadata": Row("{out}/metadata.backup -b {b}"),
    "restore metadata": Row("{saved}/metadata.backup -b {b} --yes"),
    "repair": Row(
        "--store {out}/absent -n {n} -a {a} --broker-name {group}", 1, "is not a broker's store", None
    ),
    "container list": Row("-c {container}", refusal=IN_CONTAINER),
    "container status": Row("-c {container}", refusal=IN_CONTAINER),
    "container plan": Row("-c {container} --even", refusal=IN_CONTAINER),
    "container move": Row("-c {container} {group} --worker 0", 1, "no broker broker-a", IN_CONTAINER),
    "container restart": Row("-c {container} 0", 1, "", IN_CONTAINER),
}


ELSEWHERE: Mapping[str, str] = {
    "startMonitoring": "runs until it is stopped; asks what consumerProgress and consumerStatus ask",
    "top": "needs a terminal; asks what status asks",
    "console": "tests/cluster/test_console.py; asks what status asks",
    "restore controllers": "of files",
    "restore store": "of files",
    **dict.fromkeys(("demo", "chaos", "bench", "sim", "fuzz"), "starts its own programs"),
    **dict.fromkeys(
        ("report", "audit", "init", "init-security", "certificates", "convert-config", "version"), "of files"
    ),
    **dict.fromkeys(NEVER, "no such command"),
}
"""Commands that are not in the table, and why."""


def names_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield " ".join(path)
        return
    for name, each in command.commands.items():
        yield from names_of(each, (*path, name))


def test_every_command_is_in_the_table() -> None:
    """A new command that talks to servers gets a row."""
    for app, table in ((mqadmin.app, MQADMIN), (keelmq.app, KEELMQ)):
        names = {each for each in names_of(get_command(app)) if not each.startswith("analytics ")}
        assert names - ELSEWHERE.keys() == table.keys()


class World:
    """A closed cluster: a name server with a controller, and two containers with a broker each."""

    def __init__(self, directory: Path, cluster: ContainerCluster) -> None:
        self.directory, self.cluster = directory, cluster
        self.administrator = credentials_path(directory)
        self.user = directory / "user.yml"
        ca = directory / SECURITY / "ca.crt"
        write_private(self.user, f"accessKey: alice\nsecretKey: alice-secret\ntls: {{ca: {ca}}}\n")
        self.values: dict[str, object] = {
            "n": cluster.namesrv_addr,
            "a": cluster.controller_addr,
            "b": cluster.brokers[0].address,
            "cluster": CLUSTER,
            "group": cluster.broker_name,
            "container": f"127.0.0.1:{cluster.containers[0].own['listenPort']}",
            "conf": "/nowhere.conf",
        }
        for name, text in (("topics", '[{"topicName": "spare"}]'), ("groups", '[{"groupName": "others"}]')):
            self.values[name] = directory / f"{name}.json"
            (directory / f"{name}.json").write_text(text)

    def ran(self, app: typer.Typer, name: str, args: str, credentials: Path) -> Result:
        words = [*name.split(), *shlex.split(args.format(**self.values)), "--credentials", str(credentials)]
        result = CliRunner().invoke(app, words)
        assert result.exception is None or isinstance(result.exception, SystemExit), (name, result.exception)
        return result

    def wait(self) -> None:
        """Both brokers are registered and in sync."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.ran(keelmq.app, "status", "-n {n}", self.administrator).exit_code:
            self.cluster.check()
            assert time.monotonic() < deadline, "the cluster is not whole in time"

    def prepare(self) -> None:
        """A topic with a message, what the administrator has saved, and the user."""
        listed = self.must("clusterList", "-n {n}")
        (self.values["b"],) = (each["brokerAddr"] for each in listed if str(each["brokerId"]) == "0")
        self.must("updateTopic", "-n {n} -c {cluster} -t orders")
        sent = self.must("sendMessage", "-n {n} -t orders -p hello -k key-1")
        self.values |= {"id": sent["offsetMsgId"], "key": sent["msgId"], "queue": sent["queueId"]}
        self.must("createUser", "-n {n} -c {cluster} -u alice -p alice-secret")
        saved = self.values["saved"] = self.directory / "saved"
        saved.mkdir()
        self.must("exportControllerState", "-a {a} -o {saved}/state.json")
        users = self.directory / "cluster" / "namesrv-0.kvConfig.users" / "users.json"
        done = self.ran(
            keelmq.app,
            "backup metadata",
            f"{{saved}}/metadata.backup -b {{b}} --users {users}",
            self.administrator,
        )
        assert done.exit_code == 0 and "without a password" not in done.output, done.output

    def must(self, name: str, args: str) -> Any:
        result = self.ran(mqadmin.app, name, f"{args} --json", self.administrator)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def problem(self, app: typer.Typer, name: str, row: Row, credentials: Path) -> str:
        """What is wrong with the command's answer."""
        is_user = credentials == self.user
        result = self.ran(app, name, row.args, credentials)
        wanted = (REFUSED, row.refusal or row.text) if is_user else (row.code, row.text)
        if result.exit_code != wanted[0] or wanted[1] not in " ".join(result.output.split()):
            return f"{name}: exit code {result.exit_code}, wanted {wanted}: {result.output}"
        if not is_user and "NO_PERMISSION" in result.output:
            return f"{name}: refused: {result.output}"
        if is_user and name not in MANY_LINES and len(result.stderr.splitlines()) != 1:
            return f"{name}: not one line: {result.stderr}"
        return ""


MANY_LINES = {"status", "doctor"}
"""They print one line for each server, on standard output."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("secured")
    with secured(directory, CLUSTER) as settings:
        cluster = ContainerCluster(
            directory / "cluster",
            groups=("broker-a",),
            containers=2,
            name_servers=1,
            cluster_name=CLUSTER,
            namesrv_settings=settings,
            broker_settings=settings,
            container_settings=settings,
        )
        with cluster:
            cluster.start()
            found = World(directory, cluster)
            found.wait()
            found.prepare()
            yield found


@pytest.mark.parametrize("who", ["administrator", "user"])
def test_every_command(world: World, who: str, tmp_path: Path) -> None:
    """The administrator is refused nothing, and the user everything."""
    world.values["out"] = tmp_path
    credentials = world.user if who == "user" else world.administrator
    problems = [
        world.problem(app, name, row, credentials)
        for app, table in ((mqadmin.app, MQADMIN), (keelmq.app, KEELMQ))
        for name, row in table.items()
    ]
    assert not any(problems), "\n".join(filter(None, problems))
