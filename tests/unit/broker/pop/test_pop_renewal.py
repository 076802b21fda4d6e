"""Renewals: what a client of gRPC has popped stays invisible while it lives, under the handles it has."""

from pathlib import Path

import pytest

from broker.pop import service as service_module
from broker.pop.core import state as state_module
from broker.pop.core.handles import parse_handle
from broker.pop.core.state import RENEWED_MS_MAX, Checkpoint, Key, PopState, renewed_due_ms
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from tests.support.pop_parts import INVISIBLE_MS, Message, Scene

HALF_MS = INVISIBLE_MS // 2
SOON_MS = 1_000
SOME_MS = 5_000
"""The revival of a due message is not immediate."""


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    found = Scene(tmp_path, monkeypatch)
    found.topic("TopicA", 1)
    found.metadata.groups.update(SubscriptionGroupConfig(group_name="g"))
    return found


async def renew(
    scene: Scene,
    owner: str = "c",
    invisible_ms: int = INVISIBLE_MS,
    delivered: str = "",
    *,
    ended: bool = False,
) -> int | None:
    """Returns in how many ms the first message is visible; None: the owner has none."""
    fields = {"consumerGroup": "g", "topic": "TopicA", "owner": owner, "invisibleTime": invisible_ms}
    if delivered:
        fields["delivered"] = delivered
    if ended:
        fields["ended"] = "true"
    reply = await scene.request(29061, fields)
    assert reply is not None and reply.code == 0, reply
    scene.tick()
    found = reply.ext_fields.get("visibleIn")
    return None if found is None else int(found)


async def popped(scene: Scene, *bodies: bytes, **more: object) -> list[Message]:
    """The client has them."""
    scene.send(*bodies)
    found = await scene.pop(owner="c", **more)
    assert [message.body for message in found] == list(bodies)
    await renew(scene, delivered=pop_time(found))
    return found


def pop_time(messages: list[Message]) -> str:
    (found,) = {str(parse_handle(message.handle).pop_ms) for message in messages}
    return found


@pytest.mark.parametrize(
    ("due_ms", "renewed_ms"),
    [(99, 99), (100, 100), (101, 140), (129, 140), (130, 130), (200, 200)],
    ids=["visible", "just visible", "nearly visible", "soon", "late enough", "later than asked"],
)
def test_what_is_renewed(due_ms: int, renewed_ms: int) -> None:
    assert renewed_due_ms(due_ms, 50, now_ms=100, invisible_ms=40) == renewed_ms


@pytest.mark.parametrize("before_ms", [1, 39, 40, 41])
def test_renewals_end(before_ms: int) -> None:
    """3 h after the pop; a longer invisible time of the pop itself stays."""
    end_ms = 50 + RENEWED_MS_MAX
    now_ms = end_ms - before_ms
    assert renewed_due_ms(now_ms + 1, 50, now_ms=now_ms, invisible_ms=40) == max(
        min(now_ms + 40, end_ms), now_ms + 1
    )
    assert renewed_due_ms(end_ms + 2, 50, now_ms=end_ms + 1, invisible_ms=40) == end_ms + 2


async def test_a_message_stays_invisible_and_its_first_handle_stays_valid(scene: Scene) -> None:
    (message,) = await popped(scene, b"a")
    for _ in range(10):
        scene.run(HALF_MS)
        assert await renew(scene) == INVISIBLE_MS
    assert not await scene.pop() and not scene.retries()
    assert (await scene.ack(message)).code == 0
    assert await renew(scene) is None
    scene.run(2 * INVISIBLE_MS)
    assert not await scene.pop() and not scene.retries()


async def test_without_a_further_renewal_it_is_visible_after_the_last_one(scene: Scene) -> None:
    await popped(scene, b"a")
    scene.run(HALF_MS)
    assert await renew(scene) == INVISIBLE_MS
    scene.run(INVISIBLE_MS - 1)
    assert not await scene.pop()
    scene.run(1)
    (again,) = await scene.pop()
    assert (again.body, again.tries) == (b"a", 1)


async def test_a_message_that_comes_again_is_renewed_too(scene: Scene) -> None:
    await popped(scene, b"a")
    scene.run(INVISIBLE_MS)
    (again,) = await scene.pop(owner="c")
    await renew(scene, delivered=pop_time([again]))
    for _ in range(5):
        scene.run(HALF_MS)
        assert await renew(scene) == INVISIBLE_MS
    assert (await scene.ack(again)).code == 0
    scene.run(2 * INVISIBLE_MS)
    assert not await scene.pop()


