"""Which registrations (103) a name server refuses. Pure.

A refused registration changes nothing (RocketMQ has removed the sender's old id by then).
"""

from collections.abc import Mapping

from namesrv.core.elected import ElectedMasters
from namesrv.core.groups import BrokerGroup
from namesrv.core.topics import NAME_CHARS_MAX, TopicTable
from namesrv.core.values import Address, LiveBroker, Registration, RegistrationRefused, StaleRegistration

ADDRESSES_MAX = 100_000
"""Maximum number of registered brokers. The largest known clusters have some thousands."""


def refuse(
    request: Registration,
    group: BrokerGroup | None,
    live: Mapping[Address, LiveBroker],
    topics: TopicTable,
    elected: ElectedMasters,
) -> StaleRegistration | RegistrationRefused | None:
    """Returns why the registration is refused; None: it is accepted. `group`: the one of its brokerName."""
    known = (request.cluster_name, request.broker_addr) in live
    if not known and len(live) >= ADDRESSES_MAX:
        return RegistrationRefused(f"{ADDRESSES_MAX} brokers are registered, which is the maximum")
    problem = request.malformed(NAME_CHARS_MAX)
    if problem is None:
        problem = topics.refuse(request.broker_name, request.body.topics.keys())
    if problem is not None:
        return RegistrationRefused(problem)
    if group is not None and group.cluster_name != request.cluster_name:
        return RegistrationRefused(
            f"brokerName {request.broker_name} belongs to cluster {group.cluster_name}, "
            f"not {request.cluster_name}: choose another brokerName"
        )
    election = elected.refuses(request)
    if election is not None:
        return StaleRegistration(election.master_addr, election.master_epoch)
    holder = None if group is None else group.addrs.get(request.broker_id)
    if holder is None or holder == request.broker_addr:
        return None
    held = live[request.cluster_name, holder].data_version.state_version
    if held > request.body.data_version.state_version:
        return StaleRegistration(holder, held)  # #6316: an old master must not take id 0 back
    return None
