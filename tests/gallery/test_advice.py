"""No advice without evidence: every next step of status, doctor, top and the console, with the roles
exchanged, and a register of every text in the programs and runbooks that tells to delete or overwrite a copy.

`keelmq verify`, which finds the evidence, has its own walk: tests/unit/cli/verify/test_verdict.py.
"""

import ast
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from keelmq.health.group_summary import group_statuses
from keelmq.health.groups import groups
from keelmq.health.reach import Silent
from keelmq.health.snapshot import ClusterSnapshot
from keelmq.health.summary import status_of
from keelmq.health.verdict import verdict
from keelmq.remoting.operations.broker import HaRuntimeInfo
from tests.gallery.cluster import BROKERS, NAME, NS, broker, healthy, links, name_server, replicas
from tests.gallery.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
GONE = Silent("connection refused")
GIVES_UP = re.compile(
    r"keelmq repair|--resync|--wipe-after|cleanBrokerMetadata|empty director|restore (it|a backup|store)|"
    r"\brm -|copies its master|enableElectUnclean|\bwipe\b|delete it\b|a new id|brokerRole=SLAVE|"
    r"electMaster .*-b \d",
    re.IGNORECASE,
)
"""Texts that tell to give up a copy of the log, an id, or what a new master lacks."""
CHECKS_FIRST = re.compile(r"keelmq verify|has no messages|without messages")


# -- the walk ----------------------------------------------------------------------------------------------


def with_roles(master: int | None) -> ClusterSnapshot:
    """A healthy group whose master is this broker (1 to 3), or that has none."""
    seen = healthy()
    seen.sets = {NAME: replicas(master=master)}
    for number, address in enumerate(BROKERS, start=1):
        ha = links() if number == master else HaRuntimeInfo(master=False)
        seen.brokers[address] = replace(broker(number - 1), ha=ha)
        seen.brokers[address].info["brokerActive"] = str(number == master).lower()
    shown = {number: address for number, address in enumerate(BROKERS, start=1) if number != master}
    if master is not None:
        shown[0] = BROKERS[master - 1]
    seen.name_servers |= {at: name_server({NAME: shown}) for at in NS}
    return seen


