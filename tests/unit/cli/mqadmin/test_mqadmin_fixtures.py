"""More of mqadmin's texts against the captured output of RocketMQ's own tool."""

from pathlib import Path

from broker.app.broker import Broker
from cli.mqadmin.layouts import broker as layouts_broker
from cli.mqadmin.layouts import group as layouts_group
from cli.mqadmin.layouts import ha as layouts_ha
from keelmq.client.admin import AdminClient
from keelmq.remoting.operations.broker import HaConnectionRuntimeInfo, HaRuntimeInfo
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from tests.support.admin_parts import captured, mqadmin
from tests.unit.broker.app.test_broker_app import config

OF_OTHER_BROKERS = ("commitLogDiskRatio_", "scheduleMessageOffset_")
"""Their names have a path, or a delay level that was used."""
V5_1_4 = 441


def test_update_sub_group() -> None:
    _, text = captured("updateSubGroup").splitlines()
    plain = SubscriptionGroupConfig(
        group_name="FxGroup", consume_from_min_enable=False, consume_broadcast_enable=False
    )
    assert layouts_broker.group_config(plain) == text
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 5000, "max": 7200000, "multiplier": 2},
    }
    assert (
        "groupRetryPolicy=GroupRetryPolicy{type=EXPONENTIAL, exponentialRetryPolicy="
        "ExponentialRetryPolicy{initial=5000, max=7200000, multiplier=2}, customizedRetryPolicy=null}, "
    ) in layouts_broker.group_config(plain.model_copy(update={"group_retry_policy": policy}))


def test_consumer_status() -> None:
    verdicts = ["Same subscription in the same group of consumer", "", "Rebalance OK"]
    row = ("127.0.0.1@fxorder", V5_1_4, "1795247568207/127.0.0.1@fxorder")
    ours = [line.rstrip() for line in layouts_group.consumer_status([row], verdicts).splitlines()]
    assert ours == [line.rstrip() for line in captured("consumerStatus").splitlines()]


def test_ha_status_begins_with_the_columns_of_rocketmq() -> None:
    slave = HaConnectionRuntimeInfo(
        addr="127.0.0.1:59486",
        slave_ack_offset=43508,
        diff=0,
        in_sync=True,
        transferred_byte_in_second=41,
        transfer_from_where=43508,
    )
    status = HaRuntimeInfo(
        master=True, master_commit_log_max_offset=43508, in_sync_slave_nums=1, ha_connection_info=[slave]
    )
    ours = layouts_ha.ha_status("127.0.0.1:18811", status).splitlines()
    theirs = captured("haStatus").splitlines()
    assert len(ours) == len(theirs)
    for our_line, their_line in zip(ours, theirs, strict=True):
        assert our_line.startswith(their_line.rstrip())


async def test_broker_status_has_the_keys_of_rocketmq(tmp_path: Path) -> None:
    async with Broker(config(tmp_path)) as broker, AdminClient() as admin:
        ours = await admin.brokers.runtime_info(broker.address)
    layout = layouts_broker.broker_status([("", ours)], with_address=False).splitlines()
    theirs = captured("brokerStatus").splitlines()
    for line in theirs:
        key = line.partition(": ")[0]
        if not key.startswith(OF_OTHER_BROKERS):
            assert any(each.startswith(f"{key}: ") for each in layout), f"no line {key!r}"


def test_a_command_is_found_in_any_case() -> None:
    assert mqadmin("TOPICLIST", "-h").stdout == mqadmin("help", "TOPICLIST").stdout
