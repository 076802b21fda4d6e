"""Container: the brokers of one machine in one program. It adds, removes, moves and describes them.

A broker that cannot start is quarantined: its file and the reason stay listed, the others continue, and the
same request tries it again. RocketMQ's container ends instead, with every healthy broker in it.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from broker.container.config import ContainerConfig
from broker.container.core.identity import NOT_APPLIED, BrokerIdentity
from broker.container.core.members import Members
from broker.container.core.placement import Placed, choose_worker
from broker.container.core.plan import BrokerPlan, problems_of
from broker.container.host import BrokerHost, BrokerRefused, InnerSetup
from broker.container.inner_config import InnerConfig, load_inner
from broker.container.member import Member, described, may_lead
from broker.container.membership_file import MembershipFile
from broker.container.workers.move import MoveRefused, move
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations.container import (
    BrokerState,
    ContainerPlan,
    ContainerStatus,
    InnerBroker,
    PlannedBroker,
)
from keelmq.runtime.backoff import Backoff
from keelmq.runtime.config import ConfigError

logger = logging.getLogger(__name__)

BROKERS_MAX: Final = 1_000
NOT_EXIST: Final = "Broker not exist"
RETRIES: Final = 6
RETRY: Final = Backoff(first_ms=2_000, max_ms=30_000)
BUSY: Final = frozenset({BrokerState.STARTING, BrokerState.STOPPING})


class Container:
    """Owned by the event loop's thread. hosts: one for each process; a broker's worker is an index of it."""

    def __init__(
        self,
        config: ContainerConfig,
        hosts: Sequence[BrokerHost],
        *,
        config_file: Path | None,
        own_ports: dict[int, str],
    ) -> None:
        """config_file: the one of -c. own_ports: the container's, with their purposes."""
        self._config, self._hosts, self._own_ports = config, hosts, own_ports
        self._configured = [path.absolute() for path in config.config_paths]
        directories = config.config_directories or tuple(
            path.absolute().parent for path in (*config.config_paths, *([config_file] if config_file else []))
        )
        self._directories = tuple(dict.fromkeys(directory.resolve() for directory in directories))
        self._file = MembershipFile(config.state_path)
        self._members: dict[Path, Member] = {}
        self._retries: dict[Path, asyncio.Task[None]] = {}
        self._kept, self._keeping = Members(), asyncio.Lock()
        self.address = ""
        """host:port of the container, once it listens."""

    # -- start -------------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        """Starts the brokers of the configuration and those that requests added. Raises ConfigError: the list
        of brokers cannot be read."""
        self._kept = await self._file.load() if self._config.persist_brokers else Members()
        configured = [str(path) for path in self._configured]
        for path in sorted(self._kept.removed & set(configured)):
            logger.warning(
                "%s is in brokerConfigPaths, but its broker was removed by a request: it is not "
                "started until `mqadmin addBroker` adds it again (recorded in %s)",
                path,
                self._file.path,
            )
        wanted = [self._admit(Path(path)) for path in self._kept.to_start(configured)]
        await asyncio.gather(*(self._start(member) for member in wanted if member.state in BUSY))
        for member in wanted:
            member.retries = RETRIES if member.state is BrokerState.QUARANTINED else 0

    async def retry_refused(self) -> None:
        """Tries those again that could not start with the container: their ports may still be those of an
        earlier run that was killed, and a disk may be mounted late. Not those that requests add: these have
        been answered."""
        failures = 0
        while any(member.retries for member in self._members.values()):
            failures += 1
            await asyncio.sleep(RETRY.pause_ms(failures, random.random()) / 1_000)
            tried = [each for each in self._members.values() if each.retries]
            self._retries = {each.path: asyncio.create_task(self._retry(each)) for each in tried}
            await asyncio.gather(*self._retries.values())

    async def _retry(self, member: Member) -> None:
        member.retries -= 1
        if self._members.get(member.path) is not member or member.state is not BrokerState.QUARANTINED:
            member.retries = 0  # it serves, or a request has handled it
            return
        again = self._admit(member.path)
        again.retries = member.retries
        if again.state is BrokerState.STARTING:
            await self._start(again)
        if again.state is BrokerState.SERVING:
            again.retries = 0
            logger.info("%s serves now", again.name)

    def _admit(self, path: Path) -> Member:
        """Lists a file's broker: about to start, or quarantined."""
        try:
            plan = (inner := self._read(path)).plan()
        except ConfigError as error:
            return self._list(Member(path, None, 0, BrokerState.QUARANTINED, one_line(error)))
        problems = problems_of(plan, self._other_plans(path), self._own_ports)
        member = Member(path, plan, self._place(plan, path), BrokerState.STARTING)
        if problems:
            member.state, member.reason = BrokerState.QUARANTINED, "; ".join(problems)
        for note in inner.notes:
            logger.info("%s: %s", path, note)
        return self._list(member)

    def _list(self, member: Member) -> Member:
        self._members[member.path] = member
        if member.state is BrokerState.QUARANTINED:
            logger.error("%s is quarantined: %s", member.name, member.reason)
        return member

    async def _start(self, member: Member) -> None:
        """Starts an admitted broker, or quarantines it."""
        assert member.plan is not None
        member.state, member.reason = BrokerState.STARTING, ""
        try:
            await self._hosts[member.worker].start(InnerSetup(member.plan.identity, member.path))
        except BrokerRefused as error:
            self._quarantine(member, str(error))
        except BaseException as error:
            self._quarantine(member, f"{type(error).__name__}: {error}")
            if not isinstance(error, Exception):
                raise
            logger.exception("%s: the start failed", member.name)
        else:
            member.state = BrokerState.SERVING

    def _quarantine(self, member: Member, reason: str) -> None:
        member.state, member.reason = BrokerState.QUARANTINED, reason
        logger.error("%s is quarantined: %s", member.name, reason)

    # -- requests ----------------------------------------------------------------------------------------

    async def add(self, text: str | None) -> str:
        """Adds the broker of a file; returns its name when its ports are open (902). CommandError: nothing
        was added."""
        if not text:
            raise refused("addBroker config path is empty")
        path = self._allowed(text)
        if (retry := self._retries.get(path)) is not None:
            await asyncio.wait([retry])  # the outcome of that start decides, not the time of this request
        before = self._members.get(path)
        if before is not None and before.state is not BrokerState.QUARANTINED:
            raise refused(f"{before.name} has already been added to current broker container ({path})")
        if len(self._members) >= BROKERS_MAX and before is None:
            raise refused(f"this container has {BROKERS_MAX} brokers; that is the limit")
        member = self._admit(path)
        if member.state is BrokerState.STARTING:
            await self._start(member)
        if member.state is not BrokerState.SERVING:
            self._forget(member, before)
            raise refused(f"start broker failed, {member.reason}" if member.plan else member.reason)
        try:
            await self._keep(lambda kept: kept.with_added(str(path), member.worker))
        except CommandError:
            await self._stop(member)
            self._forget(member, before)
            raise
        logger.info("%s was added, from %s", member.name, path)
        return member.name

    async def remove(self, cluster: str, name: str, broker_id: int) -> tuple[str, Path]:
        """Removes a broker; a master hands over first (903). Its store stays. Returns its name and its file.
        CommandError."""
        member = await self._removable(cluster, name, broker_id)
        configured = [str(path) for path in self._configured]
        before, member.state = member.state, BrokerState.STOPPING  # no other request handles it meanwhile
        try:
            await self._keep(lambda kept: kept.with_removed(str(member.path), configured))
        except BaseException:
            member.state = before
            raise
        await self._stop(member)
        self._members.pop(member.path, None)
        logger.info("%s was removed; its store stays on disk", member.name)
        return member.name, member.path

    async def would_remove(self, cluster: str, name: str, broker_id: int) -> InnerBroker:
        """Returns the broker that remove() would remove now (29035). CommandError: it would be refused."""
        member = await self._removable(cluster, name, broker_id)
        return (await self._running()).get(member.path) or described(member)

    async def _removable(self, cluster: str, name: str, broker_id: int) -> Member:
        member = await self._find(cluster, name, broker_id)
        if member.state in BUSY:
            raise refused(f"{member.name} is {member.state}; try again when it is not")
        return member

    async def move(self, cluster: str, name: str, broker_id: int, worker: int) -> None:
        """Moves a broker into another process (29033). CommandError: it has not moved."""
        member = await self._find(cluster, name, broker_id)
        self._check_worker(worker)
        if member.state is not BrokerState.SERVING:
            raise refused(f"{member.name} is {member.state}: only a broker that serves can be moved")
        if member.worker == worker:
            return
        assert member.plan is not None
        setup, before = InnerSetup(member.plan.identity, member.path), member.worker
        member.state = BrokerState.STOPPING
        try:
            await move(setup, self._hosts[before], self._hosts[worker])
        except MoveRefused as error:
            member.state = BrokerState.SERVING
            if not error.is_serving:
                self._quarantine(member, str(error))
            raise refused(str(error)) from error
        member.state, member.worker = BrokerState.SERVING, worker
        try:
            await self._keep(lambda kept: kept.with_moved(str(member.path), worker))
        except CommandError as error:  # it serves, and its placement is not worth another stop
            logger.warning("the move of %s to worker %d was not saved: %s", member.name, worker, error.remark)
        logger.info("%s was moved from worker %d to worker %d", member.name, before, worker)

    async def restart(self, worker: int) -> None:
        """Restarts a process, with its brokers (29034). CommandError."""
        self._check_worker(worker)
        try:
            await self._hosts[worker].restart()
        except BrokerRefused as error:
            raise refused(str(error)) from error

    def plan(self, texts: Iterable[str]) -> ContainerPlan:
        """Checks files together, as if they were added in this order; adds nothing (29032)."""
        planned: list[PlannedBroker] = []
        accepted: list[BrokerPlan] = []
        for text in texts:
            try:
                plan = (inner := self._read(path := self._allowed(text))).plan()
            except (CommandError, ConfigError) as error:
                why = error.remark if isinstance(error, CommandError) else one_line(error)
                planned.append(PlannedBroker(config_path=text, problems=[why]))
                continue
            problems = problems_of(plan, [*self._other_plans(path), *accepted], self._own_ports)
            accepted.append(plan)
            planned.append(
                PlannedBroker(
                    config_path=str(path),
                    canonical_name=plan.identity.canonical_name,
                    ports=sorted(plan.ports),
                    store_path=str(inner.config.store_path_root_dir),
                    worker=self._place(plan, path),
                    problems=problems,
                    notes=list(inner.notes),
                )
            )
        return ContainerPlan(brokers=planned)

    async def status(self) -> ContainerStatus:
        """Returns the brokers, in the order in which they were listed, and the processes (29031)."""
        running = await self._running()
        brokers = [running.get(member.path) or described(member) for member in self._members.values()]
        workers = [await host.worker() for host in self._hosts]
        return ContainerStatus(address=self.address, brokers=brokers, workers=workers)

    def states(self) -> dict[str, int]:
        """Returns how many brokers there are in each state."""
        return dict(Counter(str(member.state) for member in self._members.values()))

    # -- events of hosts ---------------------------------------------------------------------------------

    def broker_failed(self, identity: BrokerIdentity, reason: str) -> None:
        """See HostObserver."""
        for member in self._members.values():
            if member.plan is not None and member.plan.identity == identity and member.state not in BUSY:
                self._quarantine(member, reason)

    def broker_restarted(self, identity: BrokerIdentity) -> None:
        """See HostObserver."""
        for member in self._members.values():
            if member.plan is not None and member.plan.identity == identity:
                member.state, member.reason = BrokerState.SERVING, ""

    # -- helpers -----------------------------------------------------------------------------------------

    def _check_worker(self, worker: int) -> None:
        last = len(self._hosts) - 1
        if not 0 <= worker <= last:
            has = f"0 to {last}" if last else "one process, 0 (containerProcesses=1)"
            raise refused(f"there is no worker {worker}: this container has {has}")

    def _read(self, path: Path) -> InnerConfig:
        return load_inner(path, self._config)

    def _allowed(self, text: str) -> Path:
        """Returns the absolute path of a file that requests may name. CommandError."""
        path = Path(text)
        try:
            real = path.resolve()
        except (OSError, ValueError, RuntimeError):
            raise refused(f"addBroker: {text[:200]!r} is not a path") from None
        if not path.is_absolute() or not any(real.is_relative_to(each) for each in self._directories):
            where = ", ".join(map(str, self._directories)) or "none: set brokerConfigDirectories"
            raise refused(
                f"addBroker: {text[:200]!r} is not an absolute path below the directories that requests may "
                f"name files in ({where})"
            )
        return path

    def _other_plans(self, path: Path) -> list[BrokerPlan]:
        return [
            member.plan
            for member in self._members.values()
            if member.plan is not None and member.path != path and member.state is not BrokerState.QUARANTINED
        ]

    def _place(self, plan: BrokerPlan, path: Path) -> int:
        """Returns the process for a broker: the one that it had, or the one that placement.py chooses."""
        placed = [
            Placed(member.plan.identity, member.worker, is_master=may_lead(member.plan))
            for member in self._members.values()
            if member.plan is not None and member.path != path and member.state is not BrokerState.QUARANTINED
        ]
        return choose_worker(
            plan.identity,
            placed,
            range(len(self._hosts)),
            is_master=may_lead(plan),
            remembered=self._kept.worker_of(str(path)),
        )

    async def _stop(self, member: Member) -> None:
        if member.plan is None:
            return
        # Also for a quarantined broker: its worker may have ended, and be about to start it again.
        member.state = BrokerState.STOPPING
        try:
            await self._hosts[member.worker].stop(member.plan.identity, hand_over=True)
        except BrokerRefused as error:
            self._quarantine(member, str(error))
            raise refused(str(error)) from error

    def _forget(self, member: Member, before: Member | None) -> None:
        """A request that failed leaves the list as it was."""
        if before is None:
            self._members.pop(member.path, None)
            logger.info("%s is not listed: the request to add it was refused", member.name)
        elif member.state is not BrokerState.QUARANTINED:
            self._members[member.path] = before

    async def _keep(self, change: Callable[[Members], Members]) -> None:
        """CommandError: it cannot be kept; nothing has changed."""
        async with self._keeping:
            members = change(self._kept)
            if self._config.persist_brokers:
                try:
                    await self._file.save(members)
                except OSError as error:
                    raise refused(
                        f"the change cannot be kept in {self._file.path}: {error.strerror or error}; nothing "
                        "was changed (persistBrokers=false makes changes that end with this process)"
                    ) from error
            self._kept = members

    async def _running(self) -> dict[Path, InnerBroker]:
        found = {}
        for host in self._hosts:
            for broker in await host.brokers():
                found[Path(broker.config_path)] = broker
        return found

    async def _find(self, cluster: str, name: str, broker_id: int) -> Member:
        """Returns the broker with this configured or current id. CommandError."""
        group = [
            member
            for member in self._members.values()
            if member.plan is not None and member.plan.identity[:2] == (cluster, name)
        ]
        unread = [each for each in self._members.values() if each.plan is None and each.name == name]
        if unread:  # its file has no identity, so the path of the file is its name
            return unread[0]
        exact = [each for each in group if each.plan and each.plan.identity.broker_id == broker_id]
        if not exact and any(each.plan and each.plan.identity.broker_id == NOT_APPLIED for each in group):
            running = await self._running()
            for each in group:
                running_broker = running.get(each.path)
                ids = (
                    set()
                    if running_broker is None
                    else {running_broker.broker_id} | ({0} if running_broker.role == "master" else set())
                )
                if broker_id in ids:
                    exact.append(each)
        if not exact:
            names = ", ".join(each.name for each in group)
            hint = f"; of this group there is {names}" if group else ""
            raise CommandError(ResponseCode.BROKER_NOT_EXIST, NOT_EXIST + hint)
        return exact[0]


def refused(remark: str) -> CommandError:
    """Returns the error of a request that has changed nothing, unless the remark says otherwise."""
    return CommandError(ResponseCode.SYSTEM_ERROR, remark)


def one_line(error: Exception) -> str:
    """Returns the error's text as one line."""
    return "; ".join(str(error).splitlines())
