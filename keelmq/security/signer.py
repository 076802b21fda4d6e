"""Signs the requests of a client: RocketMQ's ACL hook of clients (AclClientRPCHook), plus the proof of our
own programs and tools."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from keelmq.remoting.command import RemotingCommand
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.security.core.member_proof import OTHER_RECIPIENT, SENDER_BYTES, with_proof
from keelmq.security.core.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    SecretKey,
    signed_bytes,
)

logger = logging.getLogger(__name__)

TRANSLATED_MAX: Final = 1_000
"""Addresses that are remembered as translated ones; more begin anew."""

Signer = Callable[[RemotingCommand, str], None]
"""Sets ext fields of a request (command, address of the recipient) just before it is encoded."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs its requests with. access_key: the user's name; secret_key: the password;
    security_token: of a temporary account. The secrets are not in the repr."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ValueError("credentials need an access key and a secret key")
        for name in ("access_key", "secret_key", "security_token"):
            try:
                (getattr(self, name) or "").encode()
            except UnicodeEncodeError:
                # The error would have the secret in its text.
                raise ValueError(f"{name} is not valid Unicode") from None


class RequestSigner:
    """Signs requests. A proof names the server, by the address that the connection goes to: the server has
    the same one for its own, unless addresses are translated in between. Then it refuses the first request,
    and further ones to that address name no server: if they are captured, each could be sent to other servers
    as well, once and within the window."""

    def __init__(self, credentials: Credentials, *, proof: bool = False) -> None:
        """proof: adds the proof that a request is new and unaltered, which only KeelMQ's servers check."""
        self._credentials, self._proof = credentials, proof
        self._secret = SecretKey(credentials.secret_key.encode())
        self._numbers = _Numbers()
        self._translated: set[str] = set()

    def __call__(self, command: RemotingCommand, address: str) -> None:
        credentials, fields = self._credentials, {**command.ext_fields}
        fields.pop(SIGNATURE, None)
        if credentials.security_token is not None:
            fields[SECURITY_TOKEN] = credentials.security_token
        if self._proof:
            sender, number = self._numbers.next()
            fields = with_proof(
                command.code,
                fields,
                command.body,
                now_ms=wall_ms(),
                uptime_ms=now_ms(),
                sender=sender,
                number=number,
                recipient="" if address in self._translated else address,
            )
        fields[ACCESS_KEY] = credentials.access_key
        data = signed_bytes(fields, command.body, command.version)
        fields[SIGNATURE] = self._secret.signature_of(data).decode()
        command.ext_fields = fields

    def signs_anew(self, address: str, remark: str) -> bool:
        """A server refused a request: whether it is to be signed and sent again, without a recipient."""
        if OTHER_RECIPIENT not in remark or not address or address in self._translated:
            return False
        if len(self._translated) >= TRANSLATED_MAX:
            self._translated.clear()
        self._translated.add(address)
        logger.info("%s knows itself by another address: requests do not name it as their recipient", address)
        return True


def signer_of(credentials: Credentials, *, proof: bool = False) -> Signer:
    """Returns what signs requests with these credentials, see RequestSigner."""
    return RequestSigner(credentials, proof=proof)


class _Numbers:
    """Numbers the requests of this process."""

    def __init__(self) -> None:
        self._pid = -1

    def next(self) -> tuple[bytes, int]:
        """Returns the name of the sender and the number of its next request."""
        if self._pid != os.getpid():
            # A forked child must not use its parent's numbers.
            self._pid, self._sender, self._number = os.getpid(), os.urandom(SENDER_BYTES), -1
        self._number += 1
        return self._sender, self._number


def optional_signer(credentials: Credentials | None, *, proof: bool = False) -> Signer | None:
    """Returns the signer, or None without credentials."""
    return None if credentials is None else signer_of(credentials, proof=proof)


def check_shared(client: object, credentials: Credentials | None) -> None:
    """Raises ValueError if a client that is shared should sign: it has its own signer, or none."""
    if client is not None and credentials is not None:
        raise ValueError(
            "give the credentials to the shared client, as RemotingClient(signer=signer_of(...))"
        )
