"""A broker container that answers from a script: RocketMQ's (four requests) or ours (with a status)."""

import asyncio
from dataclasses import dataclass, field

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Call, CommandError, Empty, Reply
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.remoting.operations.container import (
    ADD_BROKER,
    CONTAINER_PLAN,
    CONTAINER_STATUS,
    EXPLAIN_REMOVE_BROKER,
    MOVE_BROKER,
    REMOVE_BROKER,
    RESTART_WORKER,
    AddBrokerRequest,
    BrokerState,
    ContainerPlan,
    ContainerStatus,
    InnerBroker,
    MoveBrokerRequest,
    PlannedBroker,
    PlanRequest,
    RemoveBrokerRequest,
    RestartWorkerRequest,
    Worker,
)
from tests.support.fake_cluster import Server


def inner(name: str, **more: object) -> InnerBroker:
    """A broker of DefaultCluster that serves."""
    values: dict[str, object] = {
        "broker_cluster_name": "DefaultCluster",
        "broker_name": name,
        "broker_id": 0,
        "canonical_name": f"DefaultCluster_{name}_0",
        "state": BrokerState.SERVING,
        "role": "master",
        "address": "10.0.0.1:10911",
        "fast_address": "10.0.0.1:10909",
        "ha_address": "10.0.0.1:10912",
        "config_path": f"/etc/{name}.conf",
        **more,
    }
    return InnerBroker.model_validate(values)


@dataclass
class Script:
    """How the next changes go. refusal: remark of a refusal. states: of the changed broker, one for each
    question about the status; the change ends, and is answered, when they are used up. ends: its state then,
    if it is another one than wanted, with the reason. loses_reply: the connection is closed instead of an
    answer. arrives: a request with a lost reply has an effect."""

    refusal: str = ""
    states: list[BrokerState] = field(default_factory=list)
    ends: BrokerState | None = None
    reason: str = ""
    loses_reply: bool = False
    arrives: bool = True


class FakeContainer(Server):
    """`is_java`: only 902, 903, 25 and 26; other requests are not answered, as RocketMQ's does."""

    def __init__(self, *, is_java: bool = False) -> None:
        super().__init__()
        self.brokers = [inner("broker-a")]
        self.workers = [Worker(number=0, pid=10, is_running=True), Worker(number=1, pid=11, is_running=True)]
        self.script, self.asked = Script(), list[str]()
        self.config = {"listenPort": "10811", "brokerConfigPaths": "/etc/broker-a.conf"}
        self._over = asyncio.Event()
        self._changing: InnerBroker | None = None
        self.table.bind(ADD_BROKER, self._add)
        self.table.bind(REMOVE_BROKER, self._remove)
        self.table.bind(GET_BROKER_CONFIG, self._get_config)
        self.table.bind(UPDATE_BROKER_CONFIG, self._update_config)
        self.table.bind(CONTAINER_STATUS, self._silence if is_java else self._status)
        if not is_java:
            self.table.bind(CONTAINER_PLAN, self._plan)
            self.table.bind(EXPLAIN_REMOVE_BROKER, self._explain_remove)
            self.table.bind(MOVE_BROKER, self._move)
            self.table.bind(RESTART_WORKER, self._restart)

    async def _silence(self, _: Empty, __: Call) -> None:
        await asyncio.Event().wait()

    async def _change(self, broker: InnerBroker, last: BrokerState | None) -> None:
        """The broker goes through the script's states; `last` None: it is gone then."""
        if self.script.states:
            self._changing, self._over = broker, asyncio.Event()
            await self._over.wait()
            self._changing = None
        self._put(broker, self.script.ends or last)

    def _put(self, broker: InnerBroker, state: BrokerState | None) -> None:
        name = broker.canonical_name
        self.brokers = [each for each in self.brokers if each.canonical_name != name]
        if state is not None:
            reason = self.script.reason if state is not BrokerState.SERVING else ""
            self.brokers.append(broker.model_copy(update={"state": state, "reason": reason}))

    async def _lost(self, call: Call) -> None:
        if self.script.loses_reply:
            call.peer.close()  # type: ignore[attr-defined]
            await asyncio.Event().wait()

    async def _add(self, request: AddBrokerRequest, call: Call) -> Reply:
        self.asked.append(f"add {request.config_path}")
        if self.script.refusal:
            raise CommandError(ResponseCode.SYSTEM_ERROR, self.script.refusal)
        if not self.script.arrives:
            await self._lost(call)
        name = str(request.config_path).rpartition("/")[2].removesuffix(".conf")
        changing = asyncio.ensure_future(self._change(inner(name), BrokerState.SERVING))
        await self._lost(call)
        await changing
        return Reply()

    async def _remove(self, request: RemoveBrokerRequest, call: Call) -> Reply:
        self.asked.append(f"remove {request.broker_name} {request.broker_id}")
        changing = asyncio.ensure_future(self._change(self._find(request), None))
        await self._lost(call)
        await changing
        return Reply()

    async def _explain_remove(self, request: RemoveBrokerRequest, _: Call) -> Reply:
        return Reply(body=self._find(request))

    def _find(self, request: RemoveBrokerRequest) -> InnerBroker:
        found = [each for each in self.brokers if each.broker_name == request.broker_name]
        if not found:
            raise CommandError(ResponseCode.BROKER_NOT_EXIST, "Broker not exist")
        return found[0]

    async def _move(self, request: MoveBrokerRequest, call: Call) -> Reply:
        if self.script.refusal:
            raise CommandError(ResponseCode.SYSTEM_ERROR, self.script.refusal)
        (found,) = [each for each in self.brokers if each.broker_name == request.broker_name]
        self._put(found, None)
        self._put(found.model_copy(update={"worker": request.worker}), BrokerState.SERVING)
        await self._lost(call)
        return Reply()

    async def _restart(self, request: RestartWorkerRequest, call: Call) -> Reply:
        if request.worker >= len(self.workers):
            raise CommandError(ResponseCode.INVALID_PARAMETER, f"there is no worker {request.worker}")
        old = self.workers[request.worker]
        self.workers[request.worker] = old.model_copy(update={"pid": old.pid + 100, "restarts": 1})
        await self._lost(call)
        return Reply()

    async def _status(self, _: Empty, __: Call) -> Reply:
        if self._changing is not None and self.script.states:
            self._put(self._changing, self.script.states.pop(0))
            if not self.script.states:
                self._over.set()
        return Reply(body=ContainerStatus(address=self.address, brokers=self.brokers, workers=self.workers))

    async def _plan(self, _: Empty, call: Call) -> Reply:
        assert isinstance(call.body, PlanRequest)
        taken = {each.config_path: each.canonical_name for each in self.brokers}
        planned = [
            PlannedBroker(
                config_path=path,
                canonical_name="DefaultCluster_x_0",
                ports=[10911, 10909, 10912],
                store_path="/store/x",
                problems=[f"{taken[path]} has already been added"] if path in taken else [],
                notes=["serverWorkerThreads: the container's value applies"],
            )
            for path in call.body.config_paths
        ]
        return Reply(body=ContainerPlan(brokers=planned))

    async def _get_config(self, _: Empty, __: Call) -> Reply:
        return Reply(body="".join(f"{key}={value}\n" for key, value in self.config.items()).encode())

    async def _update_config(self, _: Empty, call: Call) -> Reply:
        key, _, value = call.raw_body.decode().strip().partition("=")
        if key == "brokerConfigPaths":
            raise CommandError(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        self.config[key] = value
        return Reply()
