"""AcceptingServer: grpcio's server for asyncio, which no path of a call can end.

In grpcio the task that accepts all calls decodes the paths of those to methods that are not registered. If
one is no UTF-8, this task fails, and the server shuts down: anybody who can connect could end it like this.
Here each method has a task of its own, which knows its name, and one more task refuses the calls to all other
paths without a look at them. The task of grpcio only waits until they end.

This uses names that grpcio calls private, and has since version 1.85.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from grpc._cython import cygrpc
from grpc.aio import _server

NO_METHOD: Final = ""
VERBOSITY: Final = "GRPC_VERBOSITY"


class _Acceptors(cygrpc.AioServer):  # type: ignore[misc]
    """The part of grpcio that accepts calls. calls_max: that run at once; others are refused."""

    def __init__(self, options: Sequence[tuple[str, int]], calls_max: int) -> None:
        self._loop_of_calls = asyncio.get_running_loop()
        super().__init__(self._loop_of_calls, None, (), (), tuple(options), None)
        self._handlers: dict[str, Any] = {}
        self._calls_max, self._running = calls_max, 0
        self._calls: set[asyncio.Task[None]] = set()

    def add_registered_method_handlers(self, method_handlers: Mapping[str, Any]) -> None:
        """Adds methods, by their paths."""
        self._handlers |= method_handlers
        super().add_registered_method_handlers(method_handlers)

    def _make_request_call_future(self, method: bytes | None) -> "asyncio.Task[None]":
        """Called by grpcio at the start, once for each method, and with None for all other paths."""
        return self._loop_of_calls.create_task(self._accept(method), name="calls are accepted")

    async def _accept(self, method: bytes | None) -> None:
        """Accepts calls until the server stops: grpcio then raises its error for that, and expects it."""
        name = NO_METHOD if method is None else method.decode()
        resolver = cygrpc._MethodResolver([], self._handlers)
        while True:
            if method is None:
                state = await self._request_call()
            else:
                state = await self._request_registered_call(method)
            is_full = self._running >= self._calls_max
            call = cygrpc._handle_rpc(name, resolver, (), state, self._loop_of_calls, is_full)
            task = self._loop_of_calls.create_task(
                cygrpc._schedule_rpc_coro(call, state, self._loop_of_calls, name), name=f"call of {name}"
            )
            self._calls.add(task)
            self._running += not is_full
            task.add_done_callback(self._refused if is_full else self._ended)

    def _refused(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        self._running -= 1


class AcceptingServer(_server.Server):
    """As grpc.aio.server(), with registered methods only."""

    def __init__(self, options: Sequence[tuple[str, int]], calls_max: int) -> None:
        os.environ.setdefault(VERBOSITY, "NONE")  # it writes a line to stderr for each bad header of a client
        self._loop = asyncio.get_running_loop()
        self._server = _Acceptors(options, calls_max)
