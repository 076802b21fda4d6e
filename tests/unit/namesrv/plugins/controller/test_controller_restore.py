"""Backup and restore of the controllers' state: real members start from restored directories, and a damaged
file, a directory in use, or a member that was not restored is noticed."""

import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from keelmq.runtime.config import ConfigError
from namesrv.plugins.controller.backup_file import BackupFileError, decode_backup, encode_backup
from namesrv.plugins.controller.config import ControllerConfig
from namesrv.plugins.controller.core.events import ApplyBrokerId
from namesrv.plugins.controller.core.restored import RAISE_EPOCHS, RAISE_IDS, restored_state
from namesrv.plugins.controller.core.rules import Refused, check_broker_id
from namesrv.plugins.controller.core.state import BrokerSet, Cleaned, Replica, State
from namesrv.plugins.controller.core.state_codec import state_to_json
from namesrv.plugins.controller.machine import ControllerMachine
from namesrv.plugins.controller.replicator import RaftReplicator, RaftSettings
from namesrv.plugins.controller.restore import RestoreError, check_targets, restored_from, write_members
from tests.support.ports import free_ports
from tests.support.raft_group import SECRET, until

GROUP = BrokerSet(
    cluster_name="C",
    broker_name="b",
    next_broker_id=4,
    replicas={1: Replica("h1:1", "h1:1;1"), 2: Replica("h2:1", "h2:1;1"), 3: Replica("h3:1", "h3:1;1")},
    master_broker_id=1,
    master_epoch=7,
    sync_state_set=frozenset({1, 2}),
    sync_state_set_epoch=9,
)
STATE = State(
    brokers={"b": GROUP},
    event_count=40,
    cleaned={"old": Cleaned(5, 6, 3)},
    settings={"scanInactiveMasterInterval": "3000"},
    settings_version=2,
    broker_count=3,
    log_id="n0-1",
)


def file_of(state: State = STATE) -> bytes:
    return encode_backup(
        group="keelmq", leader="n0", taken_ms=5, state=msgspec.json.decode(state_to_json(state))
    )


@pytest.fixture
def configs(tmp_path: Path) -> dict[Path, ControllerConfig]:
    peers = ";".join(f"n{index}-127.0.0.1:{port}" for index, port in enumerate(free_ports(3)))
    raft = ";".join(f"n{index}-127.0.0.1:{port}" for index, port in enumerate(free_ports(3)))
    return {
        Path(f"n{index}.conf"): ControllerConfig.model_validate(
            {
                "controllerDLegerGroup": "keelmq",
                "controllerDLegerSelfId": f"n{index}",
                "controllerDLegerPeers": peers,
                "controllerRaftPeers": raft,
                "controllerRaftInsecure": True,
                "controllerStorePath": str(tmp_path / f"n{index}"),
            }
        )
        for index in range(3)
    }


@asynccontextmanager
async def started(
    *configs: ControllerConfig,
) -> AsyncIterator[list[tuple[RaftReplicator, ControllerMachine]]]:
    running = []
    try:
        for config in configs:
            machine = ControllerMachine()
            replicator = RaftReplicator(
                machine,
                RaftSettings(
                    self_id=config.controller_d_leger_self_id,
                    members=config.raft_addresses,
                    directory=config.directory,
                    cluster_id=config.controller_d_leger_group,
                    secret=SECRET,
                    sync=False,
                ),
            )
            await replicator.start()
            running.append((replicator, machine))
        yield running
    finally:
        for replicator, _ in running:
            await replicator.stop()


# -- the file ----------------------------------------------------------------------------------------------


def test_the_file_gives_back_the_state() -> None:
    backup = decode_backup(file_of())
    assert (backup.group, backup.leader, backup.taken_ms) == ("keelmq", "n0", 5)
    assert state_to_json(backup.decoded()) == state_to_json(STATE)


@given(st.integers(min_value=0, max_value=len(file_of()) - 1), st.integers(min_value=1, max_value=255))
def test_any_changed_byte_is_refused(position: int, change: int) -> None:
    data = bytearray(file_of())
    data[position] ^= change
    with pytest.raises(BackupFileError):
        decode_backup(bytes(data))


@given(st.integers(min_value=0, max_value=len(file_of()) - 1))
def test_a_file_that_is_cut_short_is_refused(length: int) -> None:
    with pytest.raises(BackupFileError):
        decode_backup(file_of()[:length])


def test_a_newer_version_is_named() -> None:
    with pytest.raises(BackupFileError, match="has version '2'; this release reads version 1"):
        decode_backup(file_of().replace(b"backup 1 ", b"backup 2 ", 1))


# -- the restored state ------------------------------------------------------------------------------------


def test_epochs_and_ids_continue_above_all_that_were_used() -> None:
    state = restored_state(STATE, brokers_max=100)
    assert isinstance(state, State)
    group = state.brokers["b"]
    assert group.master_broker_id is None and group.sync_state_set == {1, 2}
    assert group.replicas == GROUP.replicas
    assert (group.master_epoch, group.sync_state_set_epoch) == (7 + RAISE_EPOCHS, 9 + RAISE_EPOCHS)
    assert group.next_broker_id == group.id_floor == 4 + RAISE_IDS
    assert state.cleaned["old"] == Cleaned(5 + RAISE_EPOCHS, 6 + RAISE_EPOCHS, 3 + RAISE_IDS)
    assert (state.log_id, state.event_count) == ("", 0)
    assert state.settings == STATE.settings


def test_an_id_that_was_assigned_after_the_backup_gets_no_second_owner() -> None:
    state = restored_state(STATE, brokers_max=100)
    assert isinstance(state, State)

    def apply_for(broker_id: int) -> ApplyBrokerId:
        return ApplyBrokerId(
            cluster_name="C", broker_name="b", broker_id=broker_id, broker_address="h4:1",
            register_check_code="h4:1;9", v=3, brokers_max=100,
        )  # fmt: skip

    assert check_broker_id(state, apply_for(4)) is not None
    assert check_broker_id(state, apply_for(4 + RAISE_IDS)) is None


