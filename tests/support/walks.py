"""Counts the calls of one operation, to compare two trees: `python -m tests.support.walks [OPERATION]`.

A simulated group of three brokers and three controllers performs each operation once. Printed is how many of
our functions run in the process that serves it, in how many files, and in how many iterations of its event
loop. With the name of an operation, its calls are listed in their order.
"""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

from tests.sim.whole.group import WholeGroup, play, seconds
from tests.sim.whole.machines import PROCESS
from tests.support.imports import PACKAGES, ROOT

OURS = tuple(f"{ROOT / package}/" for package in PACKAGES)
SEED = 3


class Step(NamedTuple):
    process: str
    path: str
    function: str


class Recorder:
    """The calls of our functions, grouped by the outermost one: an iteration of an event loop each."""

    def __init__(self) -> None:
        self.turns: list[list[Step]] = []
        self._turn: list[Step] = []
        self._depth = 0

    def profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """For sys.setprofile."""
        path = frame.f_code.co_filename
        if event not in ("call", "return") or not path.startswith(OURS):
            return
        if event == "call":
            process = PROCESS.get(None)
            name = process.name if process is not None else ""
            self._turn.append(Step(name, path[len(str(ROOT)) + 1 :], frame.f_code.co_qualname))
            self._depth += 1
        elif self._depth:
            self._depth -= 1
            if not self._depth:
                self.turns.append(self._turn)
                self._turn = []


@contextmanager
def recorded() -> Iterator[Recorder]:
    recorder = Recorder()
    sys.setprofile(recorder.profile)
    try:
        yield recorder
    finally:
        sys.setprofile(None)


def report(operation: str, turns: list[list[Step]], process: str, pattern: str, *, listed: str) -> None:
    """Prints the turns of this process in which a function's name matches the pattern."""
    matches = re.compile(pattern).search
    chosen = [
        turn for turn in turns if turn[0].process == process and any(matches(each.function) for each in turn)
    ]
    steps = [step for turn in chosen for step in turn]
    files, functions = len({step.path for step in steps}), len(set(steps))
    print(
        f"{operation}: {len(steps)} calls of {functions} functions in {files} files, {len(chosen)} iterations"
    )
    if listed == operation:
        for turn in chosen:
            print(*(f"    {step.path} {step.function}" for step in turn), "", sep="\n")


def walks(listed: str) -> Callable[[WholeGroup], Any]:
    async def story(world: WholeGroup) -> None:
        world.start()
        world.start_clients(producers=1, pause_s=1e9, others=False)
        producer = world.clients[0]
        master = (await world.whole()).name
        for _ in range(5):
            await world.do(producer, producer.send("T0"))  # type: ignore[attr-defined]
        tries = []
        for _ in range(10):  # the quietest one: periodic tasks run in between
            await seconds(0.03)
            with recorded() as recorder:
                await world.do(producer, producer.send("T0"))  # type: ignore[attr-defined]
                await seconds(0.002)
            tries.append(recorder.turns)
        turns = min(tries, key=lambda each: sum(len(turn) for turn in each if turn[0].process == master))
        report("send", turns, master, r"SendHandler\.send", listed=listed)
        report("ack", turns, master, r"MasterProtocol\.|MasterLink\.receive|PendingReplies\._", listed=listed)
        with recorded() as recorder:
            world.kill(master)
            await world.until(lambda: world.master is not None, 5.0)
        turns = recorder.turns
        leader = max(
            world.controllers,
            key=lambda name: sum(
                step.process == name and "lect" in step.function for turn in turns for step in turn
            ),
        )
        report("election", turns, leader, r"connection_(lost|closed)|[eE]lect|[nN]otif", listed=listed)
        assert world.master is not None
        new = world.master.name
        with recorded() as recorder:
            await world.stop_broker(new)
            await seconds(1.0)
        report("shutdown", recorder.turns, new, r"_stop|\.stop|\.close|leave|StopSteps", listed=listed)

    return story


if __name__ == "__main__":
    play(SEED, walks(sys.argv[1] if len(sys.argv) > 1 else ""))
