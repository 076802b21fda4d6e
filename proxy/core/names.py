"""Names of topics and groups, as brokers know them, and the identity of a client. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from keelmq.client.core.names import LEGAL_NAME
from proxy.core.statuses import Refused
from proxy.wire import messaging_pb2 as pb

CLIENT_ID: Final = "x-mq-client-id"
NAMESPACE: Final = "x-mq-namespace"
LANGUAGE: Final = "x-mq-language"
VERSION: Final = "x-mq-client-version"
NODE: Final = "HTTP"
"""What the Node client sends as its language."""
CLIENT_ID_CHARACTERS_MAX: Final = 255
VERSION_CHARACTERS_MAX: Final = 32
NAME_BYTES_MAX: Final = 255


class Client(msgspec.Struct, frozen=True):
    """A client, from the metadata of one of its calls."""

    client_id: str
    namespace: str = ""
    language: str = ""
    version: str = ""

    @property
    def is_node(self) -> bool:
        """Whether it is RocketMQ's Node client, which has limits of its own."""
        return self.language == NODE


def client_of(metadata: Mapping[str, str]) -> Client:
    """Raises Refused: the call does not say which client sends it."""
    client_id = metadata.get(CLIENT_ID, "")
    if not client_id:
        raise Refused(pb.CLIENT_ID_REQUIRED, f"the call has no {CLIENT_ID}")
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise Refused(pb.BAD_REQUEST, f"{CLIENT_ID} has more than {CLIENT_ID_CHARACTERS_MAX} characters")
    return Client(
        client_id,
        metadata.get(NAMESPACE, ""),
        metadata.get(LANGUAGE, "").upper(),
        metadata.get(VERSION, "")[:VERSION_CHARACTERS_MAX],
    )


def topic_name(topic: pb.Resource, client: Client) -> str:
    """Returns the topic's name at the brokers. Raises Refused."""
    return _name(topic, client, pb.ILLEGAL_TOPIC, "topic")


def group_name(group: pb.Resource, client: Client) -> str:
    """Returns the consumer group's name at the brokers. Raises Refused."""
    return _name(group, client, pb.ILLEGAL_CONSUMER_GROUP, "consumer group")


def _name(resource: pb.Resource, client: Client, code: pb.Code, what: str) -> str:
    """The namespace is in the resource (Python) or only in the metadata (Node)."""
    if not resource.name.strip():
        raise Refused(code, f"the name of the {what} is empty")
    namespace = resource.resource_namespace or client.namespace
    name = f"{namespace}%{resource.name}" if namespace else resource.name
    if len(name.encode()) > NAME_BYTES_MAX:
        raise Refused(code, f"the name of the {what} has more than {NAME_BYTES_MAX} bytes")
    if not LEGAL_NAME.match(name):
        raise Refused(code, f"the name of the {what} has illegal characters, allowed are A-Z a-z 0-9 _ - % |")
    return name
