"""Parts of replies that several requests share."""

from typing import NoReturn

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import CommandError
from keelmq.remoting.operations import controller as wire
from namesrv.plugins.controller.core.state import BrokerSet
from namesrv.plugins.controller.raft.api import Replicator


def master_info(broker_set: BrokerSet | None, replicator: Replicator) -> wire.MasterInfo:
    """Returns master and epochs of the group, and the controllers that were added at run time.

    `broker_set` None: the reply names no master.
    """
    if broker_set is None:
        return wire.MasterInfo(controllers=added_controllers(replicator))
    return wire.MasterInfo(
        master_broker_id=broker_set.master_broker_id,
        master_address=broker_set.master_address,
        master_epoch=broker_set.master_epoch,
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
        controllers=added_controllers(replicator),
    )


def sync_state_set(broker_set: BrokerSet) -> wire.SyncStateSet:
    """Returns the SyncStateSet of the group, sorted, with its epoch."""
    return wire.SyncStateSet(
        sync_state_set=sorted(broker_set.sync_state_set),
        sync_state_set_epoch=broker_set.sync_state_set_epoch,
    )


def added_controllers(replicator: Replicator) -> str | None:
    """Returns the request addresses of members that came by addController; None: there are none."""
    return ";".join(address_text(address) for _, address in sorted(replicator.added.items())) or None


def address_text(address: tuple[str, int]) -> str:
    """Returns host:port."""
    return f"{address[0]}:{address[1]}"


def invalid(remark: str) -> NoReturn:
    """Raises CommandError: CONTROLLER_INVALID_REQUEST."""
    raise CommandError(ResponseCode.CONTROLLER_INVALID_REQUEST, remark)
