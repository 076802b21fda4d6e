"""Runs the attacks and prints what became of them: python -m tests.attacks [open | closed] [part of an id]"""

import asyncio
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TextIO, get_args

from tests.attacks.attacker import Attacker
from tests.attacks.catalogue import in_order
from tests.attacks.model import Attack, Outcome
from tests.attacks.stage import Mode, Stage

ANSWER_CHARS = 160


class Run:
    """One mode: prints an attack in a line, and counts."""

    def __init__(self, mode: Mode, out: TextIO) -> None:
        self.mode, self._out = mode, out
        self.succeeded = self.wrong = 0
        self._numbers = count()

    def attack(self, attack: Attack, stage: Stage) -> None:
        began = time.monotonic()
        try:
            outcome = asyncio.run(attack.how(Attacker(stage, next(self._numbers))))
            fits = self._is_as_documented(attack, outcome)
        except Exception as error:  # noqa: BLE001 - shown, and the other attacks run
            outcome = Outcome(True, f"the attack itself failed: {type(error).__name__}: {error}")
            fits = False
        self.wrong += not fits
        self.succeeded += outcome.succeeded
        what = "succeeds" if outcome.succeeded else "fails"
        answer = " ".join(outcome.answer.split())[:ANSWER_CHARS]
        took = time.monotonic() - began
        self._out.write(f"{' ' if fits else '!'} {attack.id:32} {what:9} {took:5.1f} s  {answer}\n")
        self._out.flush()

    def _is_as_documented(self, attack: Attack, outcome: Outcome) -> bool:
        if self.mode == "open":
            return outcome.succeeded == attack.open
        return not outcome.succeeded and attack.answer in outcome.answer


def run(mode: Mode, part: str, out: TextIO) -> int:
    """Runs the attacks whose id contains `part`; returns how many did not end as its row says."""
    began, results = time.monotonic(), Run(mode, out)
    chosen = [attack for attack in in_order() if part in attack.id]
    alone = [attack for attack in chosen if attack.ruins and mode == "open"]
    out.write(f"{mode.upper()}: {len(chosen)} attacks\n")
    with tempfile.TemporaryDirectory(prefix="attacks-") as name:
        with Stage(Path(name, "shared"), mode) as stage:
            for attack in chosen:
                if attack not in alone:
                    results.attack(attack, stage)
        for at, attack in enumerate(alone):
            with Stage(Path(name, str(at)), mode) as stage:
                results.attack(attack, stage)
    seconds = time.monotonic() - began
    out.write(f"{results.succeeded} of {len(chosen)} succeeded, {results.wrong} not as documented")
    out.write(f", {seconds:.0f} s\n")
    return results.wrong


def main(arguments: list[str]) -> int:
    modes = [mode for mode in get_args(Mode) if mode in arguments] or list(get_args(Mode))
    parts = [argument for argument in arguments if argument not in get_args(Mode)]
    wrong = [run(mode, parts[0] if parts else "", sys.stdout) for mode in modes]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
