"""AdminClient's requests to name servers: reads go to the first that answers, changes to every one."""

from keelmq.client.admin.transport import AdminError, AdminTransport, body_of, properties_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.namesrv_admin import (
    DELETE_KV_CONFIG,
    GET_KV_CONFIG,
    GET_NAMESRV_CONFIG,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    KVConfigKey,
    PutKVConfigRequest,
)
from keelmq.remoting.operations.route import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
    EXPLAIN_WIPE_WRITE_PERM,
    GET_ALL_TOPIC_LIST,
    GET_BROKER_CLUSTER_INFO,
    GET_ROUTEINFO_BY_TOPIC,
    WIPE_WRITE_PERM_OF_BROKER,
    ClusterInfo,
    DeleteTopicRequest,
    RouteBrokerNameRequest,
    RouteRequest,
    TopicList,
    TopicRouteData,
    WipeExplanation,
)


class NameServerAdmin(AdminTransport):
    """Requests to name servers. They do not replicate: send a change to each of them with each(). All methods
    raise AdminError."""

    # reads, from the first name server that answers

    async def cluster_info(self, namesrv_addr: str) -> ClusterInfo:
        """Returns clusters, broker names and addresses (GET_BROKER_CLUSTER_INFO, 106)."""
        answer = await self.ask_any(namesrv_addr, GET_BROKER_CLUSTER_INFO, Empty())
        return body_of(answer, ClusterInfo, GET_BROKER_CLUSTER_INFO, namesrv_addr)

    async def topic_route(self, namesrv_addr: str, topic: str) -> TopicRouteData:
        """Returns the topic's route (GET_ROUTEINFO_BY_TOPIC, 105). AdminError 17: the topic is unknown."""
        header = RouteRequest(topic=topic, accept_standard_json_only=True)
        answer = await self.ask_any(namesrv_addr, GET_ROUTEINFO_BY_TOPIC, header)
        return body_of(answer, TopicRouteData, GET_ROUTEINFO_BY_TOPIC, namesrv_addr)

    async def topic_list(self, namesrv_addr: str) -> list[str]:
        """Returns the names of all topics (GET_ALL_TOPIC_LIST, 206)."""
        answer = await self.ask_any(namesrv_addr, GET_ALL_TOPIC_LIST, Empty())
        return list(body_of(answer, TopicList, GET_ALL_TOPIC_LIST, namesrv_addr).topic_list)

    # one name server; each() calls them for several

    async def put_kv_config(self, address: str, namespace: str, key: str, value: str) -> None:
        """Stores a value of the KV configuration (PUT_KV_CONFIG, 100)."""
        await self.ask(address, PUT_KV_CONFIG, PutKVConfigRequest(namespace=namespace, key=key, value=value))

    async def get_kv_config(self, address: str, namespace: str, key: str) -> str | None:
        """Returns a value of the KV configuration (GET_KV_CONFIG, 101); None: there is none."""
        try:
            answer = await self.ask(address, GET_KV_CONFIG, KVConfigKey(namespace=namespace, key=key))
        except AdminError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return answer.header.value

    async def delete_kv_config(self, address: str, namespace: str, key: str) -> None:
        """Deletes a value of the KV configuration (DELETE_KV_CONFIG, 102)."""
        await self.ask(address, DELETE_KV_CONFIG, KVConfigKey(namespace=namespace, key=key))

    async def wipe_write_perm(self, address: str, broker_name: str) -> int:
        """Removes the write permission from the broker's topics (WIPE_WRITE_PERM_OF_BROKER, 205). Returns how
        many topics changed; 0 also for an unknown broker."""
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self.ask(address, WIPE_WRITE_PERM_OF_BROKER, header)).header.wipe_topic_count

    async def explain_wipe(self, address: str, broker_name: str) -> tuple[int, WipeExplanation]:
        """Returns how many topics the broker has, and those that wipe_write_perm() would change
        (EXPLAIN_WIPE_WRITE_PERM, 29056). Raises as explain()."""
        header = RouteBrokerNameRequest(broker_name=broker_name)
        answer = await self.explain(address, EXPLAIN_WIPE_WRITE_PERM, header)
        explained = body_of(answer, WipeExplanation, EXPLAIN_WIPE_WRITE_PERM, address)
        return answer.header.wipe_topic_count, explained

    async def add_write_perm(self, address: str, broker_name: str) -> int:
        """Restores the write permission of the broker's topics (ADD_WRITE_PERM_OF_BROKER, 327). Returns how
        many topics changed."""
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self.ask(address, ADD_WRITE_PERM_OF_BROKER, header)).header.add_topic_count

    async def delete_topic_in_namesrv(self, address: str, topic: str, cluster_name: str | None) -> None:
        """Deletes the topic's route; `cluster_name` None: of all clusters (DELETE_TOPIC_IN_NAMESRV, 216)."""
        header = DeleteTopicRequest(topic=topic, cluster_name=cluster_name)
        await self.ask(address, DELETE_TOPIC_IN_NAMESRV, header)

    async def namesrv_config(self, address: str) -> dict[str, str]:
        """Returns the name server's settings as text by key (GET_NAMESRV_CONFIG, 319)."""
        return properties_of(await self.ask(address, GET_NAMESRV_CONFIG, Empty()))

    async def namesrv_version(self, address: str) -> str:
        """Returns the version of the program; "": it does not report one (GET_NAMESRV_CONFIG, 319)."""
        return (await self.ask(address, GET_NAMESRV_CONFIG, Empty())).header.keelmq_version

    async def update_namesrv_config(self, address: str, key: str, value: str) -> str:
        """Changes one setting (UPDATE_NAMESRV_CONFIG, 318). Returns the server's remark, usually empty."""
        body = f"{key}={value}\n".encode()
        return (await self.ask(address, UPDATE_NAMESRV_CONFIG, Empty(), body)).remark
