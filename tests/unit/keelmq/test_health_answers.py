"""Answers over HTTP of another form: named, and no traceback; what passes the check breaks no verdict."""

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from keelmq.client.admin import AdminError
from keelmq.client.admin.groups import GroupAdmin
from keelmq.health.answers import Groups, Health, fault_of, groups_of
from keelmq.health.findings import Level
from keelmq.health.group_summary import group_statuses
from keelmq.health.groups import groups
from keelmq.health.memory import Memory
from keelmq.health.reach import HttpAnswer, Reach, Silent
from keelmq.health.snapshot import take_snapshot
from keelmq.health.verdict import verdict
from keelmq.remoting.operation import Empty, Ok
from tests.unit.cli.doctor.test_doctor_cluster import BROKERS, CONTROLLERS, healthy, judged

HEALTH: dict[str, Any] = {
    "ready": False,
    "reasons": ["text", {"reason": "controller: no controller leads", "detail": "somewhere"}],
    "plugins": {
        "controller": {
            "address": CONTROLLERS[0],
            "active": True,
            "raft": {
                "running": True,
                "role": "learner",
                "term": 4,
                "commitIndex": 5_000,
                "lastApplied": 10,
                "connected": ["n1"],
                "otherMemberLists": ["n2"],
                "refusedConnections": {"key": 3},
                "certificateFault": "a fault",
                "certificateEnds": 1_700_000_000,
            },
            "telemetry": {"fault": "No space left on device"},
        }
    },
}
GROUPS: dict[str, Any] = {
    "groups": [
        {
            "brokerName": "broker-a",
            "cluster": "C",
            "masterBrokerId": 1,
            "masterAddress": BROKERS[0],
            "masterEpoch": 3,
            "syncStateSetEpoch": 4,
            "replicas": [
                {
                    "brokerId": number,
                    "address": address,
                    "inSync": number < 3,
                    "alive": number == 1,
                    "heartbeatAgeMs": 10**9,
                    "epoch": 3,
                    "maxOffset": 100,
                    "confirmOffset": 90,
                    "lagBytes": 10,
                }
                for number, address in enumerate(BROKERS, start=1)
            ],
            "disagreements": ["broker 2 has epoch 9, above masterEpoch 3"],
            "withoutLiveMaster": "no live member of the SyncStateSet",
            "lastElection": {
                "ts": 1_700_000_000_000,
                "masterBrokerId": 1,
                "masterEpoch": 3,
                "reason": "first",
            },
        }
    ]
}
WRONG: tuple[Any, ...] = (None, 7, -1, 1e300, True, "text", [], [None], ["x"], {}, {"a": 1}, 2**70)


def mutated(value: Any) -> Iterator[Any]:
    """Yields the value with each of its parts replaced by each wrong one, or left out."""
    yield from WRONG
    if isinstance(value, dict):
        for key, each in value.items():
            yield {name: one for name, one in value.items() if name != key}
            yield from ({**value, key: one} for one in mutated(each))
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from ([*value[:at], one, *value[at + 1 :]] for one in mutated(each))


def test_the_forms_are_those_that_are_sent() -> None:
    assert fault_of(HEALTH, Health) == fault_of(GROUPS, Groups) == ""


def test_health_that_passes_the_check_breaks_no_verdict() -> None:
    passed = 0
    for value in mutated(HEALTH):
        fault = fault_of(value, Health)
        assert "\n" not in fault
        if not fault:
            passed += 1
            seen = healthy()
            seen.health["10.0.0.1:19876"] = HttpAnswer(200, json.dumps(value).encode(), 0)
            judged(seen)
    assert passed > 20


@pytest.mark.parametrize("has_sets", [True, False])
def test_groups_that_pass_the_check_break_no_verdict(has_sets: bool) -> None:
    passed = 0
    for value in mutated(GROUPS):
        fault = fault_of(value, Groups)
        assert "\n" not in fault
        if not fault and isinstance(value, dict):
            passed += 1
            seen = healthy()
            seen.groups = groups_of(value)
            if not has_sets:
                seen.sets = {}
            judged(seen)
    assert passed > 20


class Answering:
    """A Reach that gets these answers over HTTP, and whose other questions nobody answers."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers

    async def get(self, address: str, path: str, *, as_user: bool = False) -> HttpAnswer:
        if path not in self.answers:
            raise Silent("no answer")
        return HttpAnswer(200, json.dumps(self.answers[path]).encode(), 0)

    async def ask(self, address: str, question: object) -> None:
        raise Silent("no answer")

    async def resolve(self, host: str) -> list[str]:
        raise Silent("unknown")


@pytest.mark.parametrize(
    ("part", "says"),
    [
        ({"plugins": []}, "Expected 'object | null', got 'array' - at '$.plugins'"),
        (
            {"plugins": {"controller": {"raft": {"connected": [1]}}}},
            "at '$.plugins.controller.raft.connected[0]'",
        ),
        ({"reasons": 7}, "at '$.reasons'"),
    ],
)
async def test_one_line_says_what_and_where(part: dict[str, Any], says: str) -> None:
    answers = {"/v1/health": {**copy.deepcopy(HEALTH), **part}}
    reach = cast(Reach, Answering(answers))
    seen = await take_snapshot(reach, ["10.0.0.1:9876"], [], {"10.0.0.1:9876": "10.0.0.1:19876"}, Memory())
    answer = seen.health["10.0.0.1:19876"]
    assert isinstance(answer, Silent)
    assert str(answer).startswith("/v1/health answers in another form: ") and says in str(answer)
    assert [*verdict(seen), *groups(seen, group_statuses(seen))]


def test_a_wrong_answer_of_the_leader_is_a_warning() -> None:
    seen = healthy()
    fault = fault_of({"groups": [{"cluster": "C"}]}, Groups)
    seen.malformed["10.0.0.1:19876"] = f"/v1/groups answers in another form: {fault}"
    (found,) = [each for each in judged(seen) if each.level is not Level.OK]
    assert "missing required field 'brokerName' - at '$.groups[0]'" in found.text


class Consumers:
    """An admin client whose broker answers this body."""

    def __init__(self, body: Any) -> None:
        self.body = body

    async def ask(self, *args: object, **more: object) -> Ok[Empty]:
        return Ok(Empty(), self.body)


@pytest.mark.parametrize("body", [7, [1], {"data": [1]}, {"data": {"g": 7}}, {"data": {"g": ["x"]}}])
async def test_producers_of_another_form(body: Any) -> None:
    with pytest.raises(AdminError, match="unreadable: it is not"):
        await GroupAdmin.producers(cast(GroupAdmin, Consumers(body)), "b")


@pytest.mark.parametrize("body", [b"[1]", b'"x"', b"7", b"[" * 100_000, b"{"])
async def test_a_consumers_answer_of_another_form(body: bytes) -> None:
    with pytest.raises(AdminError, match=r"unreadable|not a JSON object"):
        await GroupAdmin.consume_directly(cast(GroupAdmin, Consumers(body)), "b", "g", "c", "id")
