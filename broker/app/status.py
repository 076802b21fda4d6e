"""The status of a broker: addresses, role, readiness, faults. Read-only: it never changes a
part."""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from broker.admission.disk_fault import DiskFault
from broker.app.listeners import Listeners
from broker.app.plain_replication import PlainReplication
from broker.config.broker_config import BrokerConfig
from broker.controller_mode.service import ControllerMode
from broker.core.readiness import BrokerReadiness, RoleName
from broker.ha.report import runtime_info
from broker.metadata.service import Metadata
from broker.metadata.topics import PERM_WRITE
from broker.naming.registration import (
    ONE_REQUEST_BYTES_MAX,
    RegisteredBroker,
    RegistrationBodies,
    fits_one_request,
    registration_of,
    unregistration_of,
)
from broker.naming.route_registration import Registrations, RouteRegistration
from broker.plain_ha.report import runtime_info as plain_runtime_info
from broker.store.message_store import MessageStore
from keelmq.remoting.address_text import join_address, listeners_text
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.broker import HaRuntimeInfo
from keelmq.remoting.operations.broker_admin import ExchangeHaInfo
from keelmq.remoting.operations.route import UnregisterBrokerRequest
from keelmq.runtime.tasks import TaskSet

TOLD_TO_TOOLS: Final = {"filterServerNums": "0", "traceOn": "true"}
"""Keys that RocketMQ's mqadmin exportConfigs requires of every broker, in addition to ours: if one is
missing, it ends with a NullPointerException."""
UNREGISTERED_BYTES = 256 * 1024
"""Margin for topics that are created before the next registration measures the size of the table again."""


