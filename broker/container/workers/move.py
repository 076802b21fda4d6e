"""Moves a broker from one host to another: stop there, with a hand-over, then start here. Its store is one
directory, so it is down in between; in controller mode another replica is the master by then."""

from typing import NoReturn

from broker.container.host import BrokerHost, BrokerRefused, InnerSetup


class MoveRefused(BrokerRefused):
    """The broker was not moved. is_serving: it still serves at the source; else it serves nowhere."""

    def __init__(self, text: str, *, is_serving: bool) -> None:
        super().__init__(text)
        self.is_serving = is_serving


async def move(setup: InnerSetup, source: BrokerHost, target: BrokerHost) -> None:
    """Returns when the broker serves at the target. Raises MoveRefused, after it was started at the source
    again, if that was possible. Do not cancel it: the broker could end up on neither host."""
    name = setup.identity.canonical_name
    try:
        await source.stop(setup.identity, hand_over=True)
    except BrokerRefused as error:
        # Its remains (a port, its store's lock) would block the start at the target, too.
        await _roll_back(setup, source, f"{name} was not moved, since it did not stop as it should: {error}")
    try:
        await target.start(setup)
    except BrokerRefused as error:
        await _roll_back(setup, source, f"{name} was not moved, since the target cannot start it: {error}")


async def _roll_back(setup: InnerSetup, source: BrokerHost, why: str) -> NoReturn:
    """Raises MoveRefused in any case."""
    try:
        await source.start(setup)
    except BrokerRefused as error:
        raise MoveRefused(f"{why}; nor can it go back: {error}", is_serving=False) from error
    raise MoveRefused(f"{why}; it serves where it was", is_serving=True)
