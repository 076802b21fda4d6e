"""Checks the brokers of a container for shared ports and directories, before any of them is started.

RocketMQ's container detects an occupied port when it binds it, and never two stores in one directory. Pure.
"""

from collections.abc import Iterable
from typing import NamedTuple

from broker.container.core.identity import NOT_APPLIED, BrokerIdentity


class BrokerPlan(NamedTuple):
    """The resources that a broker is about to use. ports: {number: its key}. directories: {key: path} of
    directories (or a file) that only this broker may write, absolute and without links."""

    config_path: str
    identity: BrokerIdentity
    ports: dict[int, str]
    directories: dict[str, str]


def problems_of(new: BrokerPlan, others: Iterable[BrokerPlan], own_ports: dict[int, str]) -> list[str]:
    """Returns why `new` cannot be in one container with `others`; empty: it can. own_ports: those of the
    container itself, with their purposes."""
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
