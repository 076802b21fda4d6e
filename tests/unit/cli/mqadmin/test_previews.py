"""Every --dry-run is compared with the deed: it says yes exactly where the command is accepted, and changes
nothing. The servers decide both; RocketMQ's, which do not know the request, are said to be unable to tell."""

import inspect
import pathlib
from collections.abc import Iterator

import pytest

from cli.keelmq import app as keelmq_app
from cli.mqadmin.main import app as mqadmin_app
from keelmq.client.admin import containers
from keelmq.remoting.codes import RequestCode
from tests.support.admin_parts import mqadmin
from tests.unit.cli.mqadmin.test_mqadmin_broker import GROUP, TOPIC, ran
from tests.unit.cli.mqadmin.test_mqadmin_broker import World as BrokerWorld
from tests.unit.cli.mqadmin.test_mqadmin_container import World as ContainerWorld
from tests.unit.cli.mqadmin.test_mqadmin_controller import World as ControllerWorld
from tests.unit.namesrv.plugins.controller.test_controller_plugin import GROUP as SET

ELSEWHERE = {
    "init": "test_init.py",
    "rebalance-masters": "test_rebalance_command.py",
    "store": "test_backup_store_command.py",
    "controllers": "test_restore_controllers.py",
}
"""Commands of keelmq, and the module in tests/unit/cli that compares their previews."""

# Arguments of a command, and the exit code of its preview and of the deed. {ns}, {b}: the servers.
OF_BROKERS = [
    ("deleteTopic -n {ns} -t no-such-topic -c DefaultCluster", 1),
    ("deleteTopic -n {ns} -t TBW102 -c DefaultCluster", 1),
    ("deleteTopic -n {ns} -t SCHEDULE_TOPIC_XXXX -c DefaultCluster", 1),
    ("deleteTopic -n {ns} -t spare -c DefaultCluster", 0),
    ("deleteSubGroup -g no-such-group -b {b}", 1),
    ("deleteSubGroup -g TOOLS_CONSUMER -b {b}", 1),
    ("deleteSubGroup -g TOOLS_CONSUMER -c DefaultCluster -n {ns}", 1),
    ("deleteSubGroup -g spare-group -b {b}", 0),
    ("deleteSubGroup -g offsets-only -r false -b {b}", 1),
    ("deleteSubGroup -g offsets-only -r true -b {b}", 0),
    ("resetOffsetByTime -n {ns} -g no-such-group -t {topic} -s -1", 1),
    ("resetOffsetByTime -n {ns} -g {group} -t no-such-topic -s -1", 1),
    ("resetOffsetByTime -n {ns} -g {group} -t {topic} -s -1 -b {b} -q 99", 1),
    ("resetOffsetByTime -n {ns} -g {group} -t {topic} -s -1 -b {b} -q 0 -o 999999", 1),
    ("resetOffsetByTime -n {ns} -g {group} -t {topic} -s -1 -b {b} -q 0 -o 3", 0),
    ("resetOffsetByTime -n {ns} -g {group} -t {topic} -s 0", 0),
    ("skipAccumulatedMessage -n {ns} -g no-such-group -t {topic}", 1),
    ("skipAccumulatedMessage -n {ns} -g {group} -t {topic}", 0),
    ("wipeWritePerm -n {ns} -b broker-x", 1),
    ("wipeWritePerm -n {ns} -b broker-a", 0),
    ("wipeWritePerm -n {ns} -b broker-a", 0),  # nothing is left to wipe, and that is a success
    ("wipeWritePerm -n {ns};127.0.0.1:1 -b broker-a", 4),
    ("deleteKvConfig -n {ns} -s SPACE -k no-such-key", 1),
    ("deleteKvConfig -n {ns} -s SPACE -k key", 0),
    ("deleteUser -u nobody -b {b}", 1),
    ("deleteAcl -s User:nobody -b {b}", 1),
    ("deleteAcl -s User:bob -r Nonsense:x -b {b}", 1),
    ("deleteAcl -s User:bob -r Topic:t -b {b}", 0),
    ("deleteUser -u bob -b {b}", 0),
]
OF_CONTROLLERS = [
    ("electMaster -a {a} -bn no-such-group -c C1 -b 2", 1),
    ("electMaster -a {a} -bn {set} -c C1 -b 1", 1),  # it is the master
    ("electMaster -a {a} -bn {set} -c C1 -b 3", 1),  # it is not alive
    ("electMaster -a {a} -bn {set} -c other-cluster -b 2", 1),
    ("cleanBrokerMetadata -a {a} -bn no-such-group -c C1 -b 3", 1),
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -b 2", 1),  # it is alive
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1", 1),  # as above
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -b 9", 1),  # there was never such an id
    ("cleanBrokerMetadata -a {a} -bn {set} -c other-cluster -b 3", 1),
    ("cleanBrokerMetadata -a {a} -bn {set} -c other-cluster -b 3 -l", 1),
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -b 1;2 -l", 1),  # the whole SyncStateSet, and 3 is left
    ("removeController -a {a} -id n0", 1),  # the only one
    ("removeController -a {a} -id n7", 0),  # no member: the removal has nothing to do
    ("electMaster -a {a} -bn {set} -c C1 -b 2", 0),
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -b 3", 0),
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -b 3", 0),  # it was removed before
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -l", 0),
    ("cleanBrokerMetadata -a {a} -bn {set} -c C1 -l", 1),
]
OF_CONTAINERS = [
    ("removeBroker -c {c} -b DefaultCluster:no-such-broker:0", 1),
    ("removeBroker -c {c} -b DefaultCluster:broker-a:0", 0),
]


