"""The tables of docs/reference/attacks.md, from tests/attacks."""

from tests.attacks.catalogue import ATTACKS, GROUPS
from tests.attacks.model import Attack

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


def tables() -> dict[str, str]:
    """Returns the sections of all attacks, with the name of their marker."""
    sections = [section(group, title) for group, title in GROUPS.items()]
    return {"attacks": "\n\n".join([summary(), *sections])}
