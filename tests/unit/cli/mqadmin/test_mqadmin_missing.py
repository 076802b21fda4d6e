"""mqadmin says what does not exist and where, and what to do when a send or a read gets no answer."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cli.mqadmin.shell import explain
from keelmq.client import PullError, PullErrorKind, SendError, SendErrorKind
from keelmq.remoting.codes import ResponseCode
from namesrv.app import Namesrv
from namesrv.config import NamesrvConfig
from tests.support.admin_parts import DEAD, InThread, hanging, mqadmin
from tests.unit.cli.mqadmin.test_mqadmin_broker import GROUP, TOPIC, World, ran, usage, value

SENDS_AND_READS = (
    f"sendMessage -t {TOPIC} -p x",
    f"consumeMessage -t {TOPIC}",
    f"printMsg -t {TOPIC}",
    f"printMsgByQueue -t {TOPIC} -a broker-a -i 0",
    f"queryMsgByOffset -t {TOPIC} -b broker-a -i 0 -o 0",
    "sendMsgStatus -b broker-a -c 1",
)


class NameServers(InThread):
    """Two name servers that know no broker."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _server(self, name: str) -> Namesrv:
        kv_config_path = self.path / f"{name}.json"
        return Namesrv(
            NamesrvConfig(
                bind_address="127.0.0.1", listen_port=0, http_port=-1, kv_config_path=kv_config_path
            )
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with self._server("first") as first, self._server("second") as second:
            self.addresses = [f"{each.address[0]}:{each.address[1]}" for each in (first, second)]
            yield


@pytest.fixture(scope="module")
def name_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServers]:
    with NameServers(tmp_path_factory.mktemp("kv")).running() as servers:
        yield servers


# -- changes of what does not exist ------------------------------------------------------------------------


@pytest.mark.parametrize("flag", ["-b", "-c"])
def test_a_group_that_does_not_exist_is_not_deleted(world: World, flag: str) -> None:
    place = (flag, world.address if flag == "-b" else "DefaultCluster")
    result = ran("deleteSubGroup", "-g", "no-such", *place, "-n", world.namesrv, code=1)
    assert result.stdout == ""
    assert result.stderr == (
        f"mqadmin: deleteSubGroup at {world.address}: SUBSCRIPTION_GROUP_NOT_EXIST, group no-such does not "
        "exist: nothing was deleted; check its name with consumerProgress, which lists the groups; a group "
        "is created by updateSubGroup or by its first consumer\n"
    )


def test_offsets_of_a_deleted_group_can_still_be_deleted(world: World) -> None:
    offsets, deletion = world.broker.metadata.offsets, ("deleteSubGroup", "-g", "g-old", "-b", world.address)
    ran("cloneGroupOffset", "-n", world.namesrv, "-s", GROUP, "-d", "g-old", "-t", TOPIC)
    ran(*deletion)
    assert world.broker.metadata.groups.get("g-old") is None and offsets.query("g-old", TOPIC, 0) == 4
    ran(*deletion, code=1)
    assert offsets.query("g-old", TOPIC, 0) == 4
    ran(*deletion, "-r", "true")
    assert offsets.query("g-old", TOPIC, 0) == -1


def test_topics_of_a_deleted_group_can_still_be_deleted(world: World) -> None:
    ran("updateTopic", "-t", "%RETRY%g-gone", "-b", world.address)
    ran("deleteSubGroup", "-g", "g-gone", "-b", world.address, code=1)
    ran("deleteSubGroup", "-g", "g-gone", "-c", "DefaultCluster", "-n", world.namesrv)
    assert "%RETRY%g-gone" not in world.broker.topics.topics


def test_a_broker_that_does_not_answer_is_not_one_without_the_group(world: World) -> None:
    places = f"{world.address};{DEAD}"
    result = ran("deleteSubGroup", "-g", "no-such", "-b", places, "--timeout", "500", code=3)
    assert f"{world.address}: group no-such does not exist: nothing was deleted" in result.stderr
    assert f"cannot connect to {DEAD}" in result.stderr