def test_a_group_without_a_master_yet_may_have_had_one_since() -> None:
    """So it is not new: the first of its replicas that asks must not become master without a comparison."""
    new = replace(
        GROUP, sync_state_set=frozenset(), sync_state_set_epoch=0, master_broker_id=None, master_epoch=0
    )
    state = restored_state(replace(STATE, brokers={"b": new}), brokers_max=100)
    assert isinstance(state, State)
    assert state.brokers["b"].sync_state_set == frozenset(GROUP.replicas)
    assert not state.brokers["b"].is_new


def test_a_group_that_is_too_large_for_an_event_is_restored() -> None:
    """Brokers that get a new id at each start make one. It must not keep the others from coming back."""
    replicas = {number: Replica(f"{'h' * 200}-{number}:1", "x;1") for number in range(1, 1_001)}
    large = replace(GROUP, replicas=replicas, next_broker_id=1_001, id_floor=1)
    state = restored_state(replace(STATE, brokers={"b": large}), brokers_max=2_000)
    assert isinstance(state, State) and state.brokers["b"].replicas == replicas


def test_no_room_for_more_epochs_is_refused() -> None:
    spent = replace(STATE, brokers={"b": replace(GROUP, master_epoch=2**30 - 5)})
    refused = restored_state(spent, brokers_max=100)
    assert isinstance(refused, Refused) and "an epoch above" in refused.remark


# -- members -----------------------------------------------------------------------------------------------


async def test_restored_members_start_with_the_state(configs: dict[Path, ControllerConfig]) -> None:
    check_targets(configs)
    state = restored_from(file_of(), configs.values())
    write_members(configs.values(), state)
    async with started(*configs.values()) as running:
        await until(lambda: any(each.is_active for each, _ in running), "an active member")
        await until(lambda: all(machine.state.brokers for _, machine in running), "the state everywhere")
        for _, machine in running:
            assert state_to_json(machine.state) == state_to_json(state)
    async with started(
        *list(configs.values())[:2]
    ) as running:  # and again, with a majority, from the journal
        await until(lambda: any(each.is_active for each, _ in running), "an active member")
        assert all(state_to_json(machine.state) == state_to_json(state) for _, machine in running)


async def test_a_group_of_one_member(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = ControllerConfig.model_validate(
        {
            "controllerDLegerGroup": "keelmq",
            "controllerDLegerSelfId": "n0",
            "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
            "controllerStorePath": str(tmp_path),
        }
    )
    write_members([config], restored_from(file_of(), [config]))
    async with started(config) as ((replicator, machine),):
        await until(lambda: replicator.is_active, "an active member")
        assert machine.state.brokers["b"].master_epoch == 7 + RAISE_EPOCHS


@pytest.mark.parametrize("other", ["empty", "with other epochs"])
async def test_members_of_different_restores_do_not_form_a_group(
    configs: dict[Path, ControllerConfig], other: str
) -> None:
    *restored, last = configs.values()
    write_members(restored, restored_from(file_of(), configs.values()))
    if other != "empty":
        write_members([last], restored_from(file_of(), configs.values(), raise_epochs=5))
    async with started(*configs.values()) as running:
        await until(
            # each has heard from both others, and decides at once whether to promise and to join
            lambda: all(
                len(each.status()["connected"]) == 2 and not each.status()["waitsFor"] for each, _ in running
            ),
            "members that have heard from each other",
        )
        standings = [each.status()["standing"] for each, _ in running]
        assert standings == ["promised", "promised", "new" if other == "empty" else "promised"]
        assert not any(each.is_active for each, _ in running)


async def test_a_member_whose_restore_did_not_end_does_not_start(
    configs: dict[Path, ControllerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would join the others with an empty state, and lose theirs when it leads."""
    *restored, last = configs.values()
    state = restored_from(file_of(), configs.values())
    write_members(restored, state)

    def full(path: Path, data: bytes, suffix: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("namesrv.plugins.controller.restore.replace_file", full)
    with pytest.raises(OSError, match="No space"):
        write_members([last], state)
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="an earlier restore into it is incomplete"):
        async with started(last):
            pass
    shutil.rmtree(last.directory)
    write_members([last], state)
    async with started(last, restored[0]) as running:
        await until(lambda: all(machine.state.brokers for _, machine in running), "the state everywhere")


def test_a_directory_in_use_and_a_running_controller_are_refused(
    configs: dict[Path, ControllerConfig],
) -> None:
    first = next(iter(configs.values()))
    first.directory.mkdir(parents=True)
    (first.directory / "raft.journal").write_bytes(b"x")
    with pytest.raises(RestoreError, match="is not empty"):
        check_targets(configs)
    (first.directory / "raft.journal").unlink()
    check_targets(configs)
    address = configs[Path("n2.conf")].raft_addresses["n2"]
    with socket.create_server(address), pytest.raises(RestoreError, match="controller n2 runs"):
        check_targets(configs)


def test_files_of_two_groups_are_refused(configs: dict[Path, ControllerConfig]) -> None:
    last = configs[Path("n2.conf")].model_copy(update={"controller_d_leger_group": "another"})
    with pytest.raises(RestoreError, match=r"n0\.conf and n2\.conf have different controllerDLegerGroup"):
        check_targets(configs | {Path("n2.conf"): last})
    with pytest.raises(RestoreError, match=r"n0\.conf and n3\.conf are both of controller n0"):
        check_targets(configs | {Path("n3.conf"): configs[Path("n0.conf")]})
