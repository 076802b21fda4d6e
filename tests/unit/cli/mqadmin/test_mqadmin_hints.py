"""mqadmin tells the truth: why a send finds no broker, what is not there, and hints that fit their cause."""

import pytest
import typer

from cli.mqadmin.shell import app, explain
from keelmq.client.admin import AdminError
from keelmq.client.cluster.routes import TopicRoute
from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.codes import ResponseCode
from tests.support.admin_parts import DEAD, mqadmin
from tests.unit.cli.mqadmin.test_mqadmin_broker import TOPIC, World

CONTROLLERS_ONLY = ("getControllerMetaData", "getControllerConfig", "getElections")


def test_every_command_takes_n() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    without = [
        name
        for name, each in group.commands.items()
        if not any("-n" in parameter.opts and "--namesrvAddr" in parameter.opts for parameter in each.params)
    ]
    assert without == []


@pytest.mark.parametrize("name", CONTROLLERS_ONLY)
def test_n_changes_nothing_where_no_name_server_is_asked(name: str) -> None:
    result = mqadmin(name, "-a", DEAD, "-n", "127.0.0.1:2")
    assert result.exit_code == 3
    assert DEAD in result.stderr and "127.0.0.1:2" not in result.stderr


def test_a_send_to_a_broker_that_is_not_there_says_so(world: World) -> None:
    result = mqadmin(
        *("sendMessage", "-n", world.namesrv, "-t", TOPIC, "-p", "x", "-b", "no-such", "-i", "0"),
        *("--timeout", "300"),
    )
    assert result.exit_code != 0
    assert f"topic {TOPIC} is not at broker no-such, but at broker-a" in result.stderr
    assert "has no master" not in result.stderr


def test_a_speed_test_of_a_broker_that_is_not_there_makes_no_topic(world: World) -> None:
    result = mqadmin("sendMsgStatus", "-b", "no-such", "-c", "1", "-n", world.namesrv)
    assert result.exit_code == 1 and "no broker named no-such (known: broker-a)" in result.stderr
    assert "no-such" not in world.broker.topics.topics


def test_a_read_is_not_called_by_another_commands_name(world: World) -> None:
    read = ("queryMsgByOffset", "-t", TOPIC, "-b", "no-such", "-i", "0", "-o", "0", "-n", world.namesrv)
    result = mqadmin(*read)
    assert "pullMessage: no route: no replica of no-such" in result.stderr


def test_a_send_to_a_topic_that_is_read_only_says_so(world: World) -> None:
    made = ("updateTopic", "-t", "frozen", "-b", world.address, "-p", "4")
    assert mqadmin(*made).exit_code == 0
    result = mqadmin("sendMessage", "-n", world.namesrv, "-t", "frozen", "-p", "x", "--timeout", "300")
    assert result.exit_code != 0
    assert "topic frozen is read-only" in result.stderr
    assert "has no master" not in result.stderr


def test_why_a_route_cannot_be_written() -> None:
    queue = MessageQueue("t", "b", 0)
    at_slaves = TopicRoute("t", ordered_queues=(queue,), addresses={"b": {1: "h:1"}})
    assert at_slaves.why_not_writable(None) == (
        "no group of topic t has a master now; b (slaves, which take no messages: 1 at h:1)"
    )
    assert at_slaves.why_not_writable("b") == (
        "group b of topic t has no master now (slaves, which take no messages: 1 at h:1)"
    )


@pytest.mark.parametrize("perm", ["9", "-1", "8"])
def test_a_perm_that_means_nothing_is_refused(world: World, perm: str) -> None:
    result = mqadmin("updateTopic", "-t", "odd", "-b", world.address, "-p", perm)
    assert result.exit_code == 2 and "-p/--perm is 2" in result.stderr
    assert "odd" not in world.broker.topics.topics


def test_a_topic_that_is_not_there_is_not_deleted(world: World) -> None:
    result = mqadmin("deleteTopic", "-t", "nothing", "-c", "DefaultCluster", "-n", world.namesrv)
    assert result.exit_code == 1 and result.stdout == ""
    assert "topic nothing is not in cluster DefaultCluster: nothing was deleted" in result.stderr
    assert "created by its first message" not in result.stderr


def test_an_unknown_group_is_told_about_groups(world: World) -> None:
    result = mqadmin("consumerProgress", "-n", world.namesrv, "-g", "no-such-group")
    assert result.exit_code == 1
    assert "check the group's name" in result.stderr and "a topic is created" not in result.stderr


def test_hints_fit_their_cause() -> None:
    read = AdminError("getBrokerHaStatus", "h:1", "connection lost", unknown=True)
    assert "nothing was changed: try again" in explain(read)
    change = AdminError("updateAndCreateTopic", "h:1", "connection lost", unknown=True)
    assert "it may have happened: check before you repeat it" in explain(change)
    refused = AdminError("sendMessage", "h:1", "the broker is read-only", ResponseCode.NO_PERMISSION)
    assert "black list" not in explain(refused)


def test_hints_of_a_closed_cluster() -> None:
    def denied(remark: str) -> str:
        return explain(AdminError("getBrokerClusterInfo", "h:1", remark, ResponseCode.NO_PERMISSION))

    assert "--credentials FILE" in denied("username cannot be null.")
    assert "credentials file" in denied("check signature failed.")
    assert "createAcl" in denied(
        "User:x has no permission to access Topic:t from 1.2.3.4, no matched policies."
    )
    lost = AdminError("getBrokerClusterInfo", "h:1", "connection to h:1 lost", unknown=True)
    assert "TLS only closes plain connections: --tls-ca FILE" in explain(lost)
    silent = AdminError("getBrokerClusterInfo", "h:1", "no answer in 5000 ms", unknown=True)
    assert "TLS" not in explain(silent)