async def test_only_what_is_left_is_renewed(scene: Scene) -> None:
    """One message is acknowledged, one failed: its own invisible time counts."""
    done, failed, _ = await popped(scene, b"done", b"failed", b"left")
    await scene.ack(done)
    await scene.change(failed, SOME_MS)
    scene.run(HALF_MS)
    assert await renew(scene) == INVISIBLE_MS
    (again,) = await scene.pop()
    assert again.body == b"failed"
    await scene.ack(again)
    scene.run(INVISIBLE_MS)
    assert [message.body for message in await scene.pop()] == [b"left"]


@pytest.mark.parametrize("order", ["false", "true"])
async def test_what_its_client_never_got_is_not_renewed(scene: Scene, order: str) -> None:
    """The proxy died between the pop and its answer; another one renews for the client."""
    scene.send(b"a")
    lost = await scene.pop(owner="c", order=order, queueId=0)
    scene.run(HALF_MS)
    assert await renew(scene) is None
    assert await renew(scene, delivered=f"{int(pop_time(lost)) + 1}") is None
    scene.restart()
    scene.run(HALF_MS)
    (again,) = await scene.pop(order=order, queueId=0)
    assert again.body == b"a"


async def test_what_came_too_late_to_its_client_comes_again(scene: Scene) -> None:
    scene.send(b"a")
    found = await scene.pop(owner="c")
    scene.run(INVISIBLE_MS)
    assert await renew(scene, delivered=pop_time(found)) is None
    (again,) = await scene.pop()
    assert again.body == b"a"


@pytest.mark.parametrize("delivered", ["x", "1,", "-1", "1" * 19, ",".join(["1"] * 257)])
async def test_delivered_is_a_bounded_list_of_times(scene: Scene, delivered: str) -> None:
    fields = {"consumerGroup": "g", "topic": "TopicA", "owner": "c", "invisibleTime": 1}
    reply = await scene.request(29061, fields | {"delivered": delivered})
    assert reply is not None and reply.code == 29, reply


async def test_another_owner_renews_nothing(scene: Scene) -> None:
    await popped(scene, b"a")
    scene.run(HALF_MS)
    assert await renew(scene, "other") is None
    scene.run(HALF_MS)
    assert [message.body for message in await scene.pop()] == [b"a"]


async def test_a_new_master_knows_what_was_renewed(scene: Scene) -> None:
    """The proxy and the master may die: the handle and the invisible time are in the log."""
    (message,) = await popped(scene, b"a")
    for _ in range(3):
        scene.run(HALF_MS)
        assert await renew(scene) == INVISIBLE_MS
        scene.restart()
    assert not scene.retries()
    scene.run(HALF_MS)
    assert await renew(scene) == INVISIBLE_MS
    await scene.ack(message)
    scene.restart()
    scene.run(2 * INVISIBLE_MS)
    assert not await scene.pop() and not scene.retries()


async def test_a_renewal_moves_no_group_that_was_reset(scene: Scene) -> None:
    await popped(scene, b"a", b"b", b"c")
    scene.metadata.resets.set("g", "TopicA", 0, 0)
    (again,) = await scene.pop(maxMsgNums=1)
    assert again.body == b"a"
    scene.run(HALF_MS)
    assert await renew(scene) == INVISIBLE_MS
    scene.restart()
    assert [message.body for message in await scene.pop()] == [b"b", b"c"]


async def test_in_order(scene: Scene) -> None:
    """The queue stays blocked until the renewals end."""
    scene.send(b"a", b"b")
    (message, _) = await scene.pop(owner="c", order="true", queueId=0)
    await renew(scene, delivered=pop_time([message]))
    for _ in range(5):
        scene.run(HALF_MS)
        assert await renew(scene) == INVISIBLE_MS
        assert not await scene.pop(order="true", queueId=0)
    assert (await scene.ack(message)).code == 0
    scene.run(INVISIBLE_MS)
    assert [each.body for each in await scene.pop(order="true", queueId=0)] == [b"b"]


