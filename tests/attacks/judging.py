"""How attacks are judged: by the code of the answer, or by what can be seen afterwards."""

from collections.abc import Callable, Mapping

from tests.attacks.attacker import Attacker
from tests.attacks.frames import CLOSED, Answer, Identity
from tests.attacks.model import Outcome, attack

HTTP_REFUSED = (401, 403, 421, 429)


def carried_out(answer: Answer) -> Outcome:
    """The attack succeeds if the server did it."""
    return Outcome(answer.code == 0, str(answer))


def admitted(answer: Answer) -> Outcome:
    """The attack succeeds if the server asked who sent it and let it through, even if it failed then."""
    return Outcome(not answer.is_refusal, str(answer))


def seen(succeeded: bool, answer: Answer) -> Outcome:
    """The attack succeeds if its effect was seen."""
    return Outcome(succeeded, str(answer) if not succeeded else f"done: {answer}")


def answered_by_http(answer: Answer) -> Outcome:
    """The attack succeeds unless the HTTP server refuses whoever asks."""
    return Outcome(answer.code not in (*HTTP_REFUSED, CLOSED), f"{answer.code}: {answer.remark}"[:160])


def one_request(
    id: str,
    name: str,
    server: str,
    code: int,
    fields: Mapping[str, object] | None = None,
    body: bytes = b"",
    *,
    asset: str,
    by: Identity | None = None,
    answer: str = "",
    ruins: bool = False,
    open: bool = True,
    judge: Callable[[Answer], Outcome] = carried_out,
) -> None:
    """Declares an attack of one request. judge: carried_out or admitted."""

    async def how(attacker: Attacker) -> Outcome:
        return judge(await attacker.ask(server, code, fields, body, by=by))

    success = f"{code} is carried out" if judge is carried_out else f"the {server} lets it through"
    attack(id, name, asset=asset, success=success, answer=answer, ruins=ruins, open=open)(how)