class BrokerStatus:
    """Reads the parts of a broker at each call."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        host: str,
        listeners: Listeners,
        http_address: Callable[[], tuple[str, int] | None],
        store: MessageStore,
        metadata: Metadata,
        disk_fault: DiskFault,
        routes: RouteRegistration,
        controlled: ControllerMode | None,
        plain: PlainReplication | None,
        tasks: TaskSet,
        is_serving: Callable[[], bool],
        refusal: Callable[[], str],
        no_room: Callable[[], str],
    ) -> None:
        """host: as announced to clients. http_address: None without an HTTP port. controlled: None without
        controller mode. plain: None without slaves, and in controller mode. is_serving: started and not
        stopping. refusal: why sends are refused; empty: they are not. no_room: why the disk accepts no
        messages; empty: it does."""
        self._config, self._host, self._listeners = config, host, listeners
        self._http_address = http_address
        self._store, self._metadata, self._disk_fault = store, metadata, disk_fault
        self._routes, self._controlled, self._plain, self._tasks = routes, controlled, plain, tasks
        self._is_serving, self._refusal, self._no_room = is_serving, refusal, no_room
        self._bodies = RegistrationBodies()
        self._advertised = listeners_text({name: join_address(*at) for name, at in config.advertised.items()})

    # -- addresses ---------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """host:port that is announced to clients."""
        return self._listeners.address

    @property
    def ha_address(self) -> str:
        """host:port that is announced to slaves; empty: no slave can connect here."""
        port = self._ha_port
        return f"{self._config.broker_ip2 or self._host}:{port}" if port else ""

    @property
    def _ha_port(self) -> int:
        if self._controlled is not None:
            return self._controlled.ha_port
        return 0 if self._plain is None else self._plain.ha.port

    def grpc_info(self) -> Mapping[str, str]:
        """Returns keys of the runtime information (28) about clients of gRPC; none without enableProxy."""
        proxy = self._listeners.proxy
        if proxy is None:
            return {}
        return {"grpcServerPort": str(proxy.port), "grpcClients": str(sum(proxy.clients().values()))}

    def describe(self) -> str:
        """Returns the line that the program prints when it is ready."""
        mode = f"replication on {self.ha_address}" if self._ha_port else "stand-alone"
        if self._plain is not None and self._plain.is_slave:
            mode = f"slave {self._config.broker_id}"
        http = self._http_address()
        http_text = "" if http is None else f"http on {http[0]}:{http[1]}"
        where = f"{self._config.broker_name} listening on {self._listeners.address}"
        advertised = self._config.advertised
        further = [f"listener {name} announced as {join_address(*at)}" for name, at in advertised.items()]
        return ", ".join(filter(None, (where, *further, mode, http_text)))

    def detected_settings(self) -> Mapping[str, str]:
        """Returns the keys whose current value was detected or chosen, not configured, and those that
        RocketMQ's tools read but that are no settings here (26). clientCallbackExecutorThreads: as many as
        this process has CPUs; exportMetrics calls it cpuNum."""
        detected = TOLD_TO_TOOLS | {
            "brokerId": str(self.registered_id),
            "brokerIP1": self._host,
            "brokerIP2": self._config.broker_ip2 or self._host,
            "listenPort": str(self._listeners.port),
            "clientCallbackExecutorThreads": str(len(os.sched_getaffinity(0))),
            "useTLS": str(self._config.tls_enable).lower(),
        }
        if self._controlled is not None:
            detected["brokerRole"] = self._controlled.runtime_info()["brokerRole"]
        if self._ha_port:
            detected["haListenPort"] = str(self._ha_port)
        http = self._http_address()
        if http is not None:
            detected["httpPort"] = str(http[1])
        return detected

    # -- role --------------------------------------------------------------------------------------------

    @property
    def role_name(self) -> RoleName:
        """ "none": no role yet, or a change of it is under way."""
        replication = self._controlled or self._plain
        return "master" if replication is None else replication.role_name

    @property
    def registered_id(self) -> int:
        """The broker id that name servers know: 0 of a master."""
        if self._controlled is None:
            return self._config.broker_id
        role = self._controlled.role
        return MASTER_ID if role.is_master else role.broker_id

    @property
    def own_id(self) -> int:
        """The broker id that the controllers have given, or the configured one; a master keeps it."""
        return self._config.broker_id if self._controlled is None else self._controlled.role.broker_id

    def identity(self) -> tuple[int, bool]:
        """Returns the broker's id, and whether it is the master."""
        return self.own_id, self.role_name == "master"

    @property
    def master_epoch(self) -> int:
        """Of the last finished role; 0 without controller mode."""
        return 0 if self._controlled is None else self._controlled.role.epoch

    def ha_info(self) -> ExchangeHaInfo:
        """Returns the answer to 906: the HA address of a master; nothing on a slave."""
        if self.role_name != "master":
            return ExchangeHaInfo()
        return ExchangeHaInfo(
            master_ha_address=self.ha_address or None,
            master_flush_offset=self._store.commit_log.flushed_offset,
            master_address=self._listeners.address,
        )

    def ha_status(self) -> HaRuntimeInfo | None:
        """Returns the answer to 907; None: this broker has no slaves and is not one."""
        if self._controlled is not None:
            return runtime_info(self._controlled.ha)
        return None if self._plain is None else plain_runtime_info(self._plain.ha)

    # -- registration ------------------------------------------------------------------------------------

    @property
    def registers(self) -> bool:
        """Whether there is a role to announce, and no role change in progress."""
        return self._controlled is None or self._controlled.has_settled_role

    async def registrations(self) -> Registrations | None:
        """Returns the registration for the name servers; None: nothing to announce. Waits only if the topic
        table is large and has changed."""
        config = self._config
        while self.registers:
            broker = self._registered()
            topics = await self._metadata.topics.encoder.encoded(config.broker_permission)
            bodies = await self._bodies.of(
                topics, part_topics=config.split_registration_size, splits=config.enable_split_registration
            )
            if self._is_announced(broker):
                return Registrations(
                    [(registration_of(broker, body), body.raw) for body in bodies],
                    is_current=partial(self._is_announced, broker),
                    near_split=not fits_one_request(topics, more_bytes=ONE_REQUEST_BYTES_MAX // 2),
                )
        return None

    def unregistrable(self) -> str:
        """Returns why the name servers could not accept another topic; empty: they could. Topics that were
        created since the last registration are within the margin."""
        problem, topics = self._routes.no_split, self._metadata.topics.encoder.last
        if not problem or topics is None or fits_one_request(topics, more_bytes=UNREGISTERED_BYTES):
            return ""
        return (
            f"the topics would no longer fit into one registration of {ONE_REQUEST_BYTES_MAX} bytes, and "
            f"{problem}"
        )

    def _is_announced(self, broker: RegisteredBroker) -> bool:
        return self.registers and self._registered() == broker

    def unregistration(self) -> UnregisterBrokerRequest:
        """Returns the request that removes this broker from a name server (104)."""
        return unregistration_of(self._registered())

    def _registered(self) -> RegisteredBroker:
        return RegisteredBroker(
            cluster_name=self._config.broker_cluster_name,
            broker_name=self._config.broker_name,
            address=self._listeners.address,
            ha_address=self.ha_address,
            broker_id=self.registered_id,
            forwards_sends=self._controlled is not None and self._controlled.forwards_sends,
            advertised_listeners=self._advertised,
        )

    # -- health ------------------------------------------------------------------------------------------

    @property
    def task_deaths(self) -> Counter[str]:
        """How often each background task has ended by an error."""
        replication = self._controlled or self._plain
        return self._tasks.deaths + (Counter[str]() if replication is None else replication.ha.task_deaths)

    @property
    def readiness(self) -> BrokerReadiness:
        """The input of the readiness decision (core/readiness.py)."""
        controlled, store, replication = self._controlled, self._store, self._controlled or self._plain
        return BrokerReadiness(
            serving=self._is_serving(),
            role=self.role_name,
            name_servers=self._config.name_servers,
            registered=self._routes.registered,
            not_registered=self._routes.problems,
            role_fault=controlled.fault if controlled is not None else "",
            out_of_sync=controlled.out_of_sync if controlled is not None else "",
            disk_fault=self._disk_fault.text
            or store.commit_log.write_fault
            or store.dispatcher.dispatch_fault
            or self._metadata.fault,
            ha_fault=(replication.ha.fault or "") if replication is not None else "",
            refusal=self._refusal(),
            permits_write=bool(self._config.broker_permission & PERM_WRITE),
            log_damage="; ".join(filter(None, (store.damage.describe(), self._metadata.lost))),
            no_room=self._no_room(),
        )
