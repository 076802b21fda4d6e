"""Restores controllers from a backup: writes the first files of a new group's members, while none runs.

Every member gets the same snapshot, with the restored state (core/restored.py) and no log behind it, and a
promise to join exactly the members that were restored from the same backup with the same options. So a group
of which a member was not restored, or was restored otherwise, does not start: two states could never both be
taken for the group's.
"""

import hashlib
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from namesrv.plugins.controller.backup_file import BackupFileError, decode_backup
from namesrv.plugins.controller.config import BROKERS_MAX, ControllerConfig
from namesrv.plugins.controller.core.restored import RAISE_EPOCHS, RAISE_IDS, restored_state
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import State
from namesrv.plugins.controller.core.state_codec import state_to_json
from namesrv.plugins.controller.raft.codec import COMMAND_NO_OP, VoteEligibility
from namesrv.plugins.controller.raft.membership.vote_eligibility import INCARNATION_BYTES, save
from namesrv.plugins.controller.raft.storage.directory import DataDirectory
from namesrv.plugins.controller.raft.storage.files import replace_file
from namesrv.plugins.controller.raft.storage.snapshot import Snapshot, encode_snapshot

CONNECT_S: Final = 1.0
_NO_OP: Final = bytes([COMMAND_NO_OP])
_PREVIOUS, _LAST = (_NO_OP, 1, 0), (_NO_OP, 2, 0)
"""The log begins behind these: index and term of a group that has not elected a leader yet."""


class RestoreError(Exception):
    """The restore cannot be done; nothing was written. The text says why, and what to do."""


def restored_from(
    data: bytes,
    configs: Iterable[ControllerConfig],
    *,
    raise_epochs: int = RAISE_EPOCHS,
    raise_ids: int = RAISE_IDS,
) -> State:
    """Returns the first state of controllers that are restored from this backup file. Raises
    RestoreError."""
    try:
        saved = decode_backup(data).decoded()
    except BackupFileError as error:
        raise RestoreError(str(error)) from None
    limits = [each.controller_brokers_max for each in configs]
    brokers_max = max([int(saved.settings.get(BROKERS_MAX, 0)), *limits])
    state = restored_state(saved, brokers_max=brokers_max, raise_epochs=raise_epochs, raise_ids=raise_ids)
    if isinstance(state, Refused):
        raise RestoreError(state.remark)
    return state


def check_targets(configs: Mapping[Path, ControllerConfig]) -> None:
    """Raises RestoreError: the files are not of one group, a directory is not empty, or a controller of the
    group runs."""
    first_path, first = next(iter(configs.items()))
    seen: dict[str, Path] = {}
    for path, config in configs.items():
        member = config.controller_d_leger_self_id
        if member in seen:
            raise RestoreError(f"{seen[member]} and {path} are both of controller {member}")
        seen[member] = path
        if _group_of(config) != _group_of(first):
            raise RestoreError(
                f"{first_path} and {path} have different controllerDLegerGroup, controllerDLegerPeers or "
                "controllerRaftPeers: restore the members of one group"
            )
        if config.directory.exists() and any(config.directory.iterdir()):
            raise RestoreError(
                f"{config.directory} is not empty. If its controller is permanently lost, move the "
                "directory away (do not delete it yet), and restore again"
            )
    for member, address in first.raft_addresses.items():
        if _answers(address):
            raise RestoreError(
                f"controller {member} runs: something answers at {address[0]}:{address[1]}. A restore is for "
                "a group that is lost; a single lost member gets all data from the others. Stop all first"
            )


def write_members(configs: Iterable[ControllerConfig], state: State) -> list[Path]:
    """Writes the directory of each member, durably. Returns the directories. Raises OSError, ConfigError."""
    content = state_to_json(state)
    return [_write(config, content) for config in configs]


def _write(config: ControllerConfig, state: bytes) -> Path:
    self_id, cluster_id = config.controller_d_leger_self_id, config.controller_d_leger_group
    promised = _promised(cluster_id, config.raft_addresses, state)
    snapshot = Snapshot(
        cluster_id=cluster_id,
        members=tuple(sorted(config.raft_addresses)),
        last=_LAST,
        previous=_PREVIOUS,
        claimed_term=0,
        state=state,
    )
    directory = DataDirectory(config.directory)
    directory.open(cluster_id, self_id)
    try:
        # A member with the promise alone would join the others with an empty state, and could lead them; with
        # the snapshot alone, it would join others with empty directories.
        directory.begin_restore()
        save(
            directory.vote_eligibility,
            VoteEligibility(promised[self_id], "promised", tuple(promised.items())),
        )
        replace_file(directory.snapshot, encode_snapshot(snapshot), ".snapshot.new")
        directory.end_restore()
    finally:
        directory.close()
    return config.directory


def _promised(cluster_id: str, members: Iterable[str], state: bytes) -> dict[str, str]:
    """Returns member -> the incarnation of its directory, sorted: the same for each member of one restore."""
    names = sorted(members)
    of_all = hashlib.sha256("\0".join((cluster_id, *names)).encode() + b"\0" + state).digest()
    size = 2 * INCARNATION_BYTES
    return {name: hashlib.sha256(of_all + name.encode()).hexdigest()[:size] for name in names}


def _group_of(config: ControllerConfig) -> tuple[object, ...]:
    return config.controller_d_leger_group, config.request_addresses, config.raft_addresses


def _answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=CONNECT_S):
            return True
    except OSError:
        return False
