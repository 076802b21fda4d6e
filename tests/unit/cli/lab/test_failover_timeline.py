"""The timeline of a fail-over, from logs like those that the programs write."""

from datetime import datetime

from cli.lab.failover_timeline import medians, timeline_of, timeline_text

BEGIN = "2026-11-26 11:37:26"
KILLED = datetime.fromisoformat(BEGIN).timestamp() * 1_000 + 900
ELECTION = "INFO namesrv.plugins.controller.election"
ROLE = "INFO broker.controller_mode.replicas_manager role change: master at masterEpoch"
LEADER = f"""\
2026-11-26 11:37:20.100 {ELECTION}.reconcile_loop broker-a: master is 1, masterEpoch 1 (first election)
{BEGIN}.904 {ELECTION}.death_proofs broker-a: the heartbeat connection of broker 1 closed
{BEGIN}.905 {ELECTION}.death_proofs broker-a: broker 1 is dead: 127.0.0.1:28511 refuses connections
Traceback (most recent call last):
{BEGIN}.909 {ELECTION}.reconcile_loop broker-a: master is 3, masterEpoch 2 (master 1 is not active)
{BEGIN}.920 INFO namesrv.handlers.registration registered broker-a master at 127.0.0.1:18272
"""
FOLLOWER = f"""\
{BEGIN}.902 {ELECTION}.death_proofs broker-a: the heartbeat connection of broker 1 closed
{BEGIN}.903 {ELECTION}.death_proofs broker-a: broker 1 is dead: 127.0.0.1:28511 refuses connections
{BEGIN}.918 INFO namesrv.handlers.registration registered broker-a master at 127.0.0.1:18272
"""
BROKER = f"""\
{BEGIN}.916 {ROLE} 2 in 6 ms (was slave of 1 at 1)
2026-11-26 11:38:26.916 {ROLE} 4 in 6 ms
"""


def test_each_step_since_the_kill() -> None:
    logs = {"namesrv-0": LEADER, "namesrv-1": FOLLOWER, "broker-2": BROKER}
    found = timeline_of(logs, killed_ts=KILLED, acknowledged_ts=KILLED + 25)
    assert timeline_text(found) == "closed=4 proved=5 elected=9 serving=16 routed=18 acknowledged=25"


def test_a_step_that_did_not_happen_has_no_time() -> None:
    without = "\n".join(line for line in LEADER.splitlines() if "is dead" not in line)
    found = timeline_of({"namesrv-0": without}, killed_ts=KILLED, acknowledged_ts=KILLED + 60)
    assert found == {"closed": 4, "elected": 9, "routed": 20, "acknowledged": 60}
    nothing = timeline_of(
        {"namesrv-1": FOLLOWER, "broker": ""}, killed_ts=KILLED + 30, acknowledged_ts=KILLED + 60
    )
    assert nothing == {"acknowledged": 30}, "lines of another kill do not count"


def test_the_median_of_each_step() -> None:
    timelines = [
        {"closed": 1.0, "elected": 4.0},
        {"closed": 3.0, "proved": 3.0, "elected": 5.0},
        {"closed": 2.0},
    ]
    assert timeline_text(medians(timelines)) == "closed=2 proved=3 elected=4.5"
    assert medians([]) == {}
