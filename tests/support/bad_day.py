"""The cluster of the bad day: everything secured, traffic that never stops, the operator's tools, and a table
with a row for each fault.

Three name servers with controllers and three containers, each with a replica of every group. Every program
has its own copy of the security directory, as on its own machine. Replicas of DISKS_OF have small disks.
"""

import asyncio
import os
import random
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeVar

from cli.lab.ack_log import AckLog, Report, read_body
from cli.lab.cluster import ClusterError, Launcher, Program
from cli.lab.container_cluster import ContainerCluster, ContainerProgram, InnerProgram
from cli.lab.observer import Picture, Watcher
from cli.lab.secure import SECURITY, application_tls, credentials_path, secured
from cli.lab.traffic import Traffic, read_back
from keelmq import (
    ConsumeFromWhere,
    ConsumerSettings,
    Credentials,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from keelmq.client import SendError
from keelmq.health.status import ClusterStatus, Problem
from tests.support.own_disks import OwnDisks
from tests.support.prometheus import RULES, Prometheus, prometheus, quickened

T = TypeVar("T")

CLUSTER_NAME: Final = "KeelCluster"
DISKS_OF: Final = "broker-a"
GROUPS: Final = (DISKS_OF, "broker-b")
ADDED: Final = "broker-c"
MACHINES: Final = 3
RATE: Final = 100
"""Messages a second to each group: two cores run everything, and other tests."""
DISK_BYTES: Final = 128 << 20
LOG_FILE_BYTES: Final = 8 << 20
OLD_TOPIC: Final = "day-old"
OLD_FILES: Final = 4
OLD_H: Final = 50
OLD_BODY_BYTES: Final = 256 << 10
WAIT_S: Final = 120.0
TOOL_S: Final = 120.0
SHOP: Final = Credentials("shop", "shop-secret-77ab")
ASKS_FIRST: Final = ("cleanBrokerMetadata",)
READERS: Final = "shop-readers"
LOCALS: Final = "0.0.0.0"
PROBE: Final = b"probe"
SETTINGS: Final = {
    "allAckInSyncStateSet": "true",
    "minInSyncReplicas": "1",
    "mappedFileSizeCommitLog": str(LOG_FILE_BYTES),
    "mappedFileSizeConsumeQueue": str(20 * 1_000),
    "messageIndexEnable": "false",
    "timerWheelEnable": "false",
    "cleanFileForciblyEnable": "false",
    "cleanResourceInterval": "100",
    "autoCreateTopicEnable": "false",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What a tool ended with."""

    line: str
    code: int
    out: str
    error: str


@dataclass(slots=True)
class Row:
    """One fault. failed: sends of the traffic that failed. gap_ms: the longest wait for one acknowledgement.
    refused: sends that had to be refused. steps: the commands that `status` named."""

    fault: str
    verdict: str = "FAILED"
    failed: int = 0
    gap_ms: int = 0
    refused: int = 0
    alerts: list[str] = field(default_factory=list)
    cleared: bool = False
    steps: list[str] = field(default_factory=list)
    seconds: float = 0.0


class OnOwnDisks(Launcher):
    """Containers run where the disks are. All programs listen on every address: their own may change."""

    def __init__(self, disks: OwnDisks) -> None:
        self._disks = disks

    def bind(self, name: str) -> str:
        """Returns the address that the program listens on."""
        return LOCALS

    def command(self, program: Program) -> list[str]:
        """Returns the command line that runs the program."""
        command = super().command(program)
        return [*self._disks.inside(), *command] if isinstance(program, ContainerProgram) else command


class Reader:
    """A push consumer that is up all day: which messages has it got?"""

    def __init__(self, namesrv_addr: str, directory: Path) -> None:
        self.seen: dict[str, set[int]] = {}
        self.damaged = 0
        self._consumer = PushConsumer(
            namesrv_addr,
            READERS,
            self._take,
            settings=ConsumerSettings(from_where=ConsumeFromWhere.FIRST_OFFSET),
            credentials=SHOP,
            tls=application_tls(directory),
        )

    async def __aenter__(self) -> Self:
        await self._consumer.__aenter__()
        return self

    async def __aexit__(self, *why: object) -> None:
        await self._consumer.close()

    def subscribe(self, topic: str) -> None:
        """Also while it runs."""
        self.seen.setdefault(topic, set())
        self._consumer.subscribe(topic)

    async def _take(self, messages: Sequence[MessageExt]) -> None:
        for message in messages:
            number = read_body(message.body)
            if number is None:
                self.damaged += message.body != PROBE
            else:
                self.seen[message.topic].add(number)


class Day:
    """See bad_day(). logs: what was sent and acknowledged, by group."""

    def __init__(
        self, directory: Path, cluster: ContainerCluster, disks: OwnDisks, watched: Prometheus
    ) -> None:
        self.directory, self.cluster, self.disks, self.watched = directory, cluster, disks, watched
        self.groups = list(GROUPS)
        self.logs: dict[str, AckLog] = {}
        self.rows: list[Row] = []
        self.reports: dict[str, Report] = {}
        self.reader = Reader(cluster.namesrv_addr, directory)
        self._probes = Counter[str]()  # at most so many copies of PROBE are in a topic
        self._traffic: dict[str, Traffic] = {}
        self._watchers: dict[str, Watcher] = {}

    @property
    def security(self) -> Path:
        """The administrator's directory, from which every machine has its copy."""
        return self.directory / SECURITY

    # -- what runs ---------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Returns when the shop may send, its producers and its consumer run, and nothing is wrong."""
        self.cluster.start()
        await self.all_in_sync()
        await self.until("tools can be used", self._shop_is_open)
        await self._lay_old_messages()
        for group in self.groups:
            await self.open_topic(group)
        await self.reader.__aenter__()
        for group in self.groups:
            self.send_to(group)
        await self.steady()

    async def _shop_is_open(self) -> bool:
        secret = self.directory / "shop.password"
        secret.write_text(SHOP.secret_key)
        where = f"-c {CLUSTER_NAME} -n {self.name_servers}"
        ran = await self.tool(f"mqadmin createUser -u {SHOP.access_key} --passwordFile {secret} {where}")
        if ran.code:
            return False
        rights = f"-s User:{SHOP.access_key} -r Topic:day-*,Group:* -a Pub,Sub -d Allow"
        return (await self.tool(f"mqadmin createAcl {rights} {where}")).code == 0

    @property
    def name_servers(self) -> str:
        """Quoted for a command line."""
        return shlex.quote(self.cluster.namesrv_addr)

    async def open_topic(self, group: str) -> None:
        """Makes the group's topic, and lets the consumer subscribe it."""
        master = await self.master(group)
        await self.done(f"mqadmin updateTopic -b {master.address} -t {topic_of(group)} -r 4 -w 4")
        self.logs[group] = AckLog()
        self.reader.subscribe(topic_of(group))

    def send_to(self, group: str) -> None:
        """Starts the traffic to a group: from the beginning, or again after it was stopped."""
        self._traffic[group] = Traffic(
            self.cluster.namesrv_addr,
            topic_of(group),
            self.logs[group],
            rate=RATE,
            credentials=SHOP,
            tls=application_tls(self.directory),
        )
        self._traffic[group].start()

    async def _lay_old_messages(self) -> None:
        """The oldest files of the log of DISKS_OF have messages only that are OLD_H old, at all replicas."""
        master = await self.master(DISKS_OF)
        await self.done(f"mqadmin updateTopic -b {master.address} -t {OLD_TOPIC} -r 1 -w 1")
        tls = application_tls(self.directory)
        async with Producer(self.cluster.namesrv_addr, "probe", credentials=SHOP, tls=tls) as producer:
            for number in range(OLD_FILES * LOG_FILE_BYTES // OLD_BODY_BYTES + 1):
                body = random.Random(number).randbytes(OLD_BODY_BYTES)
                await producer.send(Message(OLD_TOPIC, body), timeout_ms=30_000)
        await self.all_in_sync()
        then = time.time() - OLD_H * 3_600
        for each in self.cluster.group(DISKS_OF).brokers:
            files = sorted((self.disks.seen(Path(each.settings["storePathRootDir"])) / "commitlog").iterdir())
            assert len(files) > OLD_FILES, files
            for file in files[:OLD_FILES]:
                os.utime(file, (then, then))

    async def stop_traffic(self) -> None:
        """Every send that was begun has ended."""
        for traffic in self._traffic.values():
            await traffic.stop()
            await traffic.close()
        self._traffic.clear()

    async def close(self) -> None:
        """Ends the clients."""
        for traffic in self._traffic.values():
            await traffic.close()
        await self.reader.__aexit__()
        for watcher in self._watchers.values():
            await watcher.close()

    # -- conditions --------------------------------------------------------------------------------------

    async def until(self, what: str, condition: Callable[[], Awaitable[T | None]]) -> T:
        """As the cluster's, with the patience of a machine that others use as well."""
        return await self.cluster.until(what, condition, timeout_s=WAIT_S)

    async def picture(self, group: str) -> Picture:
        """As the controllers and the brokers tell it now."""
        if group not in self._watchers:
            self._watchers[group] = Watcher(self.cluster.group(group))
        return await self._watchers[group].look()

    async def move(self, machine: ContainerProgram, host: str) -> None:
        """Gives a machine that does not run another address."""
        machine.relocate(host)
        for watcher in self._watchers.values():  # they know the old one
            await watcher.close()
        self._watchers.clear()

    async def all_in_sync(self) -> dict[str, Picture]:
        """Every replica of every group is in its SyncStateSet."""

        async def look() -> dict[str, Picture] | None:
            found = {group: await self.picture(group) for group in self.groups}
            return found if all(each.all_in_sync(MACHINES) for each in found.values()) else None

        return await self.until("all replicas in sync", look)

    async def master(self, group: str, but: str = "") -> InnerProgram:
        """The master that the controllers name. but: the name of the one that is not meant."""

        async def look() -> InnerProgram | None:
            name = (await self.picture(group)).master
            found = (each for each in self.cluster.group(group).brokers if each.name == name != but)
            return next(found, None)

        return await self.until(f"a master of {group}", look)

    async def steady(self, more: int = 2 * RATE) -> None:
        """So many more messages of each group are acknowledged and consumed."""
        acked = {group: log.acked + more for group, log in self.logs.items()}
        read = {topic: len(seen) + more for topic, seen in self.reader.seen.items()}

        async def enough() -> bool:
            for traffic in self._traffic.values():
                traffic.check()
            return all(self.logs[group].acked >= count for group, count in acked.items()) and all(
                len(self.reader.seen[topic]) >= count for topic, count in read.items()
            )

        await self.until(f"{more} more messages of each group", enough)

    # -- tools -------------------------------------------------------------------------------------------

    async def tool(self, line: str, *more: str) -> Ran:
        """Runs a line of `mqadmin` or `keelmq` as the administrator, where the disks are."""
        program, *args = [*shlex.split(line), *more]
        module = {"keelmq": "cli.keelmq", "mqadmin": "cli.mqadmin.main"}[program]
        done = await asyncio.to_thread(
            subprocess.run,
            [*self.disks.inside(), sys.executable, "-m", module, *args],
            capture_output=True,
            text=True,
            timeout=TOOL_S,
            env={**os.environ, "KEELMQ_CREDENTIALS": str(credentials_path(self.directory))},
            stdin=subprocess.DEVNULL,
        )
        return Ran(line, done.returncode, done.stdout, done.stderr)

    async def done(self, line: str) -> str:
        """Runs the line, which must succeed; returns what it prints."""
        ran = await self.tool(line)
        assert ran.code == 0, ran
        return ran.out

    async def status(self) -> ClusterStatus:
        """What `keelmq status` says."""
        ran = await self.tool(f"keelmq status -n {self.name_servers} --timeout 5000 --json")
        assert ran.code in (0, 1), ran
        found = ClusterStatus.model_validate_json(ran.out)
        assert ran.code == (1 if found.problems else 0), ran
        return found

    async def send_as(self, who: Credentials, topic: str) -> str:
        """Sends one message that is not counted; returns why it was refused, "" if it was not."""
        tls = application_tls(self.directory)
        async with Producer(self.cluster.namesrv_addr, "probe", credentials=who, tls=tls) as producer:
            try:
                result = await producer.send(Message(topic, PROBE), timeout_ms=30_000)
            except SendError as error:
                return str(error)
        self._probes[topic] += result.attempts
        return ""

    async def compare(self) -> None:
        """Reads everything back: nothing acknowledged is missing at the masters or at the consumer."""
        await self.all_in_sync()
        missing = {group: self._unseen(group) for group in self.groups}

        async def consumed() -> bool:
            missing.update((group, self._unseen(group)) for group in self.groups)
            return not any(missing.values())

        for group, log in self.logs.items():
            await read_back(self.cluster.namesrv_addr, topic_of(group), log)
            report = log.report()
            self.reports[group] = report
            assert report.lost == 0 < report.acked, report
            assert report.damaged <= self._probes[topic_of(group)], "only probes have other bodies"
        await self.until("the consumer has everything", consumed)
        assert self.reader.damaged == 0

    def _unseen(self, group: str) -> int:
        """How many acknowledged messages the consumer has not got."""
        return len(set(self.logs[group].acknowledged()) - self.reader.seen[topic_of(group)])

    # -- faults ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def fault(self, name: str) -> AsyncIterator["Fault"]:
        """A row of the table. After the block everything must be well again, and no send may have failed."""
        row, loop = Row(name), asyncio.get_running_loop()
        self.rows.append(row)
        failed, began = self._failed(), loop.time()
        for log in self.logs.values():
            log.reset_slowest()
        fault = Fault(self, row)
        try:
            yield fault
            await fault.is_over()
            assert self._failed() == failed, "sends failed that should not"
            row.verdict = "ok"
        finally:
            row.failed = self._failed() - failed
            row.gap_ms = max(log.slowest_ms for log in self.logs.values())
            row.seconds = loop.time() - began

    def _failed(self) -> int:
        return sum(log.unacknowledged for log in self.logs.values())


class Fault:
    """What is done and seen during one fault, for its row."""

    def __init__(self, day: Day, row: Row) -> None:
        self._day, self._row = day, row

    async def alerts(self, *names: str) -> None:
        """These fire."""
        for name in names:
            await self._day.watched.fires(name)
            self._row.alerts.append(name)

    def refused(self, count: int = 1) -> None:
        """So many sends were refused that had to be."""
        self._row.refused += count

    async def says(self, check: str, words: str) -> Problem:
        """`status` has this problem; its next step goes into the table."""
        seen: list[str] = []

        async def look() -> Problem | None:
            problems = (await self._day.status()).problems
            seen[:] = [f"{each.check}: {each.text}" for each in problems]
            return next((each for each in problems if each.check == check and words in each.text), None)

        try:
            problem = await self._day.until(f"status says {check}: {words}", look)
        except ClusterError as error:
            error.add_note(f"it says: {'; '.join(seen) or 'nothing'}")
            raise
        return self.tells(problem)

    def tells(self, problem: Problem) -> Problem:
        """Its next step goes into the table."""
        step = problem.command or problem.next_step
        if step.split()[:2] not in [each.split()[:2] for each in self._row.steps]:
            self._row.steps.append(step)
        return problem

    async def silence(self) -> None:
        """`status` says that no server answers."""
        day = self._day
        ran = await day.tool(f"keelmq status -n {day.name_servers}")
        assert ran.code == 3 and "mqnamesrv -c FILE" in ran.out, ran
        self._row.steps.append("mqnamesrv -c FILE")

    async def follow(self, problem: Problem) -> str:
        """Runs the command that a problem names, which must succeed; returns what it prints. One that starts
        a server starts those that the problem is about."""
        program, *args = shlex.split(problem.command)
        if program in ("mqnamesrv", "mqcontroller", "mqbroker", "mqbrokercontainer"):
            for program in self._about(problem):
                self._day.cluster.start_program(program)
            return ""
        if "--watch" in args:  # which never ends: once
            at = args.index("--watch")
            del args[at : at + 2]
        if args[0] in ASKS_FIRST:
            args.append("--yes")
        ran = await self._day.tool(shlex.join([program, *args]))
        assert ran.code in ((0, 1) if program == "keelmq" else (0,)), ran
        return ran.out

    def _about(self, problem: Problem) -> list[Program]:
        """The programs that do not run and that a problem is about: its addresses, or its group."""
        named = problem.subject.split(", ")
        found = []
        for each in self._day.cluster.programs:
            brokers = each.inner.values() if isinstance(each, ContainerProgram) else ()
            known = {each.address, each.controller_address, *(inner.address for inner in brokers)}
            is_meant = problem.subject in self._day.groups and each in self._day.cluster.containers
            if not each.is_running and (is_meant or known & set(named)):
                found.append(each)
        assert found, f"nothing that is down is meant by {problem}"
        return found

    async def is_over(self) -> None:
        """Everything is well: traffic, replicas, alerts, status."""
        await self._day.steady()
        await self._day.all_in_sync()
        await self._day.watched.is_quiet()
        self._row.cleared = True
        seen: list[str] = []

        async def well() -> bool:
            status = await self._day.status()
            seen[:] = [f"{each.check}: {each.text}" for each in status.problems]
            return not seen

        try:
            await self._day.until("status finds nothing", well)
        except ClusterError as error:
            error.add_note(f"it finds: {'; '.join(seen)}")
            raise


def topic_of(group: str) -> str:
    """The topic that only this group has."""
    return f"day-{group}"


def table(day: Day) -> str:
    """The rows, ready to paste."""
    titles = (
        "fault",
        "verdict",
        "s",
        "failed sends",
        "refused, as they must",
        "longest wait",
        "alerts, all cleared",
    )
    lines = [f"| {' | '.join(titles)} | next step of status |", "|---" * (len(titles) + 1) + "|"]
    for row in day.rows:
        alerts = ", ".join(row.alerts) + ("" if row.cleared else " (NOT cleared)")
        steps = "; ".join(f"`{step}`" for step in row.steps)
        cells = (
            row.fault,
            row.verdict,
            f"{row.seconds:.0f}",
            row.failed,
            row.refused,
            f"{row.gap_ms} ms",
            alerts,
            steps,
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    for group, report in day.reports.items():
        lines.append(
            f"{group}: sent {report.sent}, acknowledged {report.acked}, lost {report.lost}, "
            f"failed {report.unacknowledged}, retried {report.retried}, duplicates {report.duplicated}"
        )
    return "\n".join(lines)


@asynccontextmanager
async def bad_day(directory: Path) -> AsyncIterator[Day]:
    """The cluster runs, secured and under traffic, and nothing is wrong."""
    async with AsyncExitStack() as stack:
        keys = stack.enter_context(secured(directory, CLUSTER_NAME))
        disks = stack.enter_context(OwnDisks(directory))
        cluster = ContainerCluster(
            directory / "cluster",
            groups=GROUPS,
            containers=MACHINES,
            cluster_name=CLUSTER_NAME,
            namesrv_settings=keys,
            container_settings=keys,
            broker_settings={**SETTINGS, "backupPath": str(directory / "backups")},
            http=True,
            launcher=OnOwnDisks(disks),
        )
        for program in cluster.programs:
            own = program.own if isinstance(program, ContainerProgram) else program.settings
            own["securityPath"] = str(
                copy_security(directory / SECURITY, directory / f"{program.name}.security")
            )
            program.write()
        for each in cluster.group(DISKS_OF).brokers:
            disks.add(Path(each.settings["storePathRootDir"]), DISK_BYTES)
        stack.push_async_callback(asyncio.to_thread, cluster.close)
        rules = directory / "rules.yaml"
        rules.write_text(quickened(RULES.read_text()))
        scrape = {"scheme": "https", "tls_config": {"ca_file": str(directory / SECURITY / "ca.crt")}}
        watched = await stack.enter_async_context(
            prometheus(cluster, directory, rules=rules, scrape=scrape, alert_s=WAIT_S)
        )
        day = Day(directory, cluster, disks, watched)
        stack.push_async_callback(day.close)
        await day.begin()
        yield day


def copy_security(source: Path, target: Path) -> Path:
    """What `scp -p DIR/* HOST:DIR/` does: the files of the directory, over those that are there, not its
    folders. Each is replaced at once."""
    target.mkdir(mode=0o700, exist_ok=True)
    for file in source.iterdir():
        if file.is_file():
            fresh = target / f"{file.name}.new"
            shutil.copy2(file, fresh)
            fresh.rename(target / file.name)
    return target
