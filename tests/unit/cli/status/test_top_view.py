"""What `keelmq top` shows: sorting, what changed, the size of the screen."""

import io

import pytest
from rich.console import Console

from cli.status.top_view import Screen, changes, frame
from keelmq.health.status import ClusterStatus
from keelmq.health.summary import status_of
from tests.gallery.cluster import BROKERS, NAME, PLAIN_NAME, broker, healthy, replicas
from tests.gallery.faults import FAULTS


def broken(name: str) -> ClusterStatus:
    seen = healthy()
    FAULTS[name].put(seen)
    return status_of(seen)


async def test_keys_choose_what_is_shown_and_its_order() -> None:
    state = Screen(wall_text=lambda: "12:00:00")
    state.take(status_of(healthy()))
    assert [group.broker_name for group, _ in state.rows()] == [NAME, PLAIN_NAME]
    state.press("r")
    assert [group.broker_name for group, _ in state.rows()] == [PLAIN_NAME, NAME]
    state.press("b")
    assert len(state.rows()) == 5 and state.sort_by == 0
    titles = [title for title, _, _ in state.columns]
    while titles[state.sort_by] != "IN/S":
        state.press("s")
    assert state.is_descending
    assert [None if row is None else row.messages_in_per_s for _, row in state.rows()] == [
        5,
        5,
        5,
        None,
        None,
    ]
    assert not state.is_over
    state.press("q")
    assert state.is_over and await state.pressed_within(5.0)
    assert not await state.pressed_within(0.0)


async def test_what_changed_is_told_once() -> None:
    seen = healthy()
    seen.sets = {NAME: replicas(master=2)}
    seen.brokers[BROKERS[0]], seen.brokers[BROKERS[1]] = broker(1), broker(0)
    assert f"{NAME}: broker 2 is master" in changes(status_of(healthy()), status_of(seen))
    state = Screen(wall_text=lambda: "12:00:00")
    state.take(status_of(healthy()))
    for name in ("replica_down", "replica_down"):
        state.take(broken(name))
    said = [each for each in state.events if "replica 3" in each or "replicas in sync" in each]
    assert len(said) == 1 and said[0].startswith("12:00:00 broker-a: ")
    state.take(status_of(healthy()))
    assert state.events[-1].endswith("is OK again")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 12), (200, 60)])
async def test_the_frame_fits_the_terminal(width: int, height: int) -> None:
    state = Screen()
    for name in ("replica_down", "name_servers_disagree", "master_fenced"):
        state.take(broken(name))
    for key in "gb":
        state.press(key)
        console = Console(width=width, height=height, record=True, file=io.StringIO())
        console.print(frame(state, width, height))
        lines = console.export_text().splitlines()
        assert len(lines) <= height + 6 and all(len(line) <= width for line in lines)
        assert lines[0].startswith("FAILED  ")
