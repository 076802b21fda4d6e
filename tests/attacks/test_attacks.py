"""Every attack against real processes: with everything off, as `make docs` shows, and with everything
on, where none may succeed."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.attacks import grpc_port
from tests.attacks.attacker import Attacker, request_of
from tests.attacks.catalogue import in_order
from tests.attacks.ha_port import proves_membership
from tests.attacks.http_ports import basic
from tests.attacks.model import Attack
from tests.attacks.stage import (
    ADMIN,
    ALICE,
    ALICES,
    BROKER_NAME,
    CLUSTER_NAME,
    MALLORY,
    MEMBER,
    MEMBER_NAME,
    ORDERS,
    OWN,
    SECRET,
    Stage,
    pull_fields,
    send_fields,
)
from tests.attacks.tls import showing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(120),
    # Attacks cut connections off in the middle; the collector may find one of them in a later test.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

OPEN_SLICE = 12
"""CI tries every twelfth attack on an open cluster: that shows no protection, but what the document says."""

_numbers = count()


@pytest.fixture(scope="module")
def open_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("open"), "open") as stage:
        yield stage


@pytest.fixture
def ruined_stage(tmp_path: Path) -> Iterator[Stage]:
    """For one attack, after which it is not the same."""
    with Stage(tmp_path, "open") as stage:
        yield stage


@pytest.fixture
def stage(attack: Attack, request: pytest.FixtureRequest) -> Stage:
    """What an attack on an open cluster is tried on."""
    found: Stage = request.getfixturevalue("ruined_stage" if attack.ruins else "open_stage")
    return found


@pytest.fixture(scope="module")
def closed_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("closed"), "closed") as stage:
        yield stage


@pytest.fixture
def attacker(closed_stage: Stage) -> Attacker:
    return Attacker(closed_stage, next(_numbers))


class TestWhoMay:
    """Those who may are served in the closed cluster: its refusals are no accident."""

    async def test_members(self, attacker: Attacker) -> None:
        request = request_of(1012, {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME})
        answer = await attacker.send("controller", request.signed(MEMBER, proof=True))
        assert answer.code == 0, str(answer)
        files = attacker.stage.authority.issue(MEMBER_NAME, stem="another-member")
        answer = await attacker.send("controller", request, tls=showing(files))
        assert answer.code == 0, str(answer)
        assert await proves_membership(attacker.stage)

    async def test_administrators(self, attacker: Attacker) -> None:
        for server, code in (("broker", 26), ("replica", 26), ("namesrv", 319), ("controller", 1010)):
            answer = await attacker.ask(server, code, by=ADMIN, proof=True)
            assert answer.code == 0, f"{server}: {answer}"

    async def test_administrators_over_http(self, attacker: Attacker) -> None:
        answer = await attacker.http("namesrv", "GET", "/v1/config", headers=basic(ADMIN))
        assert answer.code == 200, str(answer)

    async def test_users(self, attacker: Attacker) -> None:
        for server in ("broker", "replica"):
            answer = await attacker.ask(server, 11, pull_fields(ORDERS, ALICES), by=ALICE)
            assert SECRET in answer.body, f"{server}: {answer}"
        answer = await attacker.ask("broker", 310, send_fields(OWN), b"own", by=MALLORY)
        assert answer.code == 0, str(answer)
        answer = await attacker.ask("namesrv", 105, {"topic": OWN}, by=MALLORY)
        assert answer.code == 0, str(answer)

    async def test_users_over_grpc(self, attacker: Attacker) -> None:
        """Also what the replica forwards."""
        for server in ("grpc", "grpc-replica"):
            assert await grpc_port.may(attacker, server) == []


@pytest.mark.parametrize("attack", in_order(), ids=lambda attack: attack.id)
async def test_closed(attacker: Attacker, attack: Attack) -> None:
    """No attack succeeds with everything on, and the attacker is told what the table says."""
    outcome = await attack.how(attacker)
    assert not outcome.succeeded, outcome.answer
    assert attack.answer in outcome.answer


def sliced() -> Iterator[object]:
    for at, attack in enumerate(in_order()):
        marks = () if at % OPEN_SLICE == 0 else (pytest.mark.long,)
        yield pytest.param(attack, marks=marks, id=attack.id)


@pytest.mark.parametrize("attack", list(sliced()))
async def test_open(stage: Stage, attack: Attack) -> None:
    """What docs/reference/attacks.md says about a cluster with everything off is true."""
    outcome = await attack.how(Attacker(stage, next(_numbers)))
    assert outcome.succeeded == attack.open, outcome.answer
