"""An operator's bad day: one secured cluster under traffic, and one fault after another.

Each test is a fault: what is done, which alerts fire, which next step `status` names and that it helps; then
everything must be well again, with no failed send. The last one reads everything back. `make bad-day` prints
the table.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from cli.lab.cluster import Program
from cli.lab.container_cluster import ContainerProgram
from cli.security_files import OFFLINE, member_name
from keelmq import Credentials
from tests.support import own_disks
from tests.support.bad_day import (
    ADDED,
    CLUSTER_NAME,
    DISKS_OF,
    SHOP,
    Day,
    bad_day,
    copy_security,
    table,
    topic_of,
)
from tests.support.prometheus import PROMETHEUS

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus (Debian: prometheus)"),
    pytest.mark.skipif(bool(own_disks.why_not()), reason=own_disks.why_not()),
]
NEW_HOST = "127.0.0.2"
SPARE = Credentials("spare", "spare-secret-5")
BILLING = Credentials("billing", "billing-secret-1")
GUESSES = 30


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def day(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Day]:
    """The cluster, for all tests of this file; the table is printed at its end."""
    async with bad_day(tmp_path_factory.mktemp("bad-day")) as found:
        yield found
        print("\n" + table(found))


async def test_disk_full_on_the_master(day: Day) -> None:
    """It hands over to a replica with room, and keeps messages for a shorter time as `status` says."""
    async with day.fault("disk full on the master") as fault:
        full = await day.master(DISKS_OF)
        store = Path(full.settings["storePathRootDir"])
        day.disks.fill(store, 0.93)
        await day.master(DISKS_OF, but=full.name)
        await fault.alerts("KeelmqDiskFull", "KeelmqDiskFills")
        problem = await fault.says("broker.disk", "full")
        assert problem.subject == full.address and "free space" in problem.next_step
        await day.steady()
        await fault.follow(problem)  # messages that are too old are deleted
        await fault.is_over()
        day.disks.relieve(store)
        await day.done(f"mqadmin updateBrokerConfig -b {full.address} -k fileReservedTime -v 72")


async def test_disk_of_the_master_becomes_read_only(day: Day) -> None:
    """As after an error of its file system. It hands over; the disk is repaired while its container is
    stopped."""
    async with day.fault("disk of the master read-only") as fault:
        failed = await day.master(DISKS_OF)
        store = Path(failed.settings["storePathRootDir"])
        day.disks.make_read_only(store)
        await day.master(DISKS_OF, but=failed.name)
        await fault.alerts("KeelmqDiskFull")
        problem = await fault.says("group.in-sync", "Read-only file system")
        assert "make its disk writable again and restart the broker" in problem.next_step
        await fault.follow(problem)
        await day.steady()
        await stop(day, failed.container)
        day.disks.repair(store)
        day.cluster.start_program(failed.container)


async def test_two_of_three_controllers_are_lost(day: Day) -> None:
    """Masters serve on; what is killed is started again as `status` says."""
    async with day.fault("two of three controllers lost") as fault:
        for server in day.cluster.name_servers[:2]:
            await day.cluster.kill_and_wait(server)
        await fault.alerts("KeelmqNoControllerLeader", "KeelmqControllerMissing", "KeelmqDown")
        problem = await fault.says("controller.leader", "only 1 of 3 answer")
        assert problem.command == "mqnamesrv -c FILE" and "2 of 3 must run" in problem.next_step
        await day.steady()
        await fault.follow(await fault.says("controller.reachable", "connection refused"))


async def test_users_are_changed(day: Day) -> None:
    """Each change is in force at once, at every server, and after a change of the master."""
    async with day.fault("users changed") as fault:
        where = f"-c {CLUSTER_NAME} -n {day.name_servers}"
        topic = topic_of(DISKS_OF)
        secret = day.directory / "billing.password"
        secret.write_text(BILLING.secret_key)
        await day.done(f"mqadmin createUser -u {BILLING.access_key} --passwordFile {secret} {where}")
        assert "no permission" in await day.send_as(BILLING, topic)
        await day.done(f"mqadmin createAcl -s User:billing -r Topic:{topic} -a Pub -d Allow {where}")
        assert await day.send_as(BILLING, topic) == ""
        fault.refused()

        secret.write_text("billing-secret-2")
        await day.done(f"mqadmin updateUser -u {BILLING.access_key} --passwordFile {secret} {where}")
        renewed = Credentials(BILLING.access_key, "billing-secret-2")
        assert "check signature failed" in await day.send_as(BILLING, topic)
        for _ in range(GUESSES):  # an application that was forgotten
            assert await day.send_as(BILLING, topic) != ""
        fault.refused(1 + GUESSES)
        await fault.alerts("KeelmqPasswordGuessing")
        await day.until("its address may try again", partial(may_send, day, renewed, topic))

        old = await day.master(DISKS_OF)
        slave = next(
            each for each in (await day.picture(DISKS_OF)).replicas if each.role == "slave" and each.in_sync
        )
        elect = f"-a '{day.cluster.controller_addr}' -c {CLUSTER_NAME} -bn {DISKS_OF} -b {slave.broker_id}"
        await day.done(f"mqadmin electMaster {elect}")
        await day.master(DISKS_OF, but=old.name)
        assert await day.send_as(renewed, topic) == ""
        await day.done(f"mqadmin deleteUser -u {BILLING.access_key} --yes {where}")
        assert "check signature failed" in await day.send_as(renewed, topic)
        fault.refused()


async def test_certificates_are_renewed(day: Day) -> None:
    """Short ones fire the alert, new ones for one host more clear it; nobody is restarted."""
    async with day.fault("certificates renewed") as fault:
        await renew(day, days=7)
        await fault.alerts("KeelmqCertificateExpires")
        await renew(day, days=365)
        assert await day.send_as(SHOP, topic_of(DISKS_OF)) == "", "users are still there"


async def test_a_group_is_added(day: Day) -> None:
    """Three replicas in the containers that run. They get the users of the others, and applications use the
    new group as they use the others."""
    async with day.fault("a group added"):
        for machine, file in day.cluster.add_group(ADDED).items():
            container = next(each for each in day.cluster.containers if each.name == machine)
            await day.done(f"mqadmin addBroker -c {address_of(container)} -b {file}")
        day.groups.append(ADDED)
        await day.all_in_sync()
        await day.open_topic(ADDED)
        await day.until("the new group knows the shop", partial(may_send, day, SHOP, topic_of(ADDED)))
        day.send_to(ADDED)


async def test_the_address_of_a_machine_moves(day: Day) -> None:
    """The machine with the master is stopped and comes back at another address."""
    async with day.fault("a broker's address moved") as fault:
        machine = (await day.master(DISKS_OF)).container
        await stop(day, machine)
        await fault.alerts("KeelmqDown")
        problem = await fault.says("group.in-sync", "is not alive")
        assert problem.next_step.startswith("start it")
        await day.move(machine, NEW_HOST)
        await fault.follow(problem)


async def test_everything_is_saved_and_restored(day: Day) -> None:
    """As the administrator: the controllers and the stores of all groups. All directories are destroyed
    while no message is on the way."""
    async with day.fault("backup, total loss and restore") as fault:
        cluster, saved = day.cluster, day.directory / "controllers.backup"
        await day.stop_traffic()
        await day.done(f"keelmq backup controllers -n {day.name_servers} {saved}")
        stores = {}
        for group in day.groups:
            master = await day.master(group)
            await day.done(f"keelmq backup store -b {master.address} {group}-today --rate 0")
            stores[group] = Path(master.settings["storePathRootDir"])
        for program in cluster.programs:
            await cluster.kill_and_wait(program)
        await fault.alerts("KeelmqDown")
        await fault.silence()
        for server in cluster.name_servers:
            shutil.rmtree(server.settings["controllerStorePath"])
        for group in day.groups:
            for broker in cluster.group(group).brokers:
                empty(day.disks.seen(Path(broker.settings["storePathRootDir"])))
        members = " ".join(f"-c {server.config_path}" for server in cluster.name_servers)
        await day.done(f"keelmq restore controllers {saved} {members}")
        for group, store in stores.items():
            backup = day.directory / "backups" / f"{group}-today"
            await day.done(f"keelmq restore store {backup} {store} --with-identity")
        cluster.start()
        await day.all_in_sync()
        for problem in (await day.status()).problems:
            if "cleanBrokerMetadata" in problem.command:  # the ids of stores that are lost
                await fault.follow(fault.tells(problem))
        for group in day.groups:
            day.send_to(group)


async def test_metadata_is_saved_and_restored(day: Day) -> None:
    """As the administrator: a user that was deleted by mistake comes back with the password and the ACL, a
    topic as it was."""
    async with day.fault("metadata: backup, mistake, restore") as fault:
        master, saved = await day.master(DISKS_OF), day.directory / "metadata.backup"
        store = Path(master.settings["storePathRootDir"])
        where = f"-c {CLUSTER_NAME} -n {day.name_servers}"
        await day.done(f"mqadmin updateTopic -b {master.address} -t day-spare -r 2 -w 2")
        secret = day.directory / "spare.password"
        secret.write_text(SPARE.secret_key)
        await day.done(f"mqadmin createUser -u {SPARE.access_key} --passwordFile {secret} {where}")
        await day.done(f"mqadmin createAcl -s User:spare -r Topic:day-spare -a Pub -d Allow {where}")
        await day.until("the spare user may send", partial(may_send, day, SPARE, "day-spare"))
        line = f"keelmq backup metadata -b {master.address} {saved} --users {store / 'config' / 'users.json'}"
        await day.done(line)
        await day.done(f"mqadmin deleteUser -u {SPARE.access_key} --yes {where}")
        await day.done(f"mqadmin updateTopic -b {master.address} -t day-spare -r 2 -w 2 -p 4")
        assert await day.send_as(SPARE, "day-spare") != ""
        fault.refused()
        await day.done(f"keelmq restore metadata {saved} -b {master.address} --yes")
        await day.until("the spare user may send again", partial(may_send, day, SPARE, "day-spare"))


async def test_nothing_was_lost(day: Day) -> None:
    """Every acknowledged message of the day is at the master, and the consumer has seen it."""
    await day.stop_traffic()
    await day.compare()


async def stop(day: Day, program: Program) -> None:
    """SIGTERM, as systemd stops it."""
    assert await asyncio.to_thread(day.cluster.stop_program, program, 60.0) == 0
    program.process = None  # it ended because we asked: nothing for cluster.check()


async def renew(day: Day, days: int) -> None:
    """As docs/security.md says: with the CA of keep-offline, then copied over the files of each machine."""
    authority = day.security / OFFLINE
    hosts = f"--host 127.0.0.1 --host localhost --host {NEW_HOST}"
    await day.done(f"keelmq certificates server --role server --output {authority} --days {days} {hosts}")
    names = f"--host {member_name(CLUSTER_NAME)}"
    await day.done(f"keelmq certificates member --role client --output {authority} --days {days} {names}")
    for name in ("server.crt", "server.key", "member.crt", "member.key"):
        shutil.copy2(authority / name, day.security / name)
    for program in day.cluster.programs:
        copy_security(day.security, day.directory / f"{program.name}.security")


async def may_send(day: Day, who: Credentials, topic: str) -> bool:
    """Sends one message: is it accepted?"""
    return await day.send_as(who, topic) == ""


def address_of(container: ContainerProgram) -> str:
    """Of the container itself."""
    return f"{container.own['brokerContainerIP']}:{container.own['listenPort']}"


def empty(folder: Path) -> None:
    """The directory stays, since it may be a mount point."""
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
