"""Keeps a second `keelmq upgrade` away: a value in the KV configuration of every name server, which the run
that holds it changes every RENEW_S.

It is advisory. Name servers do not share the value, and nothing makes a server refuse a restart: a run that
reaches other name servers than the first one does not see it. No clocks are compared: a value that does
not change within STALE_S belongs to a run that has ended without deleting it.
"""

import asyncio
import getpass
import os
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

import msgspec

from cli.command_line import Refused
from keelmq.client.admin import AdminClient, AdminError
from keelmq.remoting.codes import ResponseCode
from keelmq.runtime.tasks import cancel_all

NAMESPACE, KEY = "KEELMQ_UPGRADE", "lease"
RENEW_S = 2.0
STALE_S = 10.0
"""Longer than a renewal that waits for a name server that does not answer."""
SETTLE_S = 0.5
"""From writing the value to reading it back: two runs that wrote at once see one of both."""
POLL_S = 0.25

T = TypeVar("T")


class Held(Exception):
    """Another run goes on; the text says whose."""


class Value(msgspec.Struct, frozen=True):
    """What is stored. token: of one run. renewals: grows while it goes on."""

    holder: str
    token: str
    renewals: int = 0


class Lease:
    """`async with` holds it within the block. name_servers: all of them, as they are known now."""

    def __init__(
        self, admin: AdminClient, name_servers: Callable[[], str], tell: Callable[[str], None]
    ) -> None:
        self._admin, self._name_servers, self._tell = admin, name_servers, tell
        self._value = Value(_holder(), secrets.token_hex(8))
        self._renewal: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Raises Held; Refused: this user may not write."""
        await self._others_have_ended()
        try:
            await self._each(self._put)
            await asyncio.sleep(SETTLE_S)
            await self.check()
        except BaseException:
            await self._delete()
            raise
        self._renewal = asyncio.create_task(self._renew(), name="upgrade lease")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._renewal is not None
        await cancel_all([self._renewal])
        await self._delete()

    async def check(self) -> None:
        """Raises Held: another run has written its value since."""
        for value in (await self._read()).values():
            if value.token != self._value.token:
                raise Held(f"another keelmq upgrade goes on, of {value.holder}")

    async def _others_have_ended(self) -> None:
        """Returns once no value is there that changes."""
        first = await self._read()
        deadline_s = asyncio.get_running_loop().time() + STALE_S
        if first:
            holder = next(iter(first.values())).holder
            self._tell(
                f"a keelmq upgrade of {holder} has begun: looking for {STALE_S:g} s whether it goes on"
            )
        now = first
        while now and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(POLL_S)
            now = await self._read()
            for address, value in now.items():
                if address in first and value != first[address]:
                    raise Held(f"another keelmq upgrade goes on, of {value.holder}")

    async def _renew(self) -> None:
        """A name server that does not answer delays no other one."""

        async def put(address: str) -> None:
            text = await self._get(address)
            if not text or (value := _value(text)) is None or value.token == self._value.token:
                await self._put(address)

        while True:
            await asyncio.sleep(RENEW_S)
            self._value = msgspec.structs.replace(self._value, renewals=self._value.renewals + 1)
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_S):
                    await self._each(put)

    async def _read(self) -> dict[str, Value]:
        """Returns name server -> value. Those that do not answer, or have none, are absent."""
        texts = zip(self._addresses, await self._each(self._get), strict=True)
        return {at: value for at, text in texts if text and (value := _value(text)) is not None}

    async def _put(self, address: str) -> None:
        text = msgspec.json.encode(self._value).decode()
        await self._admin.name_servers.put_kv_config(address, NAMESPACE, KEY, text)

    async def _delete(self) -> None:
        """Deletes the own value only."""
        mine = {at for at, each in (await self._read()).items() if each.token == self._value.token}

        async def delete(address: str) -> None:
            if address in mine:
                await self._admin.name_servers.delete_kv_config(address, NAMESPACE, KEY)

        await self._each(delete)

    async def _get(self, address: str) -> str | None:
        return await self._admin.name_servers.get_kv_config(address, NAMESPACE, KEY)

    @property
    def _addresses(self) -> list[str]:
        return [each for each in self._name_servers().split(";") if each]

    async def _each(self, ask: Callable[[str], Awaitable[T]]) -> list[T | None]:
        """Returns the answers, in the order of the addresses; None: there is none. Raises Refused."""
        return list(await asyncio.gather(*(self._one(ask, each) for each in self._addresses)))

    async def _one(self, ask: Callable[[str], Awaitable[T]], address: str) -> T | None:
        try:
            return await ask(address)
        except AdminError as error:
            if error.code == ResponseCode.NO_PERMISSION:
                raise Refused(
                    f"{address}: {error.remark}: an upgrade needs a user who may change the KV configuration"
                ) from None
            return None


def _value(text: str) -> Value | None:
    """Returns the value; None: it is none that a run has written."""
    try:
        return msgspec.json.decode(text, type=Value)
    except msgspec.MsgspecError:
        return None


def _holder() -> str:
    """Returns who runs this, for people."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = str(os.getuid())
    return f"{user} at {socket.gethostname()}, process {os.getpid()}"
