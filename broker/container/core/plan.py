"""Checks the brokers of a container together, before any of them is started: what two of them cannot share.

RocketMQ's container finds an occupied port when it binds it, and two stores in one directory never. Pure.
"""

from collections.abc import Iterable
from typing import NamedTuple

from broker.container.core.identity import NOT_APPLIED, BrokerIdentity


class BrokerPlan(NamedTuple):
    """What a broker is about to use. ports: {number: key that it comes from}. directories: {key: path} of
    those that nobody else may write into, or of a file, absolute and without links."""

    config_path: str
    identity: BrokerIdentity
    ports: dict[int, str]
    directories: dict[str, str]


def problems_of(new: BrokerPlan, others: Iterable[BrokerPlan], own_ports: dict[int, str]) -> list[str]:
    """Returns why `new` cannot be in one container with `others`; empty: it can. own_ports: those of the
    container itself, with what they are for."""
    found = [
        f"port {port} ({key}) is the container's own ({own_ports[port]}); choose another {key}"
        for port, key in new.ports.items()
        if port in own_ports
    ]
    for other in others:
        found += _clashes(new, other)
    return found


def _clashes(new: BrokerPlan, other: BrokerPlan) -> Iterable[str]:
    name = f"{other.identity.canonical_name} ({other.config_path})"
    if new.identity == other.identity:
        yield f"{new.identity.canonical_name} has already been added to current broker container, by {name}"
    elif new.identity[:2] == other.identity[:2] and NOT_APPLIED in (
        new.identity.broker_id,
        other.identity.broker_id,
    ):
        yield f"{name} is of the same group, and two replicas in one process are lost together"
    for port, key in new.ports.items():
        if port in other.ports:
            yield (
                f"port {port} ({key}) is the {other.ports[port]} of {name}: a broker has listenPort - 2, "
                "listenPort and listenPort + 1"
            )
    for key, directory in new.directories.items():
        for their_key, theirs in other.directories.items():
            if _overlap(directory, theirs):
                yield (
                    f"{key} {directory} is the same as {their_key} {theirs} of {name}, or one is in the other"
                )


def _overlap(a: str, b: str) -> bool:
    return f"{a}/".startswith(f"{b}/") or f"{b}/".startswith(f"{a}/")
