"""What a broker tells about itself: who and where it is, its topics (103, 104), its configuration (26)."""

import zlib
from typing import TYPE_CHECKING

from broker.route_registration import Registration
from remoting.command import body_bytes
from remoting.config import to_properties
from remoting.operations.route import (
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfigSerializeWrapper,
    UnregisterBrokerRequest,
)

if TYPE_CHECKING:
    from broker.app import Broker

READ_WRITE = 6


def registration_of(broker: "Broker") -> Registration | None:
    """None: there is nothing to announce now."""
    if not broker.registers:
        return None
    config = broker.config
    body = body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=_announced_topics(broker)))
    header = RegisterBrokerRequest(
        broker_name=config.broker_name,
        broker_addr=broker.address,
        cluster_name=config.broker_cluster_name,
        ha_server_addr=broker.ha_address,
        broker_id=broker.broker_id,
        enable_acting_master=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )
    return header, body


def unregistration_of(broker: "Broker") -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(
        broker_name=broker.config.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.config.broker_cluster_name,
        broker_id=broker.broker_id,
    )


def properties_of(broker: "Broker") -> str:
    """The configuration (26), with what was detected or chosen in place of what was asked for."""
    actual = {
        "brokerId": str(broker.broker_id),
        "brokerIP1": broker.host,
        "brokerIP2": broker.config.broker_ip2 or broker.host,
        "listenPort": broker.address.rpartition(":")[2],
    }
    if broker.controlled is not None:
        actual["haListenPort"] = str(broker.controlled.ha_port)
    if broker.http_address is not None:
        actual["httpPort"] = str(broker.http_address[1])
    lines = to_properties(broker.config).splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in actual]
    return "".join(f"{line}\n" for line in sorted([*kept, *(f"{k}={v}" for k, v in actual.items())]))


def _announced_topics(broker: "Broker") -> TopicConfigSerializeWrapper:
    """Without the permissions that brokerPermission takes away."""
    wrapper, permission = broker.topics.wrapper(), broker.config.broker_permission
    if permission == READ_WRITE:
        return wrapper
    table = {
        name: topic.model_copy(update={"perm": topic.perm & permission})
        for name, topic in wrapper.topic_config_table.items()
    }
    return wrapper.model_copy(update={"topic_config_table": table})
