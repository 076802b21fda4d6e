"""TLS for every port and every connection: settings, contexts that follow their files, transports.

Nothing here knows RocketMQ. A thread or a raw socket uses `ServerTls.context` and `ClientTls.context`, which
are plain ssl.SSLContexts; an asyncio protocol uses TlsPort (accepted) or open_tls() (dialled).
"""