@pytest.mark.parametrize(
    ("topic", "group", "missing"), [(TOPIC, "no-such", "group"), ("no-such", GROUP, "topic")]
)
def test_no_mode_is_set_for_what_does_not_exist(world: World, topic: str, group: str, missing: str) -> None:
    pair = ("-t", topic, "-g", group, "-m", "POP")
    for place in (("-b", world.address), ("-c", "DefaultCluster", "-n", world.namesrv)):
        result = ran("setConsumeMode", *pair, *place, code=1)
        assert result.stdout == ""
        assert f"setConsumeMode at {world.address}: " in result.stderr
        assert f"{missing} no-such does not exist: nothing was changed; check its name with " in result.stderr
    assert world.broker.metadata.request_modes.get(topic, group) is None


def test_offsets_of_a_group_that_does_not_exist_are_not_cloned(world: World) -> None:
    here = ("cloneGroupOffset", "-n", world.namesrv, "-d", "g-clone", "-t", TOPIC)
    result = ran(*here, "-s", "no-such", code=1)
    assert result.stdout == ""
    assert (
        f"cloneGroupOffset at {world.address}: SUBSCRIPTION_GROUP_NOT_EXIST, group no-such" in result.stderr
    )
    assert "does not exist: nothing was cloned; check its name with consumerProgress" in result.stderr
    ran("updateSubGroup", "-g", "g-idle", "-b", world.address)
    idle = ran(*here, "-s", "g-idle", code=1).stderr
    assert f"group g-idle has consumed nothing of topic {TOPIC}: nothing was cloned; check" in idle
    assert world.broker.metadata.groups.get("g-clone") is None


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("getUser -u no-such", "check the name with listUser"),
        ("deleteUser -u no-such", "check the name with listUser"),
        ("getAcl -s User:no-such", "check the subject with listAcl"),
        ("deleteAcl -s User:no-such", "check the subject with listAcl"),
    ],
)
def test_a_user_or_an_acl_that_does_not_exist_is_no_key(world: World, line: str, step: str) -> None:
    result = ran(*line.split(), "-b", world.address, code=1)
    assert result.stdout == ""
    assert "User:no-such has no ACL" in result.stderr or "user no-such does not exist" in result.stderr
    assert result.stderr.endswith(f"; {step}\n")


def test_a_key_that_does_not_exist_is_not_deleted(name_servers: NameServers) -> None:
    first, second = name_servers.addresses
    both, entry = f"{first};{second}", ("-s", "NS", "-k", "key")
    result = ran("deleteKvConfig", "-n", both, *entry, code=1)
    assert result.stdout == ""
    assert result.stderr == (
        f"mqadmin: deleteKVConfig at {first}, {second}: QUERY_NOT_FOUND, namespace NS has no key key: "
        "nothing was deleted; check the namespace and the key\n"
    )
    ran("updateKvConfig", "-n", second, *entry, "-v", "1")
    shown = ran("deleteKvConfig", "-n", both, *entry, "--dry-run")
    assert shown.stdout == f"would delete key of NS at {second}: 1\n"
    result = ran("deleteKvConfig", "-n", both, *entry)
    assert result.stderr == f"mqadmin: {first}: namespace NS has no key key: nothing was deleted\n"
    ran("updateKvConfig", "-n", second, *entry, "-v", "1")
    rows = value("deleteKvConfig", "-n", both, *entry)
    assert [row["ok"] for row in rows] == [False, True] and "has no key" in rows[0]["error"]


def test_an_order_that_does_not_exist_is_not_deleted(name_servers: NameServers) -> None:
    (address, _) = name_servers.addresses
    result = ran("updateOrderConf", "-n", address, "-t", "no-such", "-m", "delete", code=1)
    assert (
        result.stdout == "" and "ORDER_TOPIC_CONFIG has no key no-such: nothing was deleted" in result.stderr
    )


# -- no answer, no route -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", SENDS_AND_READS)
def test_no_name_server_runs(command: str) -> None:
    result = mqadmin(*command.split(), "-n", DEAD, "--timeout", "300")
    assert result.exit_code == 3 and result.stdout == ""
    assert f" at {DEAD}: cannot connect to {DEAD}: " in result.stderr
    assert "; check the address, and that the program runs there\n" in result.stderr


