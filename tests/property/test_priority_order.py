"""Pops of a priority topic against a plain model: sends, pops, acknowledgements, expired invisible times and
new masters, in random order. Each first delivery is the oldest message of the highest priority that waits, no
acknowledged message comes again, and none is lost.
"""

import random
from pathlib import Path

import pytest

from keelmq.remoting.operations.route import TopicConfig
from tests.support.pop_parts import INVISIBLE_MS, Message, Scene

STEPS = 60


class Model:
    """Of each queue the messages that wait for their first delivery, oldest first."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self.scene, self.random = scene, random.Random(seed)
        self.queues = self.random.randint(1, 5)
        self.is_asc = self.random.random() < 0.5
        self.waiting: list[list[bytes]] = [[] for _ in range(self.queues)]
        self.sent, self.acked, self.out = set[bytes](), set[bytes](), list[Message]()
        scene.broker.topics.update(
            TopicConfig(
                topic_name="TopicA",
                read_queue_nums=self.queues,
                write_queue_nums=self.queues,
                attributes={"message.type": "PRIORITY"},
            )
        )
        settings = scene.broker.context.settings
        changes = {
            "priority_order_asc": self.is_asc,
            "use_separate_retry_queue": self.random.random() < 0.5,
        }
        scene.broker.context.settings = settings.model_copy(update=changes)

    def send(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            priority, body = self.random.randrange(self.queues + 2), b"%d" % len(self.sent)
            text = f"_SYS_MSG_PRIORITY_\x01{priority}\x02UNIQ_KEY\x01K"
            chosen = str(self.random.randrange(self.queues))
            reply = self.scene.broker.send(body, e=chosen, i=text)
            assert reply is not None and reply.code == 0
            self.waiting[min(priority, self.queues - 1)].append(body)
            self.sent.add(body)
        self.scene.tick()

    async def pop(self, count: int) -> None:
        """A read may end early, where a file of the queue ends; the next queue is then read."""
        messages = await self.scene.pop(maxMsgNums=count)
        firsts = [message.body for message in messages if not message.tries]
        falling = self.waiting[::-1] if self.is_asc else self.waiting
        assert firsts[:1] == [body for queue in falling for body in queue][:1]
        expected = list[bytes]()
        for queue in falling:
            taken = [body for body in firsts if body in queue]
            assert taken == queue[: len(taken)], "in their order"
            expected += taken
            del queue[: len(taken)]
        assert firsts == expected
        assert not {message.body for message in messages} & self.acked, "acknowledged, and delivered again"
        self.out += messages

    async def ack(self) -> None:
        self.random.shuffle(self.out)
        for message in self.out[: self.random.randint(0, 6)]:
            assert (await self.scene.ack(message)).code == 0
            self.acked.add(message.body)
            self.out.remove(message)

    def expire(self) -> None:
        self.scene.run(INVISIBLE_MS)
        self.out.clear()


@pytest.mark.parametrize("seed", range(40))
async def test_random_lives(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(tmp_path, monkeypatch)
    model = Model(scene, seed)
    for _ in range(STEPS):
        step = model.random.choice(["send", "send", "pop", "pop", "ack", "expire", "restart"])
        if step == "send":
            model.send()
        elif step == "pop":
            await model.pop(model.random.randint(1, 9))
        elif step == "ack":
            await model.ack()
        elif step == "expire":
            model.expire()
        else:
            scene.restart()
    for _ in range(len(model.sent)):
        model.expire()
        await model.pop(32)
        for message in model.out:
            await scene.ack(message)
            model.acked.add(message.body)
        model.out.clear()
        if model.acked == model.sent:
            break
    model.expire()
    dead = scene.broker.store.max_queue_offset("%DLQ%g", 0)
    assert len(model.acked) + dead == len(model.sent), "nothing is lost"
    assert not any(model.waiting)
