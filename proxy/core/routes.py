"""Routes and assignments as clients get them: queues behind the address of a proxy. Pure.

Any proxy serves every queue, so a client gets the endpoints that it asked: they are those that it can reach,
through any load balancer. All brokers are shown with the id 0, the only one that clients use, also while a
group has no master: a proxy finds the next one."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from keelmq.client.core.queues import MessageQueue
from keelmq.remoting.address_text import is_ip, split_address
from keelmq.remoting.codes import MASTER_ID
from proxy.core.names import Client
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

ADDRESSES_MAX: Final = 64
ANY_QUEUE: Final = -1
TYPE_ATTRIBUTE: Final = "message.type"
_MIXED: Final = (pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION)
_TYPES: Final[Mapping[str, tuple[pb.MessageType, ...]]] = {
    "NORMAL": (pb.NORMAL,),
    "FIFO": (pb.FIFO,),
    "DELAY": (pb.DELAY,),
    "TRANSACTION": (pb.TRANSACTION,),
    "PRIORITY": (pb.PRIORITY,),
}


def types_of(attributes: Mapping[str, str]) -> tuple[pb.MessageType, ...]:
    """Returns the message types that a topic accepts. A topic that declares none accepts every type: most
    were created without the attribute, by a first message."""
    return _TYPES.get(attributes.get(TYPE_ATTRIBUTE, "").upper(), _MIXED)


def check_type(kind: pb.MessageType, types: Iterable[pb.MessageType], topic: str) -> None:
    """Raises Refused: the topic does not accept the type."""
    accepted = tuple(types)
    if kind not in accepted:
        names = ", ".join(pb.MessageType.Name(each) for each in accepted)
        remark = f"topic {topic} accepts {names}, not {pb.MessageType.Name(kind)} ({TYPE_ATTRIBUTE})"
        raise Refused(pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, remark)


def endpoints_for(asked: pb.Endpoints, client: Client, own_address: str) -> pb.Endpoints:
    """Returns the endpoints of a route. asked: where the client has connected; without them own_address,
    host:port, is shown. Node cannot use more than one address. Raises Refused."""
    addresses = [each for each in asked.addresses if each.host and 0 < each.port < 1 << 16]
    if len(asked.addresses) > ADDRESSES_MAX or len(addresses) < len(asked.addresses):
        remark = f"endpoints have at most {ADDRESSES_MAX} addresses, each with a host and a port"
        raise Refused(pb.ILLEGAL_ACCESS_POINT, remark)
    if not addresses:
        return endpoints_of(own_address)
    if client.is_node:
        del addresses[1:]
    scheme = asked.scheme or scheme_of(addresses[0].host)
    return pb.Endpoints(scheme=scheme, addresses=addresses)


def endpoints_of(address: str) -> pb.Endpoints:
    """Returns the endpoints of one address, host:port."""
    host, port = split_address(address)
    host = host.strip("[]")
    return pb.Endpoints(scheme=scheme_of(host), addresses=[pb.Address(host=host, port=port)])


def scheme_of(host: str) -> pb.AddressScheme:
    """Returns what kind of address it is."""
    if ":" in host:
        return pb.IPv6
    return pb.IPv4 if is_ip(host) else pb.DOMAIN_NAME


def queues_of(
    write: Iterable[MessageQueue],
    read: Iterable[MessageQueue],
    topic: pb.Resource,
    endpoints: pb.Endpoints,
    types: Iterable[pb.MessageType],
) -> Iterator[pb.MessageQueue]:
    """Yields the queues of a topic, sorted. write, read: those that permit it."""
    writable, readable = set(write), set(read)
    accepted = tuple(types)
    for queue in sorted(writable | readable, key=lambda each: (each.broker_name, each.queue_id)):
        permission = pb.READ_WRITE
        if queue not in readable:
            permission = pb.WRITE
        elif queue not in writable:
            permission = pb.READ
        yield pb.MessageQueue(
            topic=topic,
            id=queue.queue_id,
            permission=permission,
            broker=_broker(queue.broker_name, endpoints),
            accept_message_types=accepted,
        )


def assignments_of(
    read: Iterable[MessageQueue], topic: pb.Resource, endpoints: pb.Endpoints, *, is_fifo: bool
) -> list[pb.Assignment]:
    """Returns what each member of a group receives from: every queue, in order; or any queue of each broker.
    All members get the same: brokers share the messages out."""
    places = {(each.broker_name, each.queue_id if is_fifo else ANY_QUEUE) for each in read}
    return [
        pb.Assignment(
            message_queue=pb.MessageQueue(
                topic=topic, id=queue_id, permission=pb.READ, broker=_broker(name, endpoints)
            )
        )
        for name, queue_id in sorted(places)
    ]


def _broker(name: str, endpoints: pb.Endpoints) -> pb.Broker:
    return pb.Broker(name=name, id=MASTER_ID, endpoints=endpoints)
