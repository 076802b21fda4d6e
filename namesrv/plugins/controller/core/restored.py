"""The state with which restored controllers begin, made of the state in a backup. Pure.

After the backup was taken, the lost controllers may have held elections and assigned broker ids. Epochs and
ids therefore continue far above those of the backup: no epoch gets a second master, and no id a second owner.
"""

import sys
from typing import Final

from msgspec.structs import replace

from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import BrokerSet, Cleaned, State
from namesrv.plugins.controller.core.transfer import check_import

RAISE_EPOCHS: Final = 1_000_000
"""By how much epochs grow: more than elections that one group can have had since any useful backup."""
RAISE_IDS: Final = 1_000
"""By how much the next broker id of each group grows: more than brokers that joined it since the backup."""


def restored_state(
    saved: State, *, brokers_max: int, raise_epochs: int = RAISE_EPOCHS, raise_ids: int = RAISE_IDS
) -> State | Refused:
    """Returns the first state of restored controllers. Refused: the saved state has faults, or its epochs
    have no room left.

    Each group has its replicas and its SyncStateSet (all replicas, if it had none yet), but no master, so
    that its first term has a new epoch. The log has no name and no events yet: its first active controller
    names it. Settings and past elections stay.
    """
    state = replace(
        saved,
        brokers={
            name: _without_master(each, raise_epochs, raise_ids) for name, each in saved.brokers.items()
        },
        cleaned={
            name: Cleaned(
                each.master_epoch + raise_epochs,
                each.sync_state_set_epoch + raise_epochs,
                each.next_broker_id + raise_ids,
            )
            for name, each in saved.cleaned.items()
        },
        event_count=0,
        log_id="",
    )
    refused = check_import(State(), state, brokers_max, group_bytes_max=sys.maxsize)  # it becomes a snapshot
    return state if refused is None else refused


def _without_master(group: BrokerSet, raise_epochs: int, raise_ids: int) -> BrokerSet:
    """An id that the lost controllers assigned after the backup is below id_floor: no other broker gets it. A
    group that had no master yet may have had one since: the election compares all its replicas."""
    next_broker_id = group.next_broker_id + raise_ids
    return replace(
        group,
        master_broker_id=None,
        master_epoch=group.master_epoch + raise_epochs,
        sync_state_set=group.sync_state_set or frozenset(group.replicas),
        sync_state_set_epoch=group.sync_state_set_epoch + raise_epochs,
        next_broker_id=next_broker_id,
        id_floor=next_broker_id,
        term=None,
    )
