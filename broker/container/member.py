"""Member: a broker of a container, from the moment its file is named."""

from pathlib import Path

import msgspec

from broker.container.core.identity import NOT_APPLIED, BrokerIdentity
from broker.container.core.plan import BrokerPlan
from keelmq.remoting.codes import MASTER_ID
from keelmq.remoting.operations.container import BrokerState, InnerBroker


class Member(msgspec.Struct):
    """A broker that is, or should be, in this container. plan: None if its file could not be read. reason:
    why it is quarantined. retries: how often it may still be started without a request."""

    path: Path
    plan: BrokerPlan | None
    worker: int
    state: BrokerState
    reason: str = ""
    retries: int = 0

    @property
    def name(self) -> str:
        """The canonical name, or the file of a broker that could not be read."""
        return str(self.path) if self.plan is None else self.plan.identity.canonical_name


def described(member: Member) -> InnerBroker:
    """Returns a broker of which no host knows."""
    identity = member.plan.identity if member.plan else BrokerIdentity("", "", NOT_APPLIED)
    return InnerBroker(
        broker_cluster_name=identity.cluster,
        broker_name=identity.name,
        broker_id=identity.broker_id,
        canonical_name=member.name,
        state=member.state,
        reason=member.reason,
        config_path=str(member.path),
        store_path=member.plan.directories["storePathRootDir"] if member.plan else "",
        worker=member.worker,
    )


def may_lead(plan: BrokerPlan) -> bool:
    """Whether the broker is a master, or may become one at its start: in controller mode, any may."""
    return plan.identity.broker_id in (MASTER_ID, NOT_APPLIED)
