"""An attack as a value: what it is after, how it is done, what counts as its success, and the answer that it
should get. The modules of this package declare them with @attack; test_attacks.py runs them."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from tests.attacks.attacker import Attacker


@dataclass(frozen=True, slots=True)
class Outcome:
    """`answer`: what the attacker saw, for the report."""

    succeeded: bool
    answer: str


How = Callable[[Attacker], Coroutine[Any, Any, Outcome]]


@dataclass(frozen=True, slots=True)
class Attack:
    """id: "<group>/<name>". asset: what the attacker is after. success: what counts as success.

    answer: a part of what the attacker sees in a cluster with security on; "": any refusal will do. open:
    whether the attack succeeds with everything off. ruins: the cluster is not the same after it succeeded, so
    it gets one of its own where it succeeds."""

    id: str
    name: str
    asset: str
    success: str
    answer: str
    open: bool
    ruins: bool
    how: How

    @property
    def group(self) -> str:
        return self.id.partition("/")[0]


GROUPS: Final = {
    "replica": "Become a replica, or the master",
    "log": "Lose a master's log, or its route",
    "topic": "Read, change or delete topics and groups of others",
    "http": "The HTTP ports",
    "grpc": "The gRPC port",
    "code": "Every request code, from everybody who may not",
    "container": "A broker container",
    "replay": "Signatures and proofs",
    "tls": "Certificates and TLS",
    "name": "Names and settings with tricks in them",
    "mismatch": "A request that names one thing and means another",
    "escalate": "Users and ACLs",
    "guess": "Guessing",
    "flood": "Flooding",
}
"""Group -> the heading in docs/reference/attacks.md."""

ATTACKS: Final[dict[str, Attack]] = {}
"""All of them, by id, in the order in which they are declared."""


def attack(
    id: str,
    name: str,
    *,
    asset: str,
    success: str,
    answer: str = "",
    open: bool = True,
    ruins: bool = False,
) -> Callable[[How], How]:
    """Declares the decorated function as an attack."""

    def declare(how: How) -> How:
        assert id not in ATTACKS, f"{id} is declared twice"
        assert id.partition("/")[0] in GROUPS, f"{id} is of no group"
        ATTACKS[id] = Attack(id, name, asset, success, answer, open, ruins, how)
        return how

    return declare


def in_order() -> list[Attack]:
    """Returns all attacks, those that need clusters of their own last."""
    return sorted(ATTACKS.values(), key=lambda each: each.ruins)
