"""AdminClient's requests to name servers: reads go to the first that answers, changes to each one."""

from keelmq.client.admin.transport import AdminTransport, body_of, properties_of
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.namesrv_admin import (
    DELETE_KV_CONFIG,
    GET_NAMESRV_CONFIG,
    PUT_KV_CONFIG,
    UPDATE_NAMESRV_CONFIG,
    KVConfigKey,
    PutKVConfigRequest,
)
from keelmq.remoting.operations.route import (
    ADD_WRITE_PERM_OF_BROKER,
    DELETE_TOPIC_IN_NAMESRV,
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
)


class NameServerQuestions(AdminTransport):
    """Name servers do not exchange data: a change goes to each(), one by one."""

    # name servers: the first that answers

    async def cluster_info(self, namesrv_addr: str) -> ClusterInfo:
        answer = await self.ask_any(namesrv_addr, GET_BROKER_CLUSTER_INFO, Empty())
        return body_of(answer, ClusterInfo, GET_BROKER_CLUSTER_INFO, namesrv_addr)

    async def topic_route(self, namesrv_addr: str, topic: str) -> TopicRouteData:
        header = RouteRequest(topic=topic, accept_standard_json_only=True)
        answer = await self.ask_any(namesrv_addr, GET_ROUTEINFO_BY_TOPIC, header)
        return body_of(answer, TopicRouteData, GET_ROUTEINFO_BY_TOPIC, namesrv_addr)

    async def topic_list(self, namesrv_addr: str) -> list[str]:
        answer = await self.ask_any(namesrv_addr, GET_ALL_TOPIC_LIST, Empty())
        return list(body_of(answer, TopicList, GET_ALL_TOPIC_LIST, namesrv_addr).topic_list)

    # one name server, see each(): they do not tell each other

    async def put_kv_config(self, address: str, namespace: str, key: str, value: str) -> None:
        await self.ask(address, PUT_KV_CONFIG, PutKVConfigRequest(namespace=namespace, key=key, value=value))

    async def delete_kv_config(self, address: str, namespace: str, key: str) -> None:
        await self.ask(address, DELETE_KV_CONFIG, KVConfigKey(namespace=namespace, key=key))

    async def wipe_write_perm(self, address: str, broker_name: str) -> int:
        """Returns how many of its topics are no longer writable; 0 also for an unknown broker."""
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self.ask(address, WIPE_WRITE_PERM_OF_BROKER, header)).header.wipe_topic_count

    async def add_write_perm(self, address: str, broker_name: str) -> int:
        header = RouteBrokerNameRequest(broker_name=broker_name)
        return (await self.ask(address, ADD_WRITE_PERM_OF_BROKER, header)).header.add_topic_count

    async def delete_topic_in_namesrv(self, address: str, topic: str, cluster_name: str | None) -> None:
        header = DeleteTopicRequest(topic=topic, cluster_name=cluster_name)
        await self.ask(address, DELETE_TOPIC_IN_NAMESRV, header)

    async def namesrv_config(self, address: str) -> dict[str, str]:
        return properties_of(await self.ask(address, GET_NAMESRV_CONFIG, Empty()))

    async def update_namesrv_config(self, address: str, key: str, value: str) -> str:
        """Returns the server's remark for the operator, usually empty."""
        body = f"{key}={value}\n".encode()
        return (await self.ask(address, UPDATE_NAMESRV_CONFIG, Empty(), body)).remark
