"""The cluster that is attacked: a name server with a controller, a second controller, a master and a replica.
Real processes, in one of two modes.

OPEN: everything off, as by default. CLOSED: TLS only, signatures, ACLs, members with certificates and proofs.
alice owns the topic `orders` and its group; mallory owns others, and wants alice's."""

import asyncio
import gc
import hashlib
import json
import ssl
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from cli.lab.cluster import Cluster, ClusterError, Launcher, Program
from tests.attacks.container_program import AttackedContainer
from tests.attacks.frames import CLOSED as NO_CONNECTION
from tests.attacks.frames import Answer, Identity, Request
from tests.attacks.line import GONE, dialled, until
from tests.support.ports import free_port
from tests.support.raft_certificates import Authority, mutual_tls

Mode = Literal["open", "closed"]
HOST: Final = "127.0.0.1"
CLUSTER_NAME: Final = "KeelCluster"
BROKER_NAME: Final = "broker-a"
MEMBER_NAME: Final = "cluster-member"

ADMIN: Final = Identity("rocketmq-admin", "the-administrators-key")
MEMBER: Final = Identity("keelmq-member", "the-key-of-the-members")
ALICE: Final = Identity("alice", "the-key-of-alice")
MALLORY: Final = Identity("mallory", "the-key-of-mallory")
DISABLED: Final = Identity("retired", "the-key-of-retired")
UNKNOWN: Final = Identity("nobody-knows-me", "any-key-at-all")

ORDERS: Final = "orders"
ALICES: Final = "alice-group"
OWN: Final = "mallory-topic"
OWN_GROUP: Final = "mallory-group"
TRACES: Final = "RMQ_SYS_TRACE_TOPIC"
SECRET: Final = b"alice's secret order"
ORDERS_KEY: Final = "order-7"
MESSAGES: Final = 4

TOKENS: Final = {"read": "the-token-that-reads-0123456789", "operate": "the-token-that-operates-0123456789"}
"""Role -> token."""
CONNECTIONS_MAX: Final = 200
"""Of one address."""

READY_S: Final = 40.0
CONTAINER_READY_S: Final = 80.0
"""Three processes start after the others."""
MASTER_FILE_BYTES: Final = 1_048_576


class _Launcher(Launcher):
    """mqcontroller is an entry point of a module that is mqnamesrv otherwise."""

    def command(self, program: Program) -> list[str]:
        if program.module == "namesrv" and program.name.startswith("controller"):
            code = "import sys; from namesrv.__main__ import controller_main; sys.exit(controller_main())"
            return [sys.executable, "-c", code, "-c", str(program.config_path)]
        return super().command(program)


