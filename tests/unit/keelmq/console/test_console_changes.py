"""What is sent of a new status: the page that applies it has the new one."""

import pytest

from keelmq.console.core.changes import applied, changes
from keelmq.console.examples import STATUS
from keelmq.health.status import ClusterStatus, Verdict
from tests.support.console_parts import with_group

OTHER = STATUS.groups[0].model_copy(update={"broker_name": "broker-b", "verdict": Verdict.OK})


@pytest.mark.parametrize(
    "after",
    [
        STATUS,
        with_group(STATUS, master_id=2),
        STATUS.model_copy(update={"groups": []}),
        STATUS.model_copy(update={"groups": [*STATUS.groups, OTHER]}),
        STATUS.model_copy(update={"groups": [OTHER]}),
        STATUS.model_copy(update={"controllers": [], "taken_ms": 7, "took_ms": 9, "verdict": Verdict.OK}),
        STATUS.model_copy(update={"problems": [], "name_servers": [], "brokers_not_asked": 3}),
    ],
)
def test_a_change_makes_the_new_status(after: ClusterStatus) -> None:
    assert applied(STATUS, changes(STATUS, after)) == after
    assert applied(after, changes(after, STATUS)) == STATUS


def test_only_what_differs_is_sent() -> None:
    after = with_group(STATUS.model_copy(update={"groups": [*STATUS.groups, OTHER]}), max_offset=2)
    before = STATUS.model_copy(update={"groups": [*STATUS.groups, OTHER]})
    change = changes(before, after)
    assert [each.broker_name for each in change.groups] == ["broker-a"]
    assert (change.name_servers, change.controllers, change.problems) == (None, None, None)
