"""Assembly: a proxy as a program (mqproxy), and one in a broker (enableProxy)."""

from collections import Counter
from typing import Final

from broker.app.proxy import ProxyParts
from broker.config.broker_config import BrokerConfig
from broker.config.detected_address import detect_address
from broker.config.grpc_settings import GrpcSettings
from keelmq.client.cluster.routes import DEFAULT_TOPIC, RouteCache, RouteError, TopicRoute, make_route
from keelmq.remoting.address_text import host_of, join_address, split_list
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import MASTER_ID, ResponseCode
from keelmq.remoting.operation import Ok, OperationTable
from keelmq.remoting.operations.broker import TopicRequest
from keelmq.remoting.operations.broker_metadata import GET_TOPIC_CONFIG
from keelmq.remoting.operations.route import BrokerData, QueueData, TopicConfig, TopicRouteData
from keelmq.remoting.peer_limits import PeerLimits
from keelmq.remoting.servers.http_late import LateHttp
from keelmq.remoting.servers.http_port import http_listen_port
from keelmq.remoting.servers.metrics import Scrape
from keelmq.runtime.clock import now_ms
from keelmq.runtime.config import ConfigError
from keelmq.runtime.stop_steps import AsyncLife, StopSteps
from keelmq.runtime.tasks import TaskSet
from keelmq.runtime.tls.contexts import ServerTls
from keelmq.runtime.tls.settings import TlsConfig, client_tls, server_tls
from keelmq.security.http_access import program_policy
from keelmq.security.signer import Signer, optional_signer
from proxy.core.limits import Limits
from proxy.server.broker_judge import BrokerJudge, MissingKey
from proxy.server.cluster import Cluster, Routes
from proxy.server.config import ProxyConfig
from proxy.server.front import Front
from proxy.server.grpc_server import GrpcServer, ServerSettings
from proxy.server.guard import Guard, Judge, judge_of
from proxy.server.masters import BrokerRequest, InProcessMaster, Masters, TcpMasters
from proxy.server.members import Members
from proxy.server.metrics import CLUSTER, LOCAL, scrape
from proxy.server.producers import Producers
from proxy.server.renewing import Renewing
from proxy.server.service import MessagingService

OWN_TIMEOUT_MS: Final = 1_000
OWN_KEPT_MS: Final = 1_000
OWN_KEPT_MAX: Final = 10_000
NO_PLAIN_ACL = (
    "the gRPC port does not check accounts of ACL 1.0 (aclEnable): {}, or make users of them: "
    "migrateAuthFromV1Enabled"
)


