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


def as_expected(attack: Attack, outcome: Outcome, mode: Mode) -> bool:
    """Whether the outcome is what docs/attacks.md says."""
    if mode == "open":
        return outcome.succeeded == attack.open
    return not outcome.succeeded and attack.answer in outcome.answer


def run(mode: Mode, part: str, out: TextIO) -> int:
    """Runs the attacks whose id contains `part`; returns how many did not end as expected."""
    started, wrong, succeeded = time.monotonic(), 0, 0
    chosen = [attack for attack in in_order() if part in attack.id]
    numbers = count()
    with tempfile.TemporaryDirectory(prefix="attacks-") as directory, Stage(Path(directory), mode) as stage:
        out.write(f"{mode.upper()}: {len(chosen)} attacks\n")
        for attack in chosen:
            began = time.monotonic()
            try:
                outcome = asyncio.run(attack.how(Attacker(stage, next(numbers))))
            except Exception as error:  # noqa: BLE001 - shown, and the other attacks run
                outcome = Outcome(True, f"the attack itself failed: {type(error).__name__}: {error}")
            fits = as_expected(attack, outcome, mode)
            wrong += not fits
            succeeded += outcome.succeeded
            what = "succeeds" if outcome.succeeded else "fails"
            mark = " " if fits else "!"
            answer = " ".join(outcome.answer.split())[:ANSWER_CHARS]
            took = time.monotonic() - began
            out.write(f"{mark} {attack.id:32} {what:9} {took:5.1f} s  {answer}\n")
            out.flush()
    seconds = time.monotonic() - started
    out.write(f"{succeeded} of {len(chosen)} succeeded, {wrong} not as documented, {seconds:.0f} s\n")
    return wrong


def main(arguments: list[str]) -> int:
    modes = [mode for mode in get_args(Mode) if mode in arguments] or list(get_args(Mode))
    parts = [argument for argument in arguments if argument not in get_args(Mode)]
    wrong = [run(mode, parts[0] if parts else "", sys.stdout) for mode in modes]
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