EXPLANATIONS = {each for each in RequestCode if each.name.startswith("KEELMQ_EXPLAIN_")}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWorld]:
    path = tmp_path_factory.mktemp("broker")
    with BrokerWorld(path).running() as world:
        here, both = ("-b", world.address), ("-n", world.namesrv, "-c", "DefaultCluster")
        ran("updateTopic", *both, "-t", "spare")
        ran("updateSubGroup", *here, "-g", "spare-group")
        world.do(world.commit("offsets-only", 1))
        ran("deleteSubGroup", *here, "-g", "offsets-only", "-r", "false")
        ran("updateKvConfig", "-n", world.namesrv, "-s", "SPACE", "-k", "key", "-v", "value")
        ran("createUser", *here, "-u", "bob", "-p", "a-long-passphrase-1")
        ran("createAcl", *here, "-s", "User:bob", "-r", "Topic:t", "-a", "Pub", "-d", "Allow")
        yield world


@pytest.fixture(scope="module")
def controllers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControllerWorld]:
    with ControllerWorld(tmp_path_factory.mktemp("controller")).running() as world:
        yield world


def compare(line: str, code: int, **servers: str) -> None:
    """Runs the preview twice, then the deed: the first preview has changed nothing, and all end alike."""
    args = line.format(topic=TOPIC, group=GROUP, set=SET, **servers).split()
    first, again, deed = mqadmin(*args, "--dry-run"), mqadmin(*args, "--dry-run"), mqadmin(*args)
    texts = (first.output, deed.output)
    assert (first.exit_code, deed.exit_code) == (code, code), texts
    assert (again.exit_code, again.output) == (first.exit_code, first.output), "the preview has changed it"


def test_previews_of_brokers_and_name_servers(brokers: BrokerWorld) -> None:
    for line, code in OF_BROKERS:
        compare(line, code, ns=brokers.namesrv, b=brokers.address)


def test_previews_of_controllers(controllers: ControllerWorld) -> None:
    for line, code in OF_CONTROLLERS:
        compare(line, code, a=controllers.address)


def test_previews_of_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containers, "POLL_MS", 10)
    with ContainerWorld().running() as world:
        for line, code in OF_CONTAINERS:
            compare(line, code, c=world.ours.address)


def test_what_a_foreign_server_would_do_is_not_known(
    brokers: BrokerWorld, controllers: ControllerWorld
) -> None:
    """RocketMQ's servers and older ones do not know these requests: no preview guesses, and none is sent a
    request that it would carry out."""
    line = f"cleanBrokerMetadata -a {controllers.foreign.address} -bn {SET} -c C1 -b 3 --dry-run"
    clean = mqadmin(*line.split())
    assert clean.exit_code == 1 and "not known before it is done" in clean.stderr
    tables = [brokers.broker.operations.handlers, brokers.server.table.handlers]
    before = [dict(table) for table in tables]
    try:
        for table in tables:
            for code in [each for each in table if each in EXPLANATIONS]:
                del table[code]
        ran("createUser", "-b", brokers.address, "-u", "eve", "-p", "a-long-passphrase-1")
        ran("createAcl", "-b", brokers.address, "-s", "User:eve", "-r", "Topic:t", "-a", "Pub", "-d", "Allow")
        for line in (
            "deleteTopic -n {ns} -t {topic} -c DefaultCluster",
            "deleteSubGroup -g {group} -b {b}",
            "resetOffsetByTime -n {ns} -g {group} -t {topic} -s -1",
            "skipAccumulatedMessage -n {ns} -g {group} -t {topic}",
            "wipeWritePerm -n {ns} -b broker-a",
            "deleteUser -u eve -b {b}",
            "deleteAcl -s User:eve -b {b}",
        ):
            args = line.format(topic=TOPIC, group=GROUP, ns=brokers.namesrv, b=brokers.address).split()
            shown = mqadmin(*args, "--dry-run")
            assert (shown.exit_code, shown.stdout.strip()) == (1, ""), (line, shown.output)
            assert "not known before it is done" in shown.stderr
    finally:
        for table, handlers in zip(tables, before, strict=True):
            table.update(handlers)


def with_preview() -> Iterator[tuple[str, str]]:
    """Yields program and name of every command with --dry-run."""
    apps = [("mqadmin", mqadmin_app), ("keelmq", keelmq_app)]
    while apps:
        program, app = apps.pop()
        apps += [(program, each.typer_instance) for each in app.registered_groups if each.typer_instance]
        for each in app.registered_commands:
            assert each.callback is not None
            if "dry_run" in inspect.signature(each.callback).parameters:
                yield program, each.name or each.callback.__name__


def test_every_preview_is_compared() -> None:
    compared = {("mqadmin", line.split()[0]) for line, _ in (*OF_BROKERS, *OF_CONTROLLERS, *OF_CONTAINERS)}
    compared |= {("keelmq", name) for name in ELSEWHERE}
    assert set(with_preview()) == compared
    folder = pathlib.Path(__file__).parent.parent
    assert all("--dry-run" in (folder / each).read_text() for each in ELSEWHERE.values())
    for name in {name for _, name in compared} - ELSEWHERE.keys():
        codes = {
            code == 0
            for line, code in (*OF_BROKERS, *OF_CONTROLLERS, *OF_CONTAINERS)
            if line.split()[0] == name
        }
        assert codes == {True, False}, f"{name}: one that is accepted and one that is refused"
