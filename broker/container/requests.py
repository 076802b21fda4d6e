"""The requests of a container's own port: 902, 903, 25, 26, and KeelMQ's own. Any other request gets code 3;
RocketMQ's container does not answer it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

from broker.container.config import ContainerConfig
from broker.container.container import Container
from broker.container.host import CLOSING
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.config_store import ConfigStore
from keelmq.remoting.operation import Call, CommandError, Empty, OperationTable, Reply
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, BrokerConfigResponse
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
    MoveBrokerRequest,
    PlanRequest,
    RemoveBrokerRequest,
    RestartWorkerRequest,
)
from keelmq.runtime.clock import wall_ms
from keelmq.runtime.config import parse_request, to_properties

OnChange = Callable[[Mapping[str, str]], Awaitable[list[str]]]
"""Returns the reasons why processes could not apply the keys."""


class ContainerRequests:
    """Handlers. settings: of the container. detected: keys that were detected or chosen, with current values.
    on_change: sends the changed keys to the processes of the container."""

    def __init__(
        self,
        container: Container,
        settings: ConfigStore[ContainerConfig],
        *,
        detected: Callable[[], dict[str, str]],
        on_change: OnChange,
    ) -> None:
        self._container, self._settings, self._detected = container, settings, detected
        self._on_change, self._changing = on_change, asyncio.Lock()
        self._changed_ms = 0
        self._is_closing = False

    def refuse_changes(self) -> None:
        """From now on no broker is added, removed or moved: all are about to stop."""
        self._is_closing = True

    def _check_open(self) -> None:
        if self._is_closing:
            raise CommandError(ResponseCode.SYSTEM_ERROR, CLOSING)

    def bind(self, table: OperationTable) -> None:
        """Binds all of them."""
        table.bind(ADD_BROKER, self.add)
        table.bind(REMOVE_BROKER, self.remove)
        table.bind(EXPLAIN_REMOVE_BROKER, self.explain_remove)
        table.bind(UPDATE_BROKER_CONFIG, self.update)
        table.bind(GET_BROKER_CONFIG, self.get)
        table.bind(CONTAINER_STATUS, self.status)
        table.bind(CONTAINER_PLAN, self.plan)
        table.bind(MOVE_BROKER, self.move)
        table.bind(RESTART_WORKER, self.restart)

    async def add(self, request: AddBrokerRequest, call: Call) -> Empty:
        """Adds the broker of a file (902)."""
        self._check_open()
        name = await self._container.add(request.config_path)
        call.changes[f"broker {name}"] = (None, request.config_path)
        return Empty()

    async def remove(self, request: RemoveBrokerRequest, call: Call) -> Empty:
        """Removes a broker (903)."""
        self._check_open()
        wanted = request.broker_cluster_name, request.broker_name, request.broker_id
        name, path = await self._container.remove(*wanted)
        call.changes[f"broker {name}"] = (str(path), None)
        return Empty()

    async def explain_remove(self, request: RemoveBrokerRequest, call: Call) -> Reply:
        """Returns the broker that 903 would remove, and removes nothing (29035)."""
        self._check_open()
        wanted = request.broker_cluster_name, request.broker_name, request.broker_id
        return Reply(body=await self._container.would_remove(*wanted))

    async def move(self, request: MoveBrokerRequest, call: Call) -> Empty:
        """Moves a broker into another process (29033)."""
        self._check_open()
        name = request.broker_cluster_name, request.broker_name, request.broker_id
        await self._container.move(*name, request.worker)
        return Empty()

    async def restart(self, request: RestartWorkerRequest, call: Call) -> Empty:
        """Restarts a process with its brokers (29034)."""
        self._check_open()
        await self._container.restart(request.worker)
        return Empty()

    async def status(self, request: Empty, call: Call) -> Reply:
        """Returns brokers and processes (29031)."""
        return Reply(body=await self._container.status())

    async def plan(self, request: Empty, call: Call) -> Reply:
        """Checks files, and adds nothing (29032)."""
        asked = call.body
        assert isinstance(asked, PlanRequest)
        return Reply(body=self._container.plan(asked.config_paths))

    async def get(self, request: Empty, call: Call) -> Reply:
        """Returns the current settings as sorted key=value lines, and their DataVersion (26)."""
        version = {"counter": self._settings.version, "stateVersion": 0, "timestamp": self._changed_ms}
        header = BrokerConfigResponse(version=json.dumps(version, separators=(",", ":")))
        detected = self._detected()
        configured = to_properties(self._settings.current).splitlines()
        lines = [line for line in configured if line.partition("=")[0] not in detected]
        lines += [f"{key}={value}" for key, value in detected.items()]
        return Reply(header=header, body="".join(f"{line}\n" for line in sorted(lines)).encode())

    async def update(self, request: Empty, call: Call) -> Reply:
        """Changes all given settings or none, in this process and its workers (25). A worker that does not
        answer has them when it starts again."""
        async with self._changing:
            remark = await self._settings.update(call.raw_body, call.changes)
            self._changed_ms = wall_ms()
            changed = parse_request(call.raw_body)
            late = await self._on_change(changed) if changed else []
        remarks = [remark] if remark else []
        remarks += [f"{each}: it takes the change over when it starts again" for each in late]
        return Reply(remark="; ".join(remarks) or None)