class Stage:
    """`with Stage(directory, mode) as stage:` every program runs, and alice's messages are stored."""

    def __init__(self, directory: Path, mode: Mode) -> None:
        self.directory, self.mode = directory, mode
        self.authority = Authority(directory / "ca", name="of the cluster")
        self.foreign = Authority(directory / "foreign", name="of somebody else")
        self._trusting = ssl.create_default_context(cafile=str(self.authority.path))
        self._trusting.check_hostname = False
        shared = self._settings() if self.is_closed else {}
        of_users = self._users_settings() if self.is_closed else {}
        self.cluster = Cluster(
            directory / "cluster",
            name_servers=2,
            brokers=2,
            cluster_name=CLUSTER_NAME,
            broker_name=BROKER_NAME,
            namesrv_settings={**shared, **of_users},
            broker_settings={**shared, **_BROKER, **(_HA if self.is_closed else {})},
            http=True,
            launcher=_Launcher(),
        )
        self._make_a_controller(self.cluster.name_servers[1])
        self.container = AttackedContainer(self.cluster, {**shared, **of_users})
        """Runs from the first open_container() on."""
        self.addresses: dict[str, str] = {}
        """By what they are: namesrv, controller (it leads), follower, broker (the master), vip (its VIP
        channel), replica, ha, ha-replica, container (its own port), grpc and
        grpc-replica (of the master and the replica)."""
        self.http_addresses: dict[str, str] = {}
        """namesrv, controller, broker, container."""
        self.offsets: list[int] = []
        """Of alice's messages in the CommitLog."""

    @property
    def is_closed(self) -> bool:
        return self.mode == "closed"

    @property
    def power(self) -> Identity | None:
        """Who may do everything: to attack what comes after the check of users."""
        return ADMIN if self.is_closed else None

    def __enter__(self) -> Self:
        try:
            self.cluster.start()
            asyncio.run(self._prepare())
        except BaseException:
            self.cluster.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.container.close()
        self.cluster.close()
        gc.collect()  # Popen objects that outlive their process warn when they are collected later

    async def open_container(self) -> AttackedContainer:
        """Starts the container, if it does not run, and returns it when its brokers serve."""
        if "container" not in self.addresses:
            self.addresses["container"] = self.container.address
            self.http_addresses["container"] = self.container.http_address
            self.container.start()

            async def serves() -> bool:
                status = await self.ask("container", 29031)
                states = [each["state"] for each in json.loads(status.body or b"{}").get("brokers", ())]
                return len(states) == 1 and states[0] == "serving"

            await self._until("a container with its broker", serves, timeout_s=CONTAINER_READY_S)
        return self.container

    # -- what the stage does itself, as administrator ----------------------------------------------------

    def client_tls(self) -> ssl.SSLContext | None:
        """What a client of the cluster connects with: no certificate, and the right CA."""
        return self._trusting if self.is_closed else None

    async def ask(
        self,
        server: str,
        code: int,
        fields: Mapping[str, object] | None = None,
        body: object = b"",
        *,
        by: Identity = ADMIN,
        timeout_s: float = 10.0,
    ) -> Answer:
        """A request of an administrator, or of another one who may send it. `server`: a name or host:port."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (fields or {}).items()
        }
        request = Request(code, texts, raw)
        if self.is_closed:
            request = request.signed(by, proof=by in (ADMIN, MEMBER))
        address = self.addresses.get(server, server)
        try:
            async with dialled(address, source=HOST, tls=self.client_tls()) as line:
                return await line.ask(request, timeout_s=timeout_s)
        except (*GONE, TimeoutError) as error:
            return Answer(NO_CONNECTION, f"{address}: {error}")

    async def must(self, server: str, code: int, *args: Any, **options: Any) -> Answer:
        """ask(), for what has to succeed."""
        answer = await self.ask(server, code, *args, **options)
        assert answer.code == 0, f"{code} at {server}: {answer}"
        return answer

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        by: Identity = ALICE,
        text: str = "",
        sys_flag: int = 0,
        born_ms: int = 0,
    ) -> Answer:
        """Stores a message (310); `text`: its properties."""
        fields = send_fields(topic, text, 0, sys_flag, g=born_ms)
        return await self.must("broker", 310, fields, body, by=by)

    async def end_of(self, topic: str, queue: int = 0) -> int:
        """Returns the queue's maxOffset; -1: it cannot be asked for."""
        answer = await self.ask("broker", 30, {"topic": topic, "queueId": queue})
        return int(answer.fields["offset"]) if answer.code == 0 else -1

    async def bodies_of(self, topic: str, queue: int = 0, *, start: int = 0) -> bytes:
        """Returns the stored records of a queue, as an administrator pulls them."""
        fields = pull_fields(topic, "attack-viewers", queue, start)
        answer = await self.ask("broker", 11, fields)
        return answer.body if answer.code == 0 else b""

    async def sync_state(self) -> dict[str, Any]:
        """Returns what the controller knows of the group (1006)."""
        answer = await self.must("controller", 1006, {}, [BROKER_NAME])
        return dict(json.loads(answer.body)["replicasInfoTable"].get(BROKER_NAME) or {})

    async def route(self, topic: str = ORDERS) -> dict[str, Any]:
        """Returns the route; {}: there is none."""
        answer = await self.ask("namesrv", 105, {"topic": topic})
        return dict(json.loads(answer.body)) if answer.code == 0 else {}

    async def setting(self, server: str, key: str, code: int = 26) -> str:
        """Returns a setting of a server, as text; 26: a broker, 319: a name server, 1010: a controller."""
        answer = await self.must(server, code)
        lines = (line.partition("=") for line in answer.body.decode().splitlines())
        return next((value for name, _, value in lines if name == key), "")

    # -- start -------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        self.addresses["namesrv"] = self.cluster.name_servers[0].address
        await self._find_controller()
        await self._find_master()
        if self.is_closed:
            await self._create_users()
        for topic in (ORDERS, OWN):
            await self.create_topic(topic)
        for group in (ALICES, OWN_GROUP, "attack-viewers"):
            await self.must("broker", 200, {}, {"groupName": group})
        for number in range(MESSAGES):
            answer = await self.send(ORDERS, SECRET + b" %d" % number, text=f"KEYS\x01{ORDERS_KEY}\x02")
            self.offsets.append(int(answer.fields["msgId"][16:], 16))
        await self.send(OWN, b"mallory's own", by=MALLORY)
        await until("the route of orders", self._has_route, timeout_s=READY_S)

    async def create_topic(self, topic: str, queues: int = 1) -> None:
        fields = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
        }
        await self.must("broker", 17, fields)

    async def _has_route(self) -> bool:
        return bool(await self.route())

    async def _find_controller(self) -> None:
        """The leader of the two, whichever it is, and the other one."""
        servers = self.cluster.name_servers

        async def found() -> bool:
            self.cluster.check()
            for server in servers:
                answer = await self.ask(server.controller_address, 1005)
                leader = answer.fields.get("controllerLeaderAddress")
                if answer.code == 0 and leader:
                    self.addresses["controller"] = leader
                    return True
            return False

        await self._until("a controller that leads", found)
        leader = self.addresses["controller"]
        other = next(each for each in servers if each.controller_address != leader)
        self.addresses["follower"] = other.controller_address
        self.http_addresses |= {
            "namesrv": servers[0].http_address,
            "controller": next(each for each in servers if each is not other).http_address,
        }

    async def _find_master(self) -> None:
        brokers = {broker.address: broker for broker in self.cluster.brokers}

        async def found() -> bool:
            self.cluster.check()
            info = await self.ask("controller", 1006, {}, [BROKER_NAME])
            if info.code != 0:
                return False
            state = (json.loads(info.body)["replicasInfoTable"] or {}).get(BROKER_NAME) or {}
            address = state.get("masterAddress")
            if len(state.get("inSyncReplicas") or ()) < 2 or address not in brokers:
                return False
            self.addresses["broker"] = address
            status = await self.ask("broker", 907)
            return status.code == 0 and bool(json.loads(status.body)["master"])

        await self._until("a master, and two replicas in sync", found)
        master = brokers[self.addresses["broker"]]
        replica = next(each for each in self.cluster.brokers if each is not master)
        self.addresses["replica"] = replica.address
        self.addresses["vip"] = f"{HOST}:{master.settings['fastListenPort']}"
        self.addresses["grpc"] = f"{HOST}:{master.settings['grpcServerPort']}"
        self.addresses["grpc-replica"] = f"{HOST}:{replica.settings['grpcServerPort']}"
        self.addresses["ha"] = f"{HOST}:{master.settings['haListenPort']}"
        self.addresses["ha-replica"] = f"{HOST}:{replica.settings['haListenPort']}"
        self.http_addresses["broker"] = master.http_address

    async def _until(self, what: str, condition: Any, *, timeout_s: float = READY_S) -> None:
        try:
            await until(what, condition, timeout_s=timeout_s)
        except TimeoutError:
            tails = "\n".join(f"{each.name}:\n{each.log_tail()}" for each in self.cluster.programs)
            raise ClusterError(f"not within {timeout_s:g} s: {what}\n{tails}") from None

    # -- settings ----------------------------------------------------------------------------------------

    def _make_a_controller(self, program: Program) -> None:
        """The second of the controllers runs without a name server, and nobody asks it for routes."""
        program.name = "controller-1"
        program.settings.pop("enableControllerInNamesrv")
        program.settings.pop("listenPort")
        program.write()
        for broker in self.cluster.brokers:
            broker.settings["namesrvAddr"] = self.cluster.name_servers[0].address
            broker.settings["fastListenPort"] = str(free_port())
            broker.settings["grpcServerPort"] = str(free_port())
            broker.write()

    def _settings(self) -> dict[str, str]:
        """What closes a program. Every key is written out, so that a changed default cannot open it."""
        member = json.dumps({"accessKey": MEMBER.name, "secretKey": MEMBER.secret})
        first = json.dumps({"username": ADMIN.name, "password": ADMIN.secret})
        return {
            **mutual_tls(self.authority, MEMBER_NAME),
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": first,
            "innerClientAuthenticationCredentials": member,
            "memberProofRequired": "true",
            "memberCertificateNames": MEMBER_NAME,
            "httpTokensFile": str(self._tokens_file()),
            "httpMetricsOpen": "false",
            "maxConnectionsPerAddress": str(CONNECTIONS_MAX),
        }

    def _tokens_file(self) -> Path:
        """Tokens for HTTP of two roles; the file has only their hashes."""
        path = self.directory / "http-tokens"
        lines = (
            f"{role} {role}-token sha256:{hashlib.sha256(token.encode()).hexdigest()}\n"
            for role, token in TOKENS.items()
        )
        path.touch(mode=0o600)
        path.write_text("".join(lines))
        return path

    def _users_settings(self) -> dict[str, str]:
        """The name server and the controllers have their users in files."""
        directory = self.directory / "users"
        directory.mkdir()
        users = [
            {"username": each.name, "password": each.secret, "userType": type_, "userStatus": status}
            for each, type_, status in _USERS
        ]
        _write_private(directory / "users.json", {"users": users})
        _write_private(directory / "acls.json", {"acls": _ACLS})
        return {"usersPath": str(directory)}

    async def _create_users(self) -> None:
        """The same users at the brokers, by requests."""
        for each, type_, status in _USERS:
            if each is not ADMIN:
                info = {
                    "username": each.name,
                    "password": each.secret,
                    "userType": type_,
                    "userStatus": status,
                }
                await self.must("broker", 3001, {"username": each.name}, info)
        for acl in _ACLS:
            await self.must("broker", 3006, {"subject": acl["subject"]}, acl)


