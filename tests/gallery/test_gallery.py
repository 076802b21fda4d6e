"""Every staged fault is named by `keelmq status`, with the command to type next; every command is one of
ours, and its flags are right."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace
from typer.main import get_command

from broker.app.program import make_parser as broker_parser
from broker.config.broker_config import AT_RUN_TIME as BROKERS_AT_RUN_TIME
from cli.keelmq import app as keelmq
from cli.mqadmin.main import app as mqadmin
from cli.status.view import screen
from keelmq.health import commands
from keelmq.health.findings import CHECKS
from keelmq.health.snapshot import ClusterSnapshot
from keelmq.health.status import Problem, Verdict
from keelmq.health.summary import of_one_group, status_of
from keelmq.remoting.operations.controller import PastElection
from keelmq.runtime.config import ConfigError
from tests.gallery.cluster import (
    BROKERS,
    NAME,
    NS,
    PLAIN,
    PLAIN_NAME,
    broker,
    healthy,
    name_server,
    plain_broker,
    replicas,
)
from tests.gallery.faults import FAULTS
from tests.gallery.table import DOCUMENT, MARK, rewritten
from tests.unit.cli.doctor.test_doctor_cluster import healthy as doctors_healthy

UsageError = typer.BadParameter.__mro__[1]
"""That of the click in typer."""
SERVERS = ("mqnamesrv", "mqcontroller", "mqbroker", "mqbrokercontainer")
FOREIGN = ("chronyc",)
"""Programs of others that a next step names."""


def problems(name: str) -> list[Problem]:
    seen = healthy()
    FAULTS[name].put(seen)
    return status_of(seen).problems


def parse(command: str) -> None:
    """Raises unless our programs take this command line. Nothing is run."""
    program, *args = shlex.split(command)
    if program in FOREIGN:
        return
    if program in SERVERS:
        assert broker_parser().parse_args(args)
        return
    found: Any = get_command({"mqadmin": mqadmin, "keelmq": keelmq}[program])
    if args[0] == "--tls-ca":  # an option of the program, before its subcommand
        args = args[2:]
    while hasattr(found, "commands"):
        program, args = args[0], args[1:]
        found = found.get_command(found.make_context("it", [], resilient_parsing=True), program)
        assert found is not None, program
    found.make_context(program, args)


def test_nothing_is_wrong_with_the_healthy_cluster() -> None:
    found = status_of(healthy())
    assert found.problems == [] and found.verdict is Verdict.OK
    assert [each.verdict for each in found.groups] == [Verdict.OK, Verdict.OK]


def test_there_are_enough() -> None:
    assert len(FAULTS) >= 25


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named_with_its_command(name: str) -> None:
    fault = FAULTS[name]
    found = [
        each
        for each in problems(name)
        if (each.check, each.subject, each.level) == (fault.check, fault.subject, fault.level)
        and fault.words in each.text
    ]
    assert [each.command for each in found] == [fault.command], "\n".join(map(str, problems(name)))
    assert found[0].next_step and found[0].check in CHECKS


@pytest.mark.parametrize("name", FAULTS)
def test_every_command_is_one_of_ours_and_parses(name: str) -> None:
    for each in problems(name):
        assert each.command, f"{each.check}: {each.text}"
        parse(each.command)


@pytest.mark.parametrize(
    "wrong", ["mqadmin haStatus --nothing 1", "keelmq status -x", "mqadmin noSuch", "mqbroker -z"]
)
def test_a_wrong_command_does_not_parse(wrong: str) -> None:
    with pytest.raises((UsageError, ConfigError, AssertionError)):
        parse(wrong)


@pytest.mark.parametrize("name", FAULTS)
def test_the_screen_fits_80_columns_but_for_commands(name: str) -> None:
    seen = healthy()
    FAULTS[name].put(seen)
    lines = [line.plain for line in screen(status_of(seen), 80)]
    assert [line for line in lines if len(line) > 80 and not line.lstrip().startswith("$ ")] == []
    assert any(line.strip() == f"$ {FAULTS[name].command}" for line in lines)
    assert lines[0].split()[0] == status_of(seen).verdict.value.upper()


def test_one_group_keeps_what_is_of_no_group() -> None:
    seen = healthy()
    FAULTS["two_plain_masters"].put(seen)
    FAULTS["controller_down"].put(seen)
    only = of_one_group(status_of(seen), NAME)
    assert [each.broker_name for each in only.groups] == [NAME]
    assert {each.subject for each in only.problems} == {FAULTS["controller_down"].subject}
    assert of_one_group(status_of(seen), "nobody").groups == []
    assert PLAIN_NAME in {each.subject for each in status_of(seen).problems}


def test_what_the_master_needs_in_sync_counts_not_what_another_replica_would_need() -> None:
    seen = healthy()
    seen.sets = {NAME: replicas(out=(2, 3))}
    seen.brokers[BROKERS[0]] = broker(0, minInSyncReplicas="1")
    found = status_of(seen)
    assert found.groups[0].min_in_sync == 1
    (size,) = [each for each in found.problems if "replicas in sync" in each.text]
    assert size.level is Verdict.WARNING and "1 of 3 replicas in sync, 1 needed" in size.text


def test_settings_that_a_request_changes_are_those_of_the_broker() -> None:
    assert commands.AT_RUN_TIME <= BROKERS_AT_RUN_TIME


def test_an_older_cluster_without_907_1007_and_http_has_no_false_alarm() -> None:
    seen: ClusterSnapshot = doctors_healthy()
    found = status_of(seen)
    assert found.problems == []
    assert found.groups[0].replicas[1].lag_ms is None and found.groups[0].last_election is None


@pytest.mark.parametrize(
    ("reason", "without_ms"),
    [("connection_refused", 90), ("connection_closed", 90), ("heartbeat_timeout", 3_000)],
)
def test_a_master_is_lost_when_its_connection_closes_or_with_its_last_heartbeat(
    reason: str, without_ms: int
) -> None:
    seen = healthy()
    seen.elections = [
        PastElection(
            event_id=7, ts=10_000, cluster_name="c", broker_name=NAME, old_master_broker_id=1,
            new_master_broker_id=2, master_epoch=4, sync_state_set_epoch=9,
            reason=f"master 1 is not active ({reason})", last_heartbeat_ts=7_000, detected_ts=9_910,
        )
    ]  # fmt: skip
    (group,) = of_one_group(status_of(seen), NAME).groups
    assert group.last_election is not None and group.last_election.without_master_ms == without_ms


def test_the_page_has_the_table_of_today() -> None:
    text = Path(DOCUMENT).read_text(encoding="utf-8")
    assert text.count(MARK) == 2
    assert rewritten(text) == text, "python -m tests.gallery.table"


def test_the_master_has_its_id_without_a_leading_controller() -> None:
    """A route lists every master as 0. In controller mode its id is another one, which it says itself."""
    seen = healthy()
    FAULTS["majority_lost"].put(seen)
    seen.sets, seen.groups = None, {}
    group = next(each for each in status_of(seen).groups if each.broker_name == NAME)
    assert (group.master_id, group.master_address, group.master_epoch) == (1, BROKERS[0], 3)
    assert [each.broker_id for each in group.replicas] == [1, 2, 3] and group.sync_state_set == [1, 2, 3]
    assert "  master 1 at 10.0.1.1:10911, masterEpoch 3" in [
        line.plain for line in screen(status_of(seen), 80)
    ]
    seen.brokers[BROKERS[0]] = replace(broker(0), epochs=None)
    assert any("master of unknown id at 10.0.1.1" in line.plain for line in screen(status_of(seen), 80))


def test_a_name_server_without_brokers_beside_others_is_no_outage() -> None:
    seen = healthy()
    seen.name_servers[NS[0]] = name_server({})
    (found,) = [each for each in status_of(seen).problems if each.check == "namesrv.reachable"]
    assert (found.level, found.text) == (Verdict.WARNING, "name server: no broker is registered")


def test_a_dead_replica_has_no_numbers_of_the_broker_that_has_its_address() -> None:
    seen = healthy()
    FAULTS["replaced_disk"].put(seen)
    old, new = (each for each in status_of(seen).groups[0].replicas if each.address == BROKERS[2])
    assert (old.broker_id, old.problem, old.disk_used) == (3, "broker 4 runs at its address", None)
    assert (new.broker_id, new.problem, new.disk_used) == (4, "", 0.3)


@pytest.mark.parametrize(
    ("copies", "masters_end", "in_sync"),
    [(True, 10, [0, 1]), (True, 110, [0, 1]), (True, 111, [0]), (False, 10, [0])],
)
def test_a_slave_without_controllers_is_in_sync_by_what_it_says(
    copies: bool, masters_end: int, in_sync: list[int]
) -> None:
    seen, master = healthy(), plain_broker(is_master=True)
    info = {**master.info, "commitLogMaxOffset": str(masters_end)}
    seen.brokers[PLAIN[0]] = replace(master, info=info)
    seen.brokers[PLAIN[1]] = plain_broker(is_master=False, copies=copies)
    group = next(each for each in status_of(seen).groups if each.broker_name == PLAIN_NAME)
    assert group.sync_state_set == in_sync
    assert [each.is_in_sync for each in group.replicas] == [True, 1 in in_sync]