class ProxyServer(AsyncLife):
    """The server, with all that is under it. in_process: the broker in this process; None: there is none."""

    name = "grpcServerPort"

    def __init__(
        self,
        settings: GrpcSettings,
        *,
        bind_address: str,
        host: str,
        body_bytes_max: int,
        namesrv_addr: str,
        tls: TlsConfig,
        server_tls: ServerTls,
        limits: PeerLimits,
        signer: Signer | None = None,
        parts: ProxyParts | None = None,
    ) -> None:
        """host: shown to clients that do not say which address they use. tls: of requests to other servers,
        which signer signs as a member; None: without a broker in this process, nothing is checked.
        server_tls, limits: of the ports of this process. parts: of the broker in it; None: there is none."""
        pushed = OperationTable()
        on_refused = MissingKey().refused if parts is None and signer is None else None
        self._client = RemotingClient(pushed, tls=client_tls(tls), signer=signer, on_refused=on_refused)
        judge: Judge | None = None
        if parts is not None:
            judge = judge_of(parts.requests)
        elif signer is not None:
            judge = BrokerJudge(self._client, tuple(split_list(namesrv_addr))).judge
        guard = Guard(judge)
        masters: Masters = TcpMasters(self._client, for_clients=guard.is_on)
        self._in_process: InProcessMaster | None = None
        if parts is not None:
            masters = self._in_process = InProcessMaster(parts.requests, parts.address, masters)
        self._cluster = Cluster(self._routes(namesrv_addr, parts), masters, guard)
        message_limits = Limits(
            max_message_size=body_bytes_max,
            user_property_max_num=settings.user_property_max_num,
            max_user_property_size=settings.max_user_property_size,
            max_message_group_size=settings.max_message_group_size,
            max_delay_ms=settings.max_delay_time_mills,
            poll_ms_min=settings.grpc_client_consumer_min_long_polling_timeout_millis,
            poll_ms_max=settings.grpc_client_consumer_max_long_polling_timeout_millis,
        )
        self._tasks = TaskSet()
        self._tls = server_tls if parts is None else None  # a broker follows the files of its ports itself
        self._producers = Producers(pushed, self._client, self._cluster, guard)
        self._renewing = Renewing(self._cluster, settings.default_invisible_time_mills)
        service = MessagingService(
            self._cluster,
            guard,
            self._producers,
            self._renewing,
            Members(self._cluster),
            message_limits,
            lambda: self.address,
        )
        self._host, self._mode, self._clients = host, CLUSTER if parts is None else LOCAL, service.clients
        self._server = GrpcServer(
            service,
            ServerSettings(
                bind_address=bind_address,
                port=settings.grpc_server_port,
                message_bytes_max=settings.grpc_max_inbound_message_size,
                calls_per_connection=settings.grpc_max_concurrent_calls_per_connection,
                calls_per_address=settings.grpc_max_concurrent_calls_per_address,
                calls_max=settings.grpc_max_concurrent_calls,
            ),
            guard,
            Front(server_tls.grpc, limits, are_admitted=not guard.is_on),
        )

    def _routes(self, namesrv_addr: str, parts: ProxyParts | None) -> Routes:
        if namesrv_addr:
            return RouteCache(self._client, namesrv_addr)
        if parts is None or self._in_process is None:
            raise ConfigError("namesrvAddr is empty: a proxy finds the brokers at the name servers (-n)")
        return OwnRoutes(self._in_process, parts.config, parts.address)

    @property
    def port(self) -> int:
        """The port, after the start."""
        return self._server.port

    @property
    def address(self) -> str:
        """host:port that is shown to clients which do not say which address they use, after the start."""
        return join_address(self._host, self.port)

    def clients(self) -> Counter[tuple[str, str]]:
        """Returns how many clients have an open stream, by type and language."""
        return self._clients()

    def scrape(self) -> Scrape:
        """Returns the present values of its metrics."""
        return scrape(self.address, self._mode, self._server.counts, self._clients())

    async def _start(self) -> None:
        await self._server.start()
        if self._tls is not None:
            self._tasks.start("certificates of our ports", self._tls.run)
        self._tasks.start("heartbeats for transactions", self._producers.run)
        self._tasks.start("renewals", self._renewing.run)

    async def _stop(self) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all calls, and closes the port and the connections. StopError: a step failed."""
        steps = StopSteps("mqproxy")
        steps.add("grpcServerPort", self._server.close)
        steps.add("heartbeats and renewals", self._tasks.stop)
        steps.add("routes", self._cluster.close)
        if self._in_process is not None:
            steps.add("requests", self._in_process.close)
        steps.add("connections to brokers", self._client.close)
        await steps.run()


class OwnRoutes:
    """Routes of a broker without name servers: it is the only one. That of a topic which exists is kept for
    OWN_KEPT_MS."""

    def __init__(self, broker: InProcessMaster, config: BrokerConfig, address: str) -> None:
        self._broker, self._config, self._address = broker, config, address
        self._kept: dict[str, tuple[int, TopicRoute]] = {}

    async def find(self, topic: str, *, borrow: bool = False) -> TopicRoute:
        """Returns the route. RouteError."""
        until_ms, route = self._kept.get(topic, (0, None))
        return (
            route if route is not None and now_ms() < until_ms else await self.refresh(topic, borrow=borrow)
        )

    async def refresh(self, topic: str, *, borrow: bool = False, rotate: bool = False) -> TopicRoute:
        """As find(), from the broker."""
        config = await self._config_of(topic)
        borrowed = config is None and borrow and self._config.auto_create_topic_enable
        if borrowed:
            config = await self._config_of(DEFAULT_TOPIC)
        if config is None:
            raise RouteError(f"this broker has no topic {topic}", ResponseCode.TOPIC_NOT_EXIST)
        name, cluster = self._config.broker_name, self._config.broker_cluster_name
        queues = QueueData(
            broker_name=name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
        )
        broker = BrokerData(cluster=cluster, broker_name=name, broker_addrs={MASTER_ID: self._address})
        data = TopicRouteData(queue_datas=[queues], broker_datas=[broker])
        route = make_route(topic, data, borrowed=borrowed)
        if not borrowed:
            if len(self._kept) >= OWN_KEPT_MAX:
                self._kept.clear()
            self._kept[topic] = now_ms() + OWN_KEPT_MS, route
        return route

    async def _config_of(self, topic: str) -> TopicConfig | None:
        outcome = await self._broker.serve(
            BrokerRequest(GET_TOPIC_CONFIG, TopicRequest(topic=topic), timeout_ms=OWN_TIMEOUT_MS)
        )
        found = outcome.body if isinstance(outcome, Ok) else None
        return found if isinstance(found, TopicConfig) else None

    def refresh_soon(self, topic: str) -> None:
        """Forgets the route: the next find() asks the broker."""
        self._kept.pop(topic, None)

    async def close(self) -> None:
        """Nothing has to be closed."""


class ProxyProgram(AsyncLife):
    """The program mqproxy: a server of gRPC, and its HTTP port."""

    name = "mqproxy"

    def __init__(self, config: ProxyConfig) -> None:
        """Raises ConfigError."""
        signer = optional_signer(config.member_credentials, proof=True)
        if config.security_on and signer is None:
            raise ConfigError(
                "mqproxy has no users, so brokers check its clients: set "
                "innerClientAuthenticationCredentials as at the brokers, or run it without "
                "authenticationEnabled, authorizationEnabled and aclEnable"
            )
        if config.acl_enable:
            raise ConfigError(NO_PLAIN_ACL.format("remove the key"))
        name_servers = tuple(split_list(config.namesrv_addr))
        self._config, self._tasks = config, TaskSet()
        self.server = ProxyServer(
            config,
            bind_address=config.bind_address,
            host=config.proxy_address or detect_address(config.bind_address, name_servers),
            body_bytes_max=config.max_message_size,
            namesrv_addr=config.namesrv_addr,
            tls=config,
            server_tls=server_tls(config),
            limits=config.peer_limits(),
            signer=signer,
        )
        self._http: LateHttp | None = None

    @property
    def http_address(self) -> tuple[str, int] | None:
        """Host and port of the HTTP server; None: it is disabled, or not bound yet."""
        return None if self._http is None else self._http.address

    async def _start(self) -> None:
        await self.server.__aenter__()
        config = self._config
        port = http_listen_port(
            config.http_port, listen_port=config.grpc_server_port, bound_port=self.server.port
        )
        if port is not None:
            host = config.http_bind_address or config.bind_address
            policy = program_policy(config, None, host, config.bind_address, config.proxy_address)
            self._http = LateHttp(self._app, host=host, port=port, policy=policy)
            self._http.bind()
            self._tasks.start("HTTP server", self._http.serve)

    def _app(self) -> object:
        from proxy.server.http import make_app

        return make_app(address=self.server.address, clients=self.server.clients, scrape=self.server.scrape)

    async def _stop(self) -> None:
        steps = StopSteps("mqproxy")
        steps.add("background tasks", self._tasks.stop)  # it may be about to start the HTTP server
        if self._http is not None:
            steps.add("the HTTP port", self._http.close)
        steps.add("grpcServerPort", self.server.close)
        await steps.run()


async def start_in_broker(parts: ProxyParts) -> ProxyServer:
    """Returns the server of a broker, which serves. Raises ConfigError."""
    config = parts.config
    if config.acl_enable:
        raise ConfigError(NO_PLAIN_ACL.format("set enableProxy=false"))
    server = ProxyServer(
        config,
        bind_address=config.bind_address,
        host=host_of(parts.address),
        body_bytes_max=config.max_message_size,
        namesrv_addr=config.namesrv_addr,
        tls=config,
        server_tls=parts.tls,
        limits=parts.limits,
        signer=optional_signer(config.member_credentials, proof=True),
        parts=parts,
    )
    await server.__aenter__()
    return server
