"""Whether a registration (1003) is of the broker that has the id. Pure; docs/adr/0048.

The request has only the number, so a copy of a broker's disk looks like the broker itself, or like one that
moved.
"""

from keelmq.remoting.codes import ResponseCode
from namesrv.plugins.controller.core.elect import LiveView
from namesrv.plugins.controller.core.rules import Refused
from namesrv.plugins.controller.core.state import Replica


def check_owner(
    view: LiveView,
    broker_id: int,
    replica: Replica,
    broker_address: str,
    check_code: str | None,
    connection_id: int,
) -> Refused | None:
    """Refused: the id belongs to another broker, or another process uses it, at the recorded address or over
    another connection with the same address. connection_id: of the request; 0: unknown."""
    if check_code not in (None, replica.check_code):
        return _not_the_owner(broker_id, replica.address)
    if replica.address != broker_address:
        works = view.works_at(broker_id, replica.address)
    else:  # a restarted broker's former connection has closed
        works = view.works_over_another(broker_id, connection_id)
    if not works:
        return None
    return _second_owner(broker_id, replica.address, is_sure=broker_id in view.live)


def _second_owner(broker_id: int, owner_address: str, *, is_sure: bool) -> Refused:
    """Returns the refusal of a second address for a broker at work: its files were copied, and two brokers
    with one id would both acknowledge messages. not is_sure: a new active controller waits for it first."""
    if not is_sure:
        return Refused(
            ResponseCode.SYSTEM_BUSY,
            f"brokerId {broker_id} may be in use at {owner_address}: this controller has just become active, "
            "and waits for a heartbeat from there; repeat the request",
        )
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"brokerId {broker_id} is in use at {owner_address}: stop that broker if this one replaces it; a copy"
        " of its files must not run at the same time",
    )


def _not_the_owner(broker_id: int, owner_address: str) -> Refused:
    """Returns the refusal of a broker that got its id from other controllers, whose store is lost: its log is
    not that of the broker which has the id now, also while that one is down."""
    return Refused(
        ResponseCode.CONTROLLER_INVALID_REQUEST,
        f"brokerId {broker_id} belongs to another broker, registered at {owner_address}: remove .broker.meta"
        " of this broker to join under a new id",
    )
