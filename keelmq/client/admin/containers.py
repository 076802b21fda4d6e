"""AdminClient's requests to a broker container: its brokers, added, removed, moved, listed.

Adding a broker with a large store takes minutes. While the container works, its status is polled; if its
reply does not arrive, the status says whether the change was made. RocketMQ's container has no status: there
the reply alone counts.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

from keelmq.client.admin.transport import AdminError, AdminTransport, body_of
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Ok, Operation, Wire
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG
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
    PlanRequest,
    RemoveBrokerRequest,
    RestartWorkerRequest,
)

CHANGE_TIMEOUT_MS = 600_000
"""Time limit for adding, removing or moving a broker, and for a worker's restart."""
STATUS_TIMEOUT_MS = 3_000
LAST_STATUS_MS = 1_000
POLL_MS = 500
SILENT_MS = 30_000
"""The client stops waiting for a container that answered before, and then answers nothing for this long."""
ABSENT_POLLS = 3
"""After a lost reply: this many answers without the broker mean that it was not added."""

Progress = Callable[[ContainerStatus], None]


class Verdict(Enum):
    """What a status says about a change."""

    DONE = "done"
    FAILED = "failed"
    RUNNING = "running"
    NOT_BEGUN = "not begun"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a status says about a change, with the broker and the reason of a failure."""

    verdict: Verdict
    broker: InnerBroker | None = None
    reason: str = ""


Judge = Callable[[ContainerStatus], Seen]


class ContainerAdmin(AdminTransport):
    """Requests to one container. All methods raise AdminError. A `timeout_ms` of the client is for the whole
    change, instead of CHANGE_TIMEOUT_MS. on_progress: called with every status that arrives meanwhile."""

    async def container_status(self, container_addr: str) -> ContainerStatus:
        """Returns the brokers and processes of a container (CONTAINER_STATUS, 29031). AdminError 3, or no
        answer: it is one of RocketMQ's."""
        answer = await self.ask(container_addr, CONTAINER_STATUS, Empty(), timeout_ms=STATUS_TIMEOUT_MS)
        return body_of(answer, ContainerStatus, CONTAINER_STATUS, container_addr)

    async def quick_status(self, container_addr: str, timeout_ms: int) -> ContainerStatus | None:
        """As container_status(), with a separate time limit; None: no answer, or a refusal."""
        outcome = await self._client.call(container_addr, CONTAINER_STATUS, Empty(), timeout_ms=timeout_ms)
        return outcome.body if isinstance(outcome, Ok) and isinstance(outcome.body, ContainerStatus) else None

    async def container_plan(self, container_addr: str, config_paths: Sequence[str]) -> ContainerPlan:
        """Returns what the container would say if these files, of its host, were added together; changes
        nothing (CONTAINER_PLAN, 29032)."""
        request = PlanRequest(config_paths=list(config_paths))
        answer = await self.ask(container_addr, CONTAINER_PLAN, Empty(), request)
        return body_of(answer, ContainerPlan, CONTAINER_PLAN, container_addr)

    async def add_broker(
        self, container_addr: str, config_path: str, on_progress: Progress = lambda _: None
    ) -> InnerBroker | None:
        """Adds the broker of a file of the container's host, and returns when it serves (ADD_BROKER, 902).
        None: a RocketMQ container, which reports only success."""
        before = await self._status_before(container_addr)
        wanted = PurePosixPath(config_path)

        def judge(status: ContainerStatus) -> Seen:
            broker = next(
                (each for each in status.brokers if PurePosixPath(each.config_path) == wanted), None
            )
            if broker is None:
                return Seen(Verdict.NOT_BEGUN)
            if broker.state is BrokerState.SERVING:
                return Seen(Verdict.DONE, broker)
            if broker.state is BrokerState.QUARANTINED:
                return Seen(Verdict.FAILED, broker, broker.reason or "it is quarantined")
            return Seen(Verdict.RUNNING, broker, broker.reason)

        header = AddBrokerRequest(config_path=config_path)
        change = _Change(self, container_addr, ADD_BROKER, header, judge, on_progress)
        return await change.run(has_status=before is not None)

    async def explain_remove_broker(
        self, container_addr: str, cluster_name: str, broker_name: str, broker_id: int
    ) -> InnerBroker:
        """Returns the broker that remove_broker() would remove now (EXPLAIN_REMOVE_BROKER, 29035). Raises as
        explain()."""
        header = RemoveBrokerRequest(
            broker_cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
        )
        answer = await self.explain(
            container_addr, EXPLAIN_REMOVE_BROKER, header, timeout_ms=STATUS_TIMEOUT_MS
        )
        return body_of(answer, InnerBroker, EXPLAIN_REMOVE_BROKER, container_addr)

    async def remove_broker(
        self,
        container_addr: str,
        cluster_name: str,
        broker_name: str,
        broker_id: int,
        on_progress: Progress = lambda _: None,
    ) -> None:
        """Removes a broker, and returns when it has stopped (REMOVE_BROKER, 903). AdminError 211: the
        container does not have it."""
        before = await self._status_before(container_addr)
        header = RemoveBrokerRequest(
            broker_cluster_name=cluster_name, broker_name=broker_name, broker_id=broker_id
        )

        def judge(status: ContainerStatus) -> Seen:
            found = brokers_named(status, cluster_name, broker_name, broker_id)
            if not found:
                return Seen(Verdict.DONE)
            stops = found[0].state is BrokerState.STOPPING
            return Seen(Verdict.RUNNING if stops else Verdict.NOT_BEGUN, found[0], found[0].reason)

        change = _Change(self, container_addr, REMOVE_BROKER, header, judge, on_progress)
        await change.run(has_status=before is not None)

    async def move_broker(
        self, container_addr: str, broker: InnerBroker, worker: int, on_progress: Progress = lambda _: None
    ) -> InnerBroker | None:
        """Moves a broker to another process of its container, and returns it when it serves there
        (MOVE_BROKER, 29033)."""
        identity = broker.broker_cluster_name, broker.broker_name, broker.broker_id
        header = MoveBrokerRequest(
            broker_cluster_name=identity[0], broker_name=identity[1], broker_id=identity[2], worker=worker
        )

        def judge(status: ContainerStatus) -> Seen:
            found = brokers_named(status, *identity)
            if not found:
                return Seen(Verdict.RUNNING)
            if found[0].state is BrokerState.QUARANTINED:
                return Seen(Verdict.FAILED, found[0], found[0].reason or "it is quarantined")
            if found[0].state is not BrokerState.SERVING:
                return Seen(Verdict.RUNNING, found[0])
            return Seen(Verdict.DONE if found[0].worker == worker else Verdict.NOT_BEGUN, found[0])

        return await _Change(self, container_addr, MOVE_BROKER, header, judge, on_progress).run()

    async def restart_worker(
        self, container_addr: str, worker: int, on_progress: Progress = lambda _: None
    ) -> None:
        """Restarts a process of a container with its brokers, and returns when it runs again
        (RESTART_WORKER, 29034)."""
        before = {each.number: each.pid for each in (await self.container_status(container_addr)).workers}

        def judge(status: ContainerStatus) -> Seen:
            now = next((each for each in status.workers if each.number == worker), None)
            if now is None or not now.is_running:
                return Seen(Verdict.RUNNING)
            if now.pid == before.get(worker):
                return Seen(Verdict.NOT_BEGUN)
            starts = any(
                each.worker == worker and each.state is BrokerState.STARTING for each in status.brokers
            )
            return Seen(Verdict.RUNNING if starts else Verdict.DONE)

        header = RestartWorkerRequest(worker=worker)
        await _Change(self, container_addr, RESTART_WORKER, header, judge, on_progress).run()

    async def _status_before(self, container_addr: str) -> ContainerStatus | None:
        """Returns the status before a change; None: RocketMQ's container, which has none. AdminError: nothing
        answers there, so no change is requested that might happen much later."""
        try:
            return await self.container_status(container_addr)
        except AdminError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            if not error.unknown:
                raise
        await self.ask(container_addr, GET_BROKER_CONFIG, Empty(), timeout_ms=STATUS_TIMEOUT_MS)
        return None


