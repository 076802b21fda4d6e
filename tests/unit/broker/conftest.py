"""Fixtures of all tests of the broker's packages."""

from collections.abc import AsyncIterator, Iterator

import pytest

from broker.store.message_store import MessageStore
from keelmq.remoting.client import RemotingClient


@pytest.fixture(autouse=True)
def _stores_are_closed() -> Iterator[None]:
    """Many tests leave their store open, with three files or more until a full garbage collection: where a
    process may have 1,024 files, a later test failed."""
    opened, load, close = set[MessageStore](), MessageStore.load, MessageStore.close

    def loaded(store: MessageStore, *arguments: object) -> None:
        opened.add(store)
        load(store, *arguments)  # type: ignore[arg-type]

    def closed(store: MessageStore, clean: bool = True) -> None:
        opened.discard(store)
        close(store, clean)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MessageStore, "load", loaded)
        patched.setattr(MessageStore, "close", closed)
        yield
    for store in opened:
        store.close(clean=False)


@pytest.fixture
async def client() -> AsyncIterator[RemotingClient]:
    made = RemotingClient()
    yield made
    await made.close()
