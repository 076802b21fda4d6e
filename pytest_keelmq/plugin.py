"""Fixtures for the tests of programs that use KeelMQ: a running broker, wherever KeelMQ is installed.

    def test_orders(keelmq_broker):
        with BlockingProducer(keelmq_broker.namesrv_addr) as producer:
            producer.send(Message("orders", b"1"))

Every pytest run in an environment with KeelMQ imports this module, so it imports KeelMQ only when it is used.
"""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_keelmq.cluster import TestBroker


ROOT = Path(__file__).parents[1]
PACKAGES = ("broker", "keelmq", "namesrv")


def _test_broker() -> "type[TestBroker]":
    try:
        from pytest_keelmq.cluster import TestBroker
    except ImportError:
        hidden = _hidden_package()
        if hidden is None:
            raise
    else:
        return TestBroker
    pytest.fail(hidden, pytrace=False)


def _hidden_package() -> str | None:
    """Returns an explanation if a package of the tested program has the name of one of ours and hides it."""
    for name in PACKAGES:
        spec = find_spec(name)
        where = spec.origin if spec is not None else None
        if where is not None and not Path(where).is_relative_to(ROOT):
            return (
                f"{where} hides the package {name!r} of KeelMQ, which is in {ROOT}: "
                f"move yours into a package of its own, e.g. myapp/{name}"
            )
    return None


@pytest.fixture
def keelmq_settings() -> Mapping[str, object]:
    """Returns RocketMQ's keys for keelmq_broker. Override it in a module, a class or conftest.py."""
    return {}


@pytest.fixture(scope="session")
def keelmq_session_settings() -> Mapping[str, object]:
    """Returns RocketMQ's keys for keelmq_session_broker. Override it in conftest.py."""
    return {}


@pytest.fixture
def keelmq_broker(tmp_path: Path, keelmq_settings: Mapping[str, object]) -> Iterator["TestBroker"]:
    """Starts a name server and a broker for one test."""
    with _test_broker()(tmp_path / "keelmq", keelmq_settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def keelmq_session_broker(
    tmp_path_factory: pytest.TempPathFactory, keelmq_session_settings: Mapping[str, object]
) -> Iterator["TestBroker"]:
    """Starts one for all tests of the session: each test should use its own topics and groups."""
    with _test_broker()(tmp_path_factory.mktemp("keelmq"), keelmq_session_settings) as broker:
        yield broker
