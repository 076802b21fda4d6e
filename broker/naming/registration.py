"""The requests by which a broker registers with a name server (103) and unregisters (104). Pure."""

import zlib

import msgspec

from broker.naming.route_registration import Registration
from keelmq.remoting.body import body_bytes
from keelmq.remoting.operations.route import (
    RegisterBrokerBody,
    RegisterBrokerRequest,
    TopicConfigSerializeWrapper,
    UnregisterBrokerRequest,
)

READ_WRITE = 6


class RegisteredBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker as name servers know it. address: host:port that clients are told. ha_address: host:port that
    slaves are told; empty without controller mode. broker_id: 0 of a master. forwards_sends: as a slave it
    forwards messages of producers, and may be shown as an alias of its master."""

    cluster_name: str
    broker_name: str
    address: str
    ha_address: str
    broker_id: int
    forwards_sends: bool = False


def registration_of(
    broker: RegisteredBroker, topics: TopicConfigSerializeWrapper, *, permission: int
) -> Registration:
    """Returns header and body of 103. permission: brokerPermission, which limits that of every topic."""
    wrapper = _permitted(topics, permission)
    body = body_bytes(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    header = RegisterBrokerRequest(
        broker_name=broker.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.cluster_name,
        ha_server_addr=broker.ha_address,
        broker_id=broker.broker_id,
        enable_acting_master=False,
        body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        forwards_sends=broker.forwards_sends or None,
    )
    return header, body


def unregistration_of(broker: RegisteredBroker) -> UnregisterBrokerRequest:
    """Returns the header of 104, which has no body."""
    return UnregisterBrokerRequest(
        broker_name=broker.broker_name,
        broker_addr=broker.address,
        cluster_name=broker.cluster_name,
        broker_id=broker.broker_id,
    )


def _permitted(wrapper: TopicConfigSerializeWrapper, permission: int) -> TopicConfigSerializeWrapper:
    """Returns the topics without the permissions that brokerPermission takes away."""
    if permission == READ_WRITE:
        return wrapper
    table = {
        name: topic.model_copy(update={"perm": topic.perm & permission})
        for name, topic in wrapper.topic_config_table.items()
    }
    return wrapper.model_copy(update={"topic_config_table": table})