async def test_a_call_renews_a_bounded_number(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer says that there is more to do."""
    monkeypatch.setattr(service_module, "BATCH_MAX", 2)
    for body in (b"a", b"b", b"c"):
        scene.send(body)
        await renew(scene, delivered=pop_time(await scene.pop(owner="c", maxMsgNums=1)))
    scene.run(HALF_MS)
    assert await renew(scene) == HALF_MS
    assert await renew(scene) == INVISIBLE_MS


def test_an_owner_has_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "OWNED_MAX", 2)
    state = PopState([0])
    checkpoints = [
        Checkpoint(Key("g", "t", 0, offset, 0), 10, (offset,), -1, 0, owner="c") for offset in range(3)
    ]
    for position, checkpoint in enumerate(checkpoints):
        state.stored(checkpoint, position)
    assert state.owned("g", "c") == checkpoints[:2]
    state.check_invariants()
    for checkpoint in checkpoints:
        state.end(checkpoint.key, 0, checkpoint.key.start_offset)
    assert state.owned("g", "c") == []
    state.check_invariants()


def test_a_checkpoint_that_an_earlier_release_wrote_again_has_no_owner() -> None:
    state, key = PopState([0]), Key("g", "t", 0, 5, 0)
    state.stored(Checkpoint(key, 10, (5,), 6, 0, owner="c"), 0)
    state.stored(Checkpoint(key, 10, (5,), -1, 0), 1)
    assert state.owned("g", "c") == []
    state.check_invariants()


async def test_an_owner_is_not_long(scene: Scene) -> None:
    reply = await scene.raw_pop(owner="c" * 256)
    assert reply is not None and reply.code == 29, reply


# -- the client has ended --------------------------------------------------------------------------------


async def test_what_an_ended_client_has_is_visible_soon(scene: Scene) -> None:
    """Also what nobody has said to be delivered. Its handles are valid until then."""
    done, _ = await popped(scene, b"done", b"left")
    scene.send(b"lost")
    await scene.pop(owner="c")
    assert await renew(scene, invisible_ms=SOON_MS, ended=True) is None
    assert (await scene.ack(done)).code == 0
    scene.run(SOON_MS - 1)
    assert not await scene.pop()
    scene.run(1)
    assert sorted(message.body for message in await scene.pop()) == [b"left", b"lost"]
    scene.run(2 * INVISIBLE_MS)
    assert scene.retries() == 4, "each came again once, and then once more"


async def test_nobody_renews_what_was_given_back(scene: Scene) -> None:
    """A client may use several proxies, and one of them has not heard of its end."""
    await popped(scene, b"a")
    await renew(scene, invisible_ms=SOON_MS, ended=True)
    assert await renew(scene) is None
    scene.run(SOON_MS)
    assert [message.body for message in await scene.pop()] == [b"a"]


async def test_what_is_visible_sooner_stays_so(scene: Scene) -> None:
    await popped(scene, b"a")
    scene.run(INVISIBLE_MS - SOON_MS // 2)
    await renew(scene, invisible_ms=SOON_MS, ended=True)
    scene.run(SOON_MS // 2)
    assert [message.body for message in await scene.pop()] == [b"a"]


async def test_the_end_of_another_client_gives_nothing_back(scene: Scene) -> None:
    await popped(scene, b"a")
    assert await renew(scene, "other", invisible_ms=SOON_MS, ended=True) is None
    scene.run(SOON_MS)
    assert not await scene.pop()
    assert await renew(scene) is not None


async def test_a_new_master_knows_what_was_given_back(scene: Scene) -> None:
    await popped(scene, b"a")
    await renew(scene, invisible_ms=SOON_MS, ended=True)
    scene.restart()
    assert await renew(scene) is None
    scene.run(SOON_MS)
    assert [message.body for message in await scene.pop()] == [b"a"]


async def test_a_queue_in_order_goes_on_soon(scene: Scene) -> None:
    await popped(scene, b"a", order="true", queueId=0)
    await renew(scene, invisible_ms=SOON_MS, ended=True)
    assert await renew(scene) is None, "nobody renews it"
    assert not await scene.pop(order="true", queueId=0)
    scene.run(SOON_MS)
    assert [each.body for each in await scene.pop(order="true", queueId=0)] == [b"a"]


async def test_a_call_gives_a_bounded_number_back(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for body in (b"a", b"b", b"c"):
        scene.send(body)
        await renew(scene, delivered=pop_time(await scene.pop(owner="c", maxMsgNums=1)))
    monkeypatch.setattr(service_module, "BATCH_MAX", 2)
    assert await renew(scene, invisible_ms=SOON_MS, ended=True) == SOON_MS
    assert await renew(scene, invisible_ms=SOON_MS, ended=True) is None
    scene.run(SOON_MS)
    assert len(await scene.pop()) == 3
