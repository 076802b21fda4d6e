"""open_tls: a connection of ours, up to the end of its handshake."""

import asyncio
from collections.abc import Callable

from keelmq.runtime.tls.contexts import ClientTls
from keelmq.runtime.tls.transport import BufferedTls, TlsError, TlsTransport


async def open_tls(
    tls: ClientTls,
    make_protocol: Callable[[], asyncio.BufferedProtocol],
    host: str,
    port: int,
    scratch: memoryview,
) -> TlsTransport:
    """Returns the transport; its `protocol` was made by make_protocol(). OSError: nothing answers there.
    TlsError: ClientTls.explain() has more words for it. The caller bounds the time; a cancelled attempt
    leaves nothing. After OpenSSL's refusal, or the peer's alert, our files are read at once: those of the
    server may have been renewed, too. A connection that is merely lost says nothing about them."""
    await tls.refresh()
    try:
        return await _attempt(tls, make_protocol, host, port, scratch)
    except TlsError as error:
        renewed = error.__cause__ is not None and tls.files.named() and await asyncio.to_thread(tls.check)
        if not renewed:
            raise
    return await _attempt(tls, make_protocol, host, port, scratch)


async def _attempt(
    tls: ClientTls,
    make_protocol: Callable[[], asyncio.BufferedProtocol],
    host: str,
    port: int,
    scratch: memoryview,
) -> TlsTransport:
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def handshake_over(_layer: TlsTransport, error: TlsError | None) -> None:
        if over.done():
            return
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)

    def layer() -> BufferedTls:
        return BufferedTls(
            scratch,
            tls.context,
            server_side=False,
            server_hostname=host if tls.verifies_hostname or _is_name(host) else None,
            make_protocol=make_protocol,
            on_handshake=handshake_over,
        )

    _, made = await loop.create_connection(layer, host, port)
    try:
        await over
    except BaseException:
        made.abort()
        raise
    return made


def _is_name(host: str) -> bool:
    """For SNI, which has names only."""
    return ":" not in host and not host.replace(".", "").isdigit()
