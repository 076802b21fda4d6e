"""Pops of a topic with message.type=PRIORITY: the highest priority first, retries, and what turns it off."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.command import decode as decode_frame
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicConfig
from tests.support.pop_parts import INVISIBLE_MS, Message, Scene, read

QUEUES = 8
RETRY = "%RETRY%g_TopicA"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene(tmp_path, monkeypatch)
    set_topic(scene)
    return scene


def set_topic(scene: Scene, queues: int = QUEUES, kind: str = "PRIORITY") -> None:
    attributes = {"message.type": kind}
    scene.broker.topics.update(
        TopicConfig(
            topic_name="TopicA", read_queue_nums=queues, write_queue_nums=queues, attributes=attributes
        )
    )


def set_factor(scene: Scene, factor: int) -> None:
    config = SubscriptionGroupConfig(group_name="g", attributes={"+priority.factor": str(factor)})
    scene.metadata.groups.update(config)


def configure(scene: Scene, **changed: Any) -> None:
    context = scene.broker.context
    context.settings = context.settings.model_copy(update=changed)


def send(scene: Scene, *priorities: int) -> None:
    for number, priority in enumerate(priorities):
        text = f"_SYS_MSG_PRIORITY_\x01{priority}\x02UNIQ_KEY\x01K{number}"
        reply = scene.broker.send(b"%d" % priority, e="0", i=text)
        assert reply is not None and reply.code == 0, reply
    scene.tick()


async def pop_each(scene: Scene, **changed: Any) -> list[int]:
    """The priorities of all messages, popped one by one."""
    found = []
    while messages := await scene.pop(maxMsgNums=1, **changed):
        found += [int(each.body) for each in messages]
    return found


def queues_of(messages: list[Message]) -> list[int]:
    return [each.queue_id for each in messages]


@pytest.mark.parametrize("is_asc", [True, False])
async def test_the_highest_priority_comes_first(scene: Scene, is_asc: bool) -> None:
    configure(scene, priority_order_asc=is_asc)
    send(scene, 3, 0, 7, 5, 1, 7, 2, 6, 4)
    falling = [7, 7, 6, 5, 4, 3, 2, 1, 0]
    assert await pop_each(scene) == (falling if is_asc else falling[::-1])


@pytest.mark.parametrize("count", [2, 32])
async def test_one_answer_is_in_the_order_of_priority(scene: Scene, count: int) -> None:
    send(scene, 1, 4, 1, 4)
    messages = await scene.pop(maxMsgNums=count)
    assert [int(each.body) for each in messages] == [4, 4, 1, 1][:count]
    assert [each.offset for each in messages] == [0, 1, 0, 1][:count]


async def test_a_later_message_of_a_higher_priority_passes_the_others(scene: Scene) -> None:
    send(scene, 2, 2, 2)
    first = await scene.pop(maxMsgNums=1)
    send(scene, 6)
    assert [int(each.body) for each in first + await scene.pop()] == [2, 6, 2, 2]


@pytest.mark.parametrize("kind", ["NORMAL", "FIFO", "DELAY", "MIXED"])
async def test_queues_of_other_topics_have_no_order(scene: Scene, kind: str) -> None:
    set_topic(scene, kind=kind)
    firsts = set()
    for _ in range(100):
        send(scene, *range(QUEUES))
        firsts.add((await pop_each(scene))[0])
    assert len(firsts) > 1


async def test_priority_factor_0_turns_it_off(scene: Scene) -> None:
    set_factor(scene, 0)
    firsts = set()
    for _ in range(100):
        send(scene, *range(QUEUES))
        firsts.add((await pop_each(scene))[0])
    assert len(firsts) > 1


async def test_the_priority_factor_is_a_share_of_the_pops(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice: list[tuple[int, int]] = []
    draws = iter([29, 50, 30, 2, 50])  # by factor; retries; not by factor, from queue 2 on; retries

    def randrange(sides: int) -> int:
        number = next(draws)
        dice.append((sides, number))
        return number

    set_factor(scene, 30)
    send(scene, *range(QUEUES))
    monkeypatch.setattr("broker.pop.reading.random.randrange", randrange)
    assert queues_of(await scene.pop(maxMsgNums=1)) == [7]
    draws = iter([30, 50, 2])
    assert queues_of(await scene.pop(maxMsgNums=1)) == [2]
    assert [sides for sides, _ in dice] == [100, 100, 100, 100, QUEUES]


async def test_an_ordered_pop_has_no_priorities(scene: Scene) -> None:
    firsts = set()
    for group in range(40):
        send(scene, *range(QUEUES))
        messages = await scene.pop(maxMsgNums=1, order="true", consumerGroup=f"g{group}")
        firsts.update(queues_of(messages))
    assert len(firsts) > 1


async def test_a_pop_of_one_queue_gets_only_its_messages(scene: Scene) -> None:
    send(scene, *range(QUEUES))
    assert queues_of(await scene.pop(queueId=2)) == [2]


# -- retries ---------------------------------------------------------------------------------------------


async def revive(scene: Scene, *priorities: int) -> None:
    """These messages are popped, and their invisible time passes."""
    send(scene, *priorities)
    assert len(await scene.pop()) == len(priorities)
    scene.run(INVISIBLE_MS)


@pytest.mark.parametrize(("percent", "expected"), [(0, [5, 0, 7]), (100, [7, 5, 0])])
async def test_retries_come_last_unless_they_come_first(
    scene: Scene, percent: int, expected: list[int]
) -> None:
    configure(scene, pop_from_retry_probability_for_priority=percent, pop_from_retry_probability=50)
    await revive(scene, 7)
    send(scene, 0, 5)
    for _ in range(20):
        messages = await scene.pop(consumerGroup="g")
        assert [int(each.body) for each in messages] == expected
        assert next(each for each in messages if each.body == b"7").tries >= 1
        for message in messages:
            await scene.ack(message)
        await revive(scene, 7)
        send(scene, 0, 5)


@pytest.mark.parametrize(("percent", "first"), [(0, "TopicA"), (100, RETRY)])
async def test_the_share_of_pops_that_read_other_retries_first(
    scene: Scene, percent: int, first: str
) -> None:
    set_topic(scene, kind="NORMAL")
    configure(scene, pop_from_retry_probability=percent, pop_from_retry_probability_for_priority=50)
    for _ in range(10):
        await revive(scene, 1)
        send(scene, 0)
        messages = await scene.pop()
        assert messages[0].popped_from == first
        for message in messages:
            await scene.ack(message)


async def test_all_retries_are_in_one_queue(scene: Scene) -> None:
    await revive(scene, *range(QUEUES))
    assert scene.retries() == QUEUES
    again = await scene.pop()
    assert {each.properties["_SYS_MSG_PRIORITY_"] for each in again} == {str(n) for n in range(QUEUES)}


@pytest.mark.parametrize("is_asc", [True, False])
async def test_separate_retry_queues_keep_the_order_of_priority(scene: Scene, is_asc: bool) -> None:
    configure(
        scene,
        use_separate_retry_queue=True,
        priority_order_asc=is_asc,
        pop_from_retry_probability_for_priority=100,
    )
    await revive(scene, 1, 6, 0, 3)
    again = await scene.pop()
    assert queues_of(again) == ([6, 3, 1, 0] if is_asc else [0, 1, 3, 6])
    assert {(each.offset, each.tries) for each in again} == {(0, 1)}
    for message in again[:2]:
        assert (await scene.ack(message)).code == 0
    scene.run(INVISIBLE_MS)
    assert queues_of(await scene.pop()) == ([1, 0] if is_asc else [3, 6])


async def test_a_retry_topic_gets_the_queues_that_its_topic_gets(scene: Scene) -> None:
    await revive(scene, 5)
    assert scene.broker.topics.topics[RETRY].queue_count == 1
    configure(scene, use_separate_retry_queue=True)
    set_topic(scene, queues=2 * QUEUES)
    send(scene, 12, 9)
    assert queues_of(await scene.pop()) == [12, 9, 0]
    scene.run(INVISIBLE_MS)
    topic = scene.broker.topics.topics[RETRY]
    assert (topic.read_queue_nums, topic.write_queue_nums) == (2 * QUEUES, 2 * QUEUES)
    assert queues_of(await scene.pop()) == [12, 9, 0]
    set_topic(scene, queues=QUEUES)
    scene.run(INVISIBLE_MS)
    assert scene.broker.topics.topics[RETRY].queue_count == 2 * QUEUES, "its upper queues have messages"


async def test_a_retry_whose_properties_are_full_keeps_its_queue(scene: Scene) -> None:
    configure(scene, use_separate_retry_queue=True)
    text = "_SYS_MSG_PRIORITY_\x014\x02k\x01" + "v" * 32_640
    reply = scene.broker.send(b"4", e="0", i=text)
    assert reply is not None and reply.code == 0, reply
    scene.tick()
    assert len(await scene.pop()) == 1
    scene.run(INVISIBLE_MS)
    assert scene.broker.store.max_queue_offset(RETRY, 4) == 1


async def test_dead_letters_have_one_queue(scene: Scene) -> None:
    configure(scene, use_separate_retry_queue=True)
    scene.metadata.groups.update(SubscriptionGroupConfig(group_name="g", retry_max_times=0))
    await revive(scene, 5)
    assert scene.broker.topics.topics["%DLQ%g"].queue_count == 1
    assert scene.broker.store.max_queue_offset("%DLQ%g", 0) == 1


@pytest.mark.parametrize("is_separate", [False, True])
async def test_a_waiting_pop_gets_the_first_retry(scene: Scene, is_separate: bool) -> None:
    """The retry topic, or its queue, is created while the pop waits."""
    configure(scene, use_separate_retry_queue=is_separate)
    send(scene, 5)
    assert len(await scene.pop()) == 1
    assert await scene.raw_pop(pollTime=600_000) is None
    scene.run(INVISIBLE_MS)
    (frame,) = scene.peer.sent
    assert [each.body for each in read(decode_frame(frame[4:]))] == [b"5"]


async def test_notifications_and_peeks_see_all_retry_queues(scene: Scene) -> None:
    configure(scene, use_separate_retry_queue=True)
    await revive(scene, 5)
    fields: Mapping[str, Any] = {"consumerGroup": "g", "topic": "TopicA", "queueId": -1, "maxMsgNums": 9}
    told = await scene.request(200054, {**fields, "pollTime": 0, "bornTime": scene.now})
    assert told is not None and told.ext_fields["hasMsg"] == "true"
    peeked = await scene.request(200052, dict(fields))
    assert peeked is not None and peeked.code == 0