def test_a_message_is_not_pulled_where_no_name_server_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer would look for the route until its timeout."""
    consumers: list[object] = []
    monkeypatch.setattr("cli.mqadmin.commands.query.PullConsumer", consumers.append)
    result = mqadmin("queryMsgByOffset", "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0", "-n", DEAD)
    assert result.exit_code == 3 and f"cannot connect to {DEAD}" in result.stderr
    assert consumers == []


@pytest.mark.parametrize("command", SENDS_AND_READS)
def test_the_name_server_does_not_answer(command: str) -> None:
    with hanging() as address:
        result = mqadmin(*command.split(), "-n", address, "--timeout", "300")
    assert result.exit_code == 3 and result.stdout == ""
    assert f" at {address}: no answer from {address}" in result.stderr
    assert "; nothing was changed: try again\n" in result.stderr


@pytest.mark.parametrize("command", SENDS_AND_READS)
def test_the_topic_has_no_route(name_servers: NameServers, command: str) -> None:
    address = name_servers.addresses[0]
    result = mqadmin(*command.split(), "-n", address, "--timeout", "300")
    assert result.exit_code == 1 and result.stdout == ""
    assert f" at {address}: " in result.stderr and len(result.stderr.splitlines()) == 1
    if command.startswith("sendMessage"):
        assert f"topic {TOPIC} has no route, and no broker that is registered creates topics" in result.stderr
        assert "check its name with topicList, or create it with updateTopic" in result.stderr
    elif command.startswith("sendMsgStatus"):
        assert "no broker named broker-a (known: none); clusterList shows the brokers" in result.stderr
    else:
        assert "; check its name" in result.stderr


def test_a_topic_that_nobody_may_read(world: World) -> None:
    ran("updateTopic", "-t", "unread", "-b", world.address, "-p", "2")
    printed = ran("printMsg", "-t", "unread", "-n", world.namesrv, code=1)
    assert "topic unread has no readable queue; topicRoute shows its permissions" in printed.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [("checkMsgSendRT -t x", "-s"), ("sendMsgStatus -b x", "-s"), ("clusterRT", "-s")],
)
def test_a_message_that_no_broker_takes(command: str, option: str) -> None:
    for size in ("16000001", "9" * 30):
        assert "16000000" in usage(*command.split(), "-n", DEAD, option, size)


def test_a_speed_test_without_a_route_ends_at_once(name_servers: NameServers) -> None:
    """Not after a hundred messages of 3 s each."""
    dead = mqadmin("checkMsgSendRT", "-n", DEAD, "-t", TOPIC)
    assert (dead.exit_code, dead.stdout) == (3, "")
    assert DEAD in dead.stderr and len(dead.stderr.splitlines()) == 1
    unknown = mqadmin("checkMsgSendRT", "-n", name_servers.addresses[0], "-t", TOPIC, "--timeout", "200")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert f"topic {TOPIC} has no route" in unknown.stderr and len(unknown.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["checkMsgSendRT", "sendMessage -p x"])
def test_a_send_to_a_topic_without_a_name(command: str) -> None:
    assert "'-t' / '--topic': it is empty" in usage(*command.split(), "-n", DEAD, "-t", "")


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (SendError(SendErrorKind.NO_ROUTE, "r", 0), "nothing was sent: topicRoute shows"),
        (SendError(SendErrorKind.REFUSED, "r", 1), "nothing was stored: remove the cause, then repeat it"),
        (
            SendError(SendErrorKind.UNKNOWN, "r", 2, "7D80"),
            "it may be stored: check with queryMsgByUniqueKey -i 7D80 before you repeat it",
        ),
        (PullError(PullErrorKind.NO_ROUTE, "r"), "topicRoute shows the topic's brokers"),
        (PullError(PullErrorKind.UNREACHABLE, "r"), "nothing was changed: try again; clusterList shows"),
        (PullError(PullErrorKind.REFUSED, "r", ResponseCode.NO_PERMISSION), "topicRoute shows the topic's"),
    ],
)
def test_every_error_of_a_send_or_read_has_a_next_step(error: SendError | PullError, step: str) -> None:
    assert f"r; {step}" in explain(error)


def test_a_read_only_topic_is_a_refusal(world: World) -> None:
    ran("updateTopic", "-t", "frozen", "-b", world.address, "-p", "4", "-n", world.namesrv)
    result = mqadmin("sendMessage", "-t", "frozen", "-p", "x", "-n", world.namesrv)
    assert result.exit_code == 1, result.stderr
    assert "topic frozen is read-only" in result.stderr
    assert "; nothing was sent: topicRoute shows the topic's brokers and permissions" in result.stderr
