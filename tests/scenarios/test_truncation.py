"""Where a returning replica is cut: RIP-44's rule on worked examples, told as text."""

from pathlib import Path

import pytest

from broker.ha.core.epochs import Epochs
from broker.ha.core.truncation import truncation_point
from tests.scenarios.datadriven import play

FILES = sorted((Path(__file__).parent / "truncation").glob("*.txt"))


class Logs:
    """Commands: slave EPOCH@START... max=N; master EPOCH@START... max=N; cut."""

    def __init__(self) -> None:
        self.logs: dict[str, tuple[Epochs, int]] = {}

    def run(self, line: str) -> str:
        name, *words = line.split()
        if name == "cut":
            return self._cut()
        pairs = [word.split("@") for word in words if "@" in word]
        (maximum,) = [int(word.removeprefix("max=")) for word in words if word.startswith("max=")]
        epochs = Epochs.of((int(epoch), int(start)) for epoch, start in pairs)
        self.logs[name] = (epochs, maximum)
        return f"{name} has {maximum} bytes"

    def _cut(self) -> str:
        (slave, slave_max), (master, master_max) = self.logs["slave"], self.logs["master"]
        point = truncation_point(slave, slave_max=slave_max, master=master, master_max=master_max)
        if point is None:
            return "no common epoch: an operator must act"
        epochs = ", ".join(f"{epoch}@{start}" for epoch, start in point.epochs.pairs)
        lost = slave_max - point.offset
        return f"cut to {point.offset} ({f'{lost} bytes go' if lost else 'nothing goes'}), epochs {epochs}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_truncation(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, Logs().run, rewrite=request.config.getoption("--rewrite"))


def test_there_are_examples() -> None:
    assert len(FILES) >= 6
