"""Every attack of tests/attacks is tried, and says what it is."""

from collections import Counter

from tests.attacks.catalogue import ATTACKS, GROUPS, MODULES
from tests.unit.docs.test_documentation import ROOT

TOOLKIT = {
    "attacker",
    "catalogue",
    "chains",
    "container_program",
    "frames",
    "judging",
    "line",
    "model",
    "stage",
    "test_attacks",
}

ATTACKS_MIN = {
    "code": 11,
    "grpc": 42,
    "container": 44,
    "escalate": 48,
    "flood": 14,
    "guess": 8,
    "http": 39,
    "log": 47,
    "mismatch": 36,
    "name": 13,
    "replay": 32,
    "replica": 31,
    "tls": 20,
    "topic": 70,
}
"""How many attacks each group has at least: one that goes must go here, too, where a reviewer sees it."""


def test_every_module_with_attacks_is_in_the_catalogue() -> None:
    """An attack in a module that nobody imports is never tried."""
    found = {path.stem for path in (ROOT / "tests" / "attacks").glob("[!_]*.py")}
    assert found - TOOLKIT == {module.__name__.rpartition(".")[2] for module in MODULES}


def test_every_group_has_attacks() -> None:
    groups = Counter(attack.group for attack in ATTACKS.values())
    assert set(groups) == set(GROUPS) == set(ATTACKS_MIN)


def test_no_attack_goes_unnoticed() -> None:
    groups = Counter(attack.group for attack in ATTACKS.values())
    assert {group: groups[group] for group, least in ATTACKS_MIN.items() if groups[group] < least} == {}


def test_an_attack_says_what_it_is() -> None:
    for attack in ATTACKS.values():
        assert attack.name and attack.asset and attack.success, attack.id
        assert "\n" not in attack.name + attack.success + attack.answer, attack.id
