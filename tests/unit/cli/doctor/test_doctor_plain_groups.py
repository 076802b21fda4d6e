"""Groups without controllers, as files and as name servers show them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config.broker_config import BrokerConfig
from cli.doctor.plain_groups import plain_rules
from keelmq.health.findings import Level
from keelmq.health.plain_routes import plain_routes


def broker(role: str, broker_id: int = 0, cluster: str = "C") -> BrokerConfig:
    keys = {"brokerRole": role, "brokerId": broker_id, "brokerClusterName": cluster}
    return BrokerConfig.model_validate({**keys, "namesrvAddr": "10.0.0.1:9876"})


MASTER, SLAVE = broker("ASYNC_MASTER"), broker("SLAVE", 1)


@pytest.mark.parametrize(
    ("brokers", "level", "words"),
    [
        ({"m": MASTER, "s": SLAVE}, Level.OK, "one master, 1 slave with ids of their own"),
        ({"m": MASTER, "n": MASTER}, Level.FAILED, "C:a: 2 masters have this brokerName: m, n"),
        ({"m": MASTER, "s": SLAVE, "t": SLAVE}, Level.FAILED, "2 slaves have brokerId 1: s, t"),
        ({"m": MASTER, "s": SLAVE, "t": SLAVE}, Level.FAILED, "of its own; 2 is free"),
        ({"s": SLAVE}, Level.WARNING, "no file configures its master, only slaves: s; next: give"),
    ],
)
def test_files(brokers: dict[str, BrokerConfig], level: Level, words: str) -> None:
    found = list(plain_rules("a", brokers))
    assert [each.level for each in found] == [level]
    assert words in found[0].line()


def test_what_is_no_group_of_its_own() -> None:
    assert not list(plain_rules("a", {"m": MASTER}))
    assert not list(plain_rules("a", {"m": MASTER, "n": broker("ASYNC_MASTER", 0, "other")}))


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        ({"n1": {0: "m:1", 1: "s:1"}, "n2": {0: "m:1", 1: "s:1"}}, ""),
        (
            {"n1": {0: "m:1"}, "n2": {0: "x:1"}},
            "2 masters of this brokerName: m:1, x:1; next: give one of them another brokerName",
        ),
        ({"n1": {0: "m:1", 1: "s:1"}, "n2": {0: "m:1", 1: "t:1"}}, "2 brokers have brokerId 1: s:1, t"),
        ({"n1": {1: "s:1"}}, "no master, only slaves without controllers: 1 at s:1"),
        ({"n1": {0: "m:1", 1: "s:1"}, "n2": {}}, ""),
    ],
)
def test_routes(shown: dict[str, dict[int, str]], words: str) -> None:
    found = list(plain_routes("a", shown))
    assert [each.level for each in found] == ([Level.FAILED] if words else [])
    assert not words or words in found[0].line()


TABLES = st.dictionaries(st.integers(0, 3), st.sampled_from("abc"), max_size=4)


@given(st.dictionaries(st.sampled_from(["n1", "n2", "n3"]), TABLES))
def test_a_route_is_wrong_exactly_if_an_id_is_twice_or_the_master_lacks(
    shown: dict[str, dict[int, str]],
) -> None:
    pairs = {pair for table in shown.values() for pair in table.items()}
    ids = {number for number, _ in pairs}
    lacks = bool(ids) and 0 not in ids
    twice = sum(len({at for number, at in pairs if number == each}) > 1 for each in ids)
    assert len(list(plain_routes("a", shown))) == twice + lacks
