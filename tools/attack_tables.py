"""Rewrites the tables of docs/attacks.md from tests/attacks: PYTHONPATH=. python tools/attack_tables.py"""

import re
from pathlib import Path

from tests.attacks.catalogue import ATTACKS, GROUPS
from tests.attacks.model import Attack

DOCUMENT = Path(__file__).parent.parent / "docs" / "attacks.md"
BEGIN, END = "<!-- attacks -->", "<!-- end of the attacks -->"
ANY_REFUSAL = "refused, or without effect"


def row(attack: Attack) -> str:
    today = "succeeds" if attack.open else "fails"
    cells = (attack.name, attack.asset, attack.success, today, attack.answer or ANY_REFUSAL, f"`{attack.id}`")
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def section(group: str, title: str) -> str:
    rows = [row(attack) for attack in ATTACKS.values() if attack.group == group]
    head = "| the attacker ... | after | succeeds if | off | answer with everything on | test |"
    return "\n".join([f"## {title}", "", head, "|---|---|---|---|---|---|", *rows])


def summary() -> str:
    succeed = sum(attack.open for attack in ATTACKS.values())
    return f"{len(ATTACKS)} attacks: {succeed} succeed with everything off, and none with everything on."


def rewritten(document: str) -> str:
    """The document with everything between the markers replaced by the attacks of today."""
    sections = [section(group, title) for group, title in GROUPS.items()]
    new = "\n\n".join([BEGIN, summary(), *sections, END])
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    assert pattern.search(document), f"{DOCUMENT} lacks its markers"
    return pattern.sub(new.replace("\\", r"\\"), document)


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