def advice(seen: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    """Yields (next step, command) of everything that status, top, the console and the doctor say."""
    for problem in status_of(seen).problems:
        yield problem.next_step, problem.command
    for finding in (*verdict(seen), *groups(seen, group_statuses(seen))):
        yield finding.next_step, finding.command


def cleaned(text: str) -> list[int]:
    """Returns the ids that a text tells to forget."""
    return [int(number) for number in re.findall(r"cleanBrokerMetadata .*?-b (\d+)", text)]


def check(seen: ClusterSnapshot, *, in_sync_alive: set[int]) -> int:
    """Fails if a next step gives up a copy without evidence; returns how many give one up after a check.
    in_sync_alive: members of the SyncStateSet that are alive."""
    count = 0
    for step, command in advice(seen):
        text = f"{step}; {command}"
        if command:
            program, *args = shlex.split(command)
            assert (program, *args[:1]) != ("keelmq", "repair"), f"no evidence for: {text}"
            assert not {"--resync", "--wipe-after", "--yes", "rm"} & {program, *args}, text
        for number in cleaned(text):
            assert in_sync_alive - {number}, f"the only copy may be at {number}: {text}"
        if (
            GIVES_UP.search(text)
            and "elected only by" not in text
            and "enableElectUncleanMaster -v false" not in text
        ):
            assert CHECKS_FIRST.search(text), f"nothing is checked first: {text}"
            count += 1
    return count


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_staged_fault(name: str) -> None:
    seen = healthy()
    FAULTS[name].put(seen)
    info = (seen.sets or {}).get(NAME) if isinstance(seen.sets, dict) else None
    alive = {each.broker_id for each in info.in_sync_replicas if each.alive} if info is not None else set()
    check(seen, in_sync_alive=alive)


@pytest.mark.parametrize("master", [1, 2, 3, None])
def test_a_log_that_differs_is_not_repaired_because_of_its_role(master: int | None) -> None:
    """Its epochs, or a fault at which it stopped: the damaged one is a slave or the master, or there is
    none."""
    told = 0
    for odd, kind in itertools.product((1, 2, 3), ("epochs", "fault")):
        seen = with_roles(master)
        address = BROKERS[odd - 1]
        was = seen.brokers[address]
        if kind == "epochs":
            seen.brokers[address] = replace(was, epochs=broker(odd - 1, epochs={1: 0, 3: 2_048}).epochs)
        else:
            ha = HaRuntimeInfo(master=odd == master, fault="no common epoch with the master")
            seen.brokers[address] = replace(was, ha=ha)
        check(seen, in_sync_alive={1, 2, 3})
        found = [(step, command) for step, command in advice(seen) if "keelmq verify" in command]
        told += bool(found)
        for step, _ in found:
            assert "the master's may be the damaged one" in step
    assert told or master is None


@pytest.mark.parametrize("master", [1, 2, 3, None])
def test_the_only_copy_that_is_left_is_not_forgotten(master: int | None) -> None:
    """Every set of dead replicas and of those that are not in sync."""
    ids, cleans = (1, 2, 3), 0
    for dead_count, out_count in itertools.product(range(4), range(3)):
        for dead, out in itertools.product(
            itertools.combinations(ids, dead_count), itertools.combinations(ids, out_count)
        ):
            seen = with_roles(master)
            seen.sets = {NAME: replicas(dead=dead, out=out, master=master)}
            for number in dead:
                seen.brokers[BROKERS[number - 1]] = GONE
            for hours in (0, 30):
                views = [
                    {
                        "brokerId": number,
                        "address": at,
                        "heartbeatAgeMs": hours * 3_600_000 * (number in dead),
                    }
                    for number, at in enumerate(BROKERS, start=1)
                ]
                seen.groups = {NAME: {"brokerName": NAME, "cluster": "C", "replicas": views}}
                in_sync_alive = set(ids) - set(dead) - set(out)
                check(seen, in_sync_alive=in_sync_alive)
                cleans += sum(len(cleaned(f"{step} {command}")) for step, command in advice(seen))
    assert cleans, "it does not help to say nothing"


# -- the register ------------------------------------------------------------------------------------------

REGISTER = {
    "broker/admin/repair.py": "keelmq repair, of files that an operator chose; --resync deletes nothing",
    "broker/app/start_check.py": "tables that are lost, beside a log that stays",
    "broker/backup/manifest.py": "an unfinished backup, which is no copy",
    "broker/config/master_slave_settings.py": "which keys a slave has",
    "broker/controller_mode/broker_id_registration.py": "names the causes; the broker stays fenced",
    "broker/controller_mode/broker_meta_file.py": "the identity, not the log",
    "broker/ha/core/slave_link.py": "keelmq repair shows what can be done",
    "broker/ha/epoch_file.py": "keelmq repair shows what can be done",
    "broker/healing/service.py": "refused by the command while a replica has or may have a sound copy",
    "broker/metadata/files.py": "tables, from a backup or another replica's file",
    "broker/store/message_store.py": "ConsumeQueues, from the log beside them",
    "broker/store/log/commit_log.py": "keelmq repair --resync --yes asks the others for a sound copy first",
    "broker/store/log/file_sizes.py": "zeros in place of what is lost, which is then copied from a replica",
    "broker/store/queue/opening.py": "after keelmq verify, or ConsumeQueues from the log beside them",
    "broker/store/store_check.py": "ConsumeQueues, from the log beside them",
    "keelmq/remoting/damage_remarks.py": "a mark: the command refuses while a replica may have a sound copy",
    "cli/doctor/files.py": "a warning of unclean elections",
    "cli/doctor/plain_groups.py": "only a broker without messages becomes a slave",
    "cli/doctor/rules.py": "a warning of unclean elections",
    "cli/machines/init.py": "keys and files that were copied elsewhere by the same line",
    "cli/init_security.py": "keys that were copied elsewhere by the same line",
    "cli/lab/demo_end.py": "the demo's own directory",
    "cli/mqadmin/commands/controller.py": "the command itself, with --dry-run",
    "cli/mqadmin/commands/namesrv.py": "write permission of routes, no data",
    "cli/mqadmin/commands/topic.py": "the command itself, with --dry-run",
    "broker/healing/epoch_evidence.py": "names verify first, when the epochs cannot be found by comparison",
    "broker/healing/log_reads.py": "a record that no answer can carry: resync copies it",
    "broker/healing/lost_epochs.py": "a master of RocketMQ, whose log cannot be compared: resync copies it",
    "cli/repair.py": "the command itself: shows what is removed, and tells to run keelmq verify first",
    "cli/repair_group.py": "refuses without a sound copy",
    "cli/repair_lost.py": "refuses while a replica has or may have a sound copy",
    "cli/verify/command.py": "after keelmq verify, or ConsumeQueues from the log beside them",
    "cli/verify/core/verdict.py": "the verdicts: walked in test_verdict.py",
    "keelmq/console/actions_api.py": "an example of the API",
    "keelmq/console/actions/groups.py": "the action itself, with a preview",
    "keelmq/console/actions/settings.py": "a warning of unclean elections",
    "keelmq/health/commands.py": "walked above",
    "keelmq/health/groups.py": "walked above",
    "keelmq/health/permission_rules.py": "a warning of unclean elections",
    "keelmq/health/plain_routes.py": "only a broker without messages becomes a slave",
    "keelmq/health/replication_rules.py": "walked above",
    "namesrv/plugins/controller/config.py": "the setting itself",
    "namesrv/plugins/controller/core/ownership.py": "the identity, not the log",
    "namesrv/plugins/controller/core/rules.py": "replicas that are gone; refuses what would lose messages",
    "namesrv/plugins/controller/raft/changes.py": "of controllers",
    "namesrv/plugins/controller/restore.py": "of controllers; moves, and deletes nothing",
    "docs/runbooks/KeelmqDiskFull.md": "a planned hand-over: the target has every byte of the log",
    "docs/runbooks/KeelmqControllerStoreGrows.md": "ids of replicas whose files no longer exist",
    "docs/runbooks/KeelmqHeartbeatLate.md": "an id; files are kept until keelmq verify",
    "docs/runbooks/KeelmqLogNotHealed.md": "the commands refuse while a replica may have the only sound copy",
    "docs/runbooks/KeelmqReplicationStopped.md": "after keelmq verify",
}
"""File -> why its texts destroy no sound copy. A new text is read, and then listed here."""
CODE = ("broker", "cli", "keelmq", "namesrv")


def texts_of(path: Path) -> Iterator[str]:
    """Yields what people read: the strings of a module without its docstrings, or the lines of a page."""
    if path.suffix == ".md":
        yield from path.read_text(encoding="utf-8").splitlines()
        return
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_every_text_that_gives_up_a_copy_is_in_the_register() -> None:
    paths = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += sorted((ROOT / "docs" / "runbooks").glob("*.md"))
    found = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if "node_modules" not in path.parts and any(GIVES_UP.search(text) for text in texts_of(path))
    }
    assert found == set(REGISTER), f"new: {found - set(REGISTER)}; gone: {set(REGISTER) - found}"


def test_runbooks_check_before_they_overwrite() -> None:
    for path in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if re.search(r"--resync|--wipe-after|keelmq repair --store", text):
            assert "keelmq verify" in text, path.name
