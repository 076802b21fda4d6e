"""A broker goes from one host to another, or stays: each way to fail."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.container.host import BrokerRefused, InnerSetup
from broker.container.workers.move import MoveRefused, move
from tests.support.worker_parts import FakeHost, Observed, identity, setup


@pytest.fixture
def hosts() -> Iterator[tuple[FakeHost, FakeHost]]:
    source, target = FakeHost(0, Observed()), FakeHost(1, Observed())
    yield source, target
    for host in (source, target):
        for port in host.ports.values():
            if port is not None:
                port.close()


async def names(host: FakeHost) -> list[str]:
    return [each.broker_name for each in await host.brokers()]


class Refuses(FakeHost):
    async def start(self, setup: InnerSetup) -> None:
        raise BrokerRefused("its disk is full")


async def test_a_move_hands_over(hosts: tuple[FakeHost, FakeHost]) -> None:
    source, target = hosts
    await source.start(setup("a"))
    await move(setup("a"), source, target)
    assert (await names(source), await names(target)) == ([], ["a"])
    assert source.calls == ["start a", "stop a hand over"]


async def test_a_target_that_cannot_start_it(hosts: tuple[FakeHost, FakeHost]) -> None:
    source, _ = hosts
    await source.start(setup("a"))
    with pytest.raises(MoveRefused, match="its disk is full; it serves where it was") as refused:
        await move(setup("a"), source, Refuses(1, Observed()))
    assert refused.value.is_serving
    assert await names(source) == ["a"]


async def test_neither_can_start_it(hosts: tuple[FakeHost, FakeHost], tmp_path: Path) -> None:
    """Somebody else has taken its port in between."""
    source, target = hosts
    file = tmp_path / "a.conf"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        file.write_text("")
        await source.start(setup("a", file))
        file.write_text(str(taken.getsockname()[1]))
        with pytest.raises(
            MoveRefused, match=r"not moved.*in use.*; nor can it go back: .*in use"
        ) as refused:
            await move(setup("a", file), source, target)
    assert not refused.value.is_serving
    assert (await names(source), await names(target)) == ([], [])


async def test_a_stop_that_left_something_behind(hosts: tuple[FakeHost, FakeHost]) -> None:
    """The target never sees the broker: the rest of it would be in its way."""
    source, target = hosts
    await source.start(setup("sticks"))
    with pytest.raises(MoveRefused, match="did not stop as it should: its store does not close") as refused:
        await move(setup("sticks"), source, target)
    assert refused.value.is_serving
    assert target.calls == []


async def test_what_is_no_refusal_is_a_bug(hosts: tuple[FakeHost, FakeHost]) -> None:
    source, target = hosts
    with pytest.raises(KeyError):
        await move(setup("a", "bug"), source, target)
    assert identity("a") not in source.ports
