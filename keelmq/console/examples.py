"""A small cluster as an example, for the OpenAPI document and the tests of pages."""

from keelmq.health.status import (
    ClusterStatus,
    ControllerStatus,
    GroupStatus,
    LastElection,
    NameServerStatus,
    Problem,
    ReplicaStatus,
    Verdict,
)

_PROBLEM = Problem(
    level=Verdict.WARNING,
    check="group.in-sync",
    subject="broker-a",
    text="2 of 3 replicas are in the SyncStateSet: broker 3 is not",
    next_step="look at its log: it copies, or it is down",
    command="mqadmin getSyncStateSet -a 10.0.0.1:9878 -b broker-a",
)
_GROUP = GroupStatus(
    cluster="DefaultCluster",
    broker_name="broker-a",
    verdict=Verdict.WARNING,
    has_controllers=True,
    master_id=1,
    master_address="10.0.0.1:10911",
    master_epoch=4,
    sync_state_set=[1, 2],
    sync_state_set_epoch=9,
    min_in_sync=1,
    confirm_offset=1_048_576,
    max_offset=1_048_576,
    replicas=[
        ReplicaStatus(
            broker_id=1,
            address="10.0.0.1:10911",
            role="master",
            is_alive=True,
            is_in_sync=True,
            max_offset=1_048_576,
            confirm_offset=1_048_576,
            lag_bytes=0,
            lag_ms=0,
            epoch=4,
            messages_in_per_s=1200.5,
            messages_out_per_s=1180.0,
            disk_used=0.41,
            version="V5_3_3",
            started_ms=1_767_139_200_000,
        ),
        ReplicaStatus(
            broker_id=3,
            address="10.0.0.3:10911",
            role="silent",
            is_alive=False,
            is_in_sync=False,
            problem="connection refused",
        ),
    ],
    last_election=LastElection(
        event_id=12,
        time_ms=1_767_220_000_000,
        reason="brokerInactive",
        broker_id=1,
        before=2,
        master_epoch=4,
        without_master_ms=412,
    ),
    problems=[_PROBLEM],
)
STATUS = ClusterStatus(
    taken_ms=1_767_225_600_000,
    took_ms=18,
    verdict=Verdict.WARNING,
    name_servers=[NameServerStatus(address="10.0.0.1:9876", is_up=True, brokers=2, groups=1, topics=3)],
    controllers=[
        ControllerStatus(
            address="10.0.0.1:9878", member="n0", role="leader", term=3, commit_index=120, last_applied=120
        )
    ],
    groups=[_GROUP],
    problems=[_PROBLEM],
)
