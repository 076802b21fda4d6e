"""Signs the requests of a client: RocketMQ's ACL hook of clients (AclClientRPCHook), plus the proof of our
own programs and tools."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from keelmq.remoting.command import RemotingCommand
from keelmq.runtime.clock import wall_ms
from keelmq.security.core.member_proof import SENDER_BYTES, with_proof
from keelmq.security.core.signature import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    SecretKey,
    signed_bytes,
)

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


RecipientOf = Callable[[str], str]
"""(address that is called) -> whom a proof is for, as the server knows itself; "": everybody."""


def everybody(address: str) -> str:
    """The RecipientOf of those who know servers by configured addresses only: names of a DNS or of a
    service, which the servers need not know."""
    return ""


def signer_of(
    credentials: Credentials, *, proof: bool = False, recipient_of: RecipientOf = everybody
) -> Signer:
    """Returns what signs requests with these credentials. proof: adds the proof that a request is new and
    unaltered, which only KeelMQ's servers check."""
    secret = SecretKey(credentials.secret_key.encode())
    numbers = _Numbers()

    def sign(command: RemotingCommand, address: str) -> None:
        fields = {**command.ext_fields}
        fields.pop(SIGNATURE, None)
        if credentials.security_token is not None:
            fields[SECURITY_TOKEN] = credentials.security_token
        if proof:
            sender, number = numbers.next()
            fields = with_proof(
                command.code,
                fields,
                command.body,
                now_ms=wall_ms(),
                sender=sender,
                number=number,
                recipient=recipient_of(address),
            )
        fields[ACCESS_KEY] = credentials.access_key
        data = signed_bytes(fields, command.body, command.version)
        fields[SIGNATURE] = secret.signature_of(data).decode()
        command.ext_fields = fields

    return sign


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


def optional_signer(
    credentials: Credentials | None, *, proof: bool = False, recipient_of: RecipientOf = everybody
) -> Signer | None:
    """Returns the signer, or None without credentials."""
    return None if credentials is None else signer_of(credentials, proof=proof, recipient_of=recipient_of)


def check_shared(client: object, credentials: Credentials | None) -> None:
    """Raises ValueError if a client that is shared should sign: it has its own signer, or none."""
    if client is not None and credentials is not None:
        raise ValueError(
            "give the credentials to the shared client, as RemotingClient(signer=signer_of(...))"
        )