_BROKER: Final = {
    "minInSyncReplicas": "1",
    "mappedFileSizeCommitLog": str(MASTER_FILE_BYTES),
    "mappedFileSizeConsumeQueue": "20000",
    "registerNameServerPeriod": "10000",
    "traceTopicEnable": "true",
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "1000",
    "recallMessageEnable": "true",
    "enableProxy": "true",
}
_HA: Final = {"haTlsMode": "enforcing", "haTlsEnable": "true"}
_USERS: Final = (
    (ADMIN, "Super", "enable"),
    (ALICE, "Normal", "enable"),
    (MALLORY, "Normal", "enable"),
    (DISABLED, "Super", "disable"),
)


def _acl(user: Identity, resources: Iterable[str]) -> dict[str, Any]:
    entries = [{"resource": each, "actions": ["All"], "decision": "Allow"} for each in resources]
    return {"subject": f"User:{user.name}", "policies": [{"policyType": "Custom", "entries": entries}]}


_ACLS: Final = (
    _acl(
        ALICE,
        (
            f"Topic:{ORDERS}",
            f"Group:{ALICES}",
            "Topic:alice*",
            "Group:alice*",
            f"Topic:{CLUSTER_NAME}_REPLY_TOPIC",
        ),
    ),
    _acl(MALLORY, ("Topic:mallory*", "Group:mallory*")),
)


def _write_private(path: Path, value: object) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(value))


def send_fields(
    topic: str, text: str = "", queue: int = 0, sys_flag: int = 0, **more: object
) -> dict[str, object]:
    """Returns the header fields of a SEND_MESSAGE_V2."""
    return {
        "a": "attack-producers", "b": topic, "c": "TBW102", "d": 1, "e": queue, "f": sys_flag, "g": 0, "h": 0,
        "i": text, "j": 0, "k": False, "m": False, **more,
    }  # fmt: skip


def pull_fields(topic: str, group: str, queue: int = 0, start: int = 0) -> dict[str, object]:
    """Returns the header fields of a PULL_MESSAGE that has its subscription with it."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": queue, "queueOffset": start, "maxMsgNums": 32,
        "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0,
    }  # fmt: skip