def brokers_named(
    status: ContainerStatus, cluster_name: str, broker_name: str, broker_id: int
) -> list[InnerBroker]:
    """Returns the broker of the container with that identity, in a list, or an empty one. A negative id means
    the only replica of that group there."""
    group = [
        each
        for each in status.brokers
        if (each.broker_cluster_name, each.broker_name) == (cluster_name, broker_name)
    ]
    exact = [each for each in group if each.broker_id == broker_id]
    return exact or (group if broker_id < 0 and len(group) == 1 else [])


class _Change:
    """One change of a container: waits for its reply, and polls the status meanwhile."""

    def __init__(
        self,
        admin: ContainerAdmin,
        address: str,
        operation: Operation[Any, Empty],
        header: Wire,
        judge: Judge,
        on_progress: Progress,
    ) -> None:
        self._admin, self._address, self._operation, self._header = admin, address, operation, header
        self._seen_in, self._on_progress = judge, on_progress
        self._timeout_ms = admin.timeout_ms or CHANGE_TIMEOUT_MS

    async def run(self, *, has_status: bool = True) -> InnerBroker | None:
        """Returns the broker that was changed, if the status knows one. AdminError."""
        if not has_status:
            await self._ask()
            return None
        deadline_s = time.monotonic() + self._timeout_ms / 1000
        call = asyncio.create_task(self._ask())
        try:
            return await self._watch(call, deadline_s)
        finally:
            call.cancel()
            with suppress(asyncio.CancelledError, AdminError):
                await call

    async def _ask(self) -> None:
        await self._admin.ask(self._address, self._operation, self._header, timeout_ms=self._timeout_ms)

    async def _watch(self, call: "asyncio.Task[None]", deadline_s: float) -> InnerBroker | None:
        heard_s, not_begun, progress = time.monotonic(), 0, Seen(Verdict.NOT_BEGUN)
        while True:
            await asyncio.wait((call,), timeout=POLL_MS / 1000)
            has_ended = call.done()
            is_lost = has_ended and _is_lost(call)
            if has_ended and not is_lost:
                call.result()  # raises the refusal, if it is one
            status = await self._status(deadline_s)
            if status is not None:
                heard_s, progress = time.monotonic(), self._seen_in(status)
                self._on_progress(status)
            if call.done() and not has_ended:
                continue  # it ended, well or not, while the status was on its way
            if has_ended and not is_lost:
                return progress.broker
            if is_lost and status is not None:
                if progress.verdict is Verdict.DONE:
                    return progress.broker
                not_begun = not_begun + 1 if progress.verdict is Verdict.NOT_BEGUN else 0
                self._raise_if_over(progress, not_begun)
            now_s = time.monotonic()
            if now_s >= deadline_s or now_s - heard_s >= SILENT_MS / 1000:
                raise self._unknown(progress, now_s >= deadline_s)

    async def _status(self, deadline_s: float) -> ContainerStatus | None:
        """Returns the status; None: no answer now. The last one, after the deadline, has LAST_STATUS_MS."""
        left_ms = max(int((deadline_s - time.monotonic()) * 1000), LAST_STATUS_MS)
        return await self._admin.quick_status(self._address, min(STATUS_TIMEOUT_MS, left_ms))

    def _raise_if_over(self, progress: Seen, not_begun: int) -> None:
        """The reply is lost, and the status says that the change has failed, or that there is none."""
        if progress.verdict is Verdict.FAILED:
            raise AdminError(self._operation.name, self._address, progress.reason, ResponseCode.SYSTEM_ERROR)
        if not_begun >= ABSENT_POLLS:
            remark = f"the reply was lost, and the status shows no change{_with(progress.reason)}: repeat it"
            raise AdminError(self._operation.name, self._address, remark, ResponseCode.SYSTEM_ERROR)

    def _unknown(self, progress: Seen, is_late: bool) -> AdminError:
        if not is_late:
            remark = f"the container has answered nothing for {SILENT_MS // 1000} s"
        elif progress.broker is not None:
            remark = (
                f"not done after {self._timeout_ms} ms, and goes on: the broker is {progress.broker.state}"
            )
        else:
            remark = f"no answer after {self._timeout_ms} ms"
        return AdminError(self._operation.name, self._address, remark + _with(progress.reason), unknown=True)


def _with(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _is_lost(call: "asyncio.Task[None]") -> bool:
    """Returns whether no reply has arrived, so that the change may have been made."""
    error = call.exception()
    return isinstance(error, AdminError) and error.unknown
