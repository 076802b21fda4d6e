"""A slice of the fuzzer of the gRPC port (`keelmq fuzz grpc` runs the rest), and tests of the fuzzer."""

import asyncio
import re
from random import Random
from typing import Any

import pytest

from proxy.core import statuses
from proxy.server.producers import Producers
from proxy.server.receiving import Receiving
from proxy.server.sending import Sending
from proxy.server.service import MessagingService
from proxy.wire import messaging_pb2 as pb
from tests.fuzz.grpc import fuzz
from tests.fuzz.grpc_inputs import VALID, WEIGHTS, Maker, nothing_given
from tests.fuzz.http2 import VISITS
from tests.support.slices import share

INPUTS = 2_400
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("seed", range(2))
def test_hostile_calls(seed: int) -> None:
    report = fuzz(seed, share(INPUTS))
    assert report.findings == []
    assert report.inputs == share(INPUTS)
    assert report.outcomes["SendMessage", "OK"] > 0 and report.outcomes["Heartbeat", "BAD_REQUEST"] > 0


def test_the_same_seed_gives_the_same_inputs() -> None:
    given = nothing_given()
    one, other = Maker("7", given), Maker("7", given)
    assert [one.make(number) for number in range(300)] == [other.make(number) for number in range(300)]


def test_every_method_is_called() -> None:
    methods = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
    assert set(WEIGHTS) == set(VALID) == set(methods)


def test_every_visit_is_made_of_bytes() -> None:
    for visit in VISITS:
        assert visit(Random(1))


# ---- test the tester: each broken server must be found ----


async def raises(*_: object) -> Any:
    raise ZeroDivisionError("bug")


async def answers_nothing(*_: object) -> Any:
    return pb.SendMessageResponse(status=statuses.OK)


kept: list[Any] = []


async def leaves_a_task(*_: object) -> Any:
    kept.append(asyncio.create_task(asyncio.Event().wait()))
    return pb.NotifyClientTerminationResponse(status=statuses.OK)


@pytest.mark.parametrize(
    ("where", "name", "broken", "found"),
    [
        (Receiving, "ack_message", raises, "the status is 50001|AckMessage failed: ZeroDivisionError"),
        (Sending, "send_message", answers_nothing, "0 entries for"),
        (MessagingService, "notify_client_termination", leaves_a_task, r"left behind: \{[^}]*'tasks'"),
        (Producers, "ended", lambda *_: None, r"left behind: \{[^}]*'streams'"),
    ],
)
def test_a_broken_server_is_found(
    where: type, name: str, broken: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, name, broken)
    monkeypatch.setattr("tests.fuzz.grpc.LEFT_S", 0.5)
    (finding,) = fuzz(1, 400).findings
    assert re.search(found, finding), finding
