"""Which requests servers have admitted, and who had signed them. Observes the real signers and the real
check.

An admitted request was signed by one of us for this server, is unaltered, and was admitted once. A push
(1008) names no recipient, so each server may admit it once. A proof is also used up when its server restarts,
unless it was stamped ahead of that server's clock (ADR 31, "What remains").
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest import mock

from keelmq.remoting.command import RemotingCommand
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.member_proof import PROOF, digest_of
from keelmq.security.core.signature import ExtFields
from keelmq.security.signer import RequestSigner
from tests.sim.checkers import Violation
from tests.sim.secure.keys import ATTACKER
from tests.sim.whole.machines import PROCESS, Process

TOLD = 5


@dataclass(frozen=True)
class Issued:
    """A request that was signed. recipient: whom its proof names; "": nobody. wall_ms: its time stamp."""

    by: str
    content: bytes
    recipient: str
    wall_ms: int


@dataclass(frozen=True)
class Admission:
    """`since_ms`: the earliest time that the server's wall clock has shown in that run."""

    address: str
    run: Process
    since_ms: int


def content_of(code: int, ext_fields: ExtFields, body: bytes) -> bytes:
    """Everything of a request that its sender means, as one value to compare."""
    return hashlib.sha256(repr((int(code), sorted(ext_fields.items()), bytes(body))).encode()).digest()


@dataclass
class Admissions:
    """`issued`: by proof. `violations`: the first few. `refused`: how many requests, by reason. `unnamed`:
    how many proofs name nobody, although their address was known: as if addresses were translated (ADR 31).
    """

    issued: dict[str, Issued] = field(default_factory=dict)
    granted: dict[str, list[Admission]] = field(default_factory=dict)
    since_ms: dict[Process, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    unnamed: int = 0

    def started(self, run: Process, wall_ms: int) -> None:
        """A server's process begins, at this time by its own wall clock."""
        self.since_ms[run] = wall_ms

    def signed(self, by: str, command: RemotingCommand, address: str) -> None:
        """One of us has signed this request, for this address."""
        fields = command.ext_fields
        proof = fields.get(PROOF)
        if proof is None:
            return
        named = bool(address) and proof.endswith(digest_of(fields, command.body, address))
        self.unnamed += bool(address) and not named
        self.issued[proof] = Issued(
            by,
            content_of(command.code, fields, command.body),
            address if named else "",
            int(proof.split(":")[1]),
        )

    def checked(self, run: Process, request: AccessRequest, verdict: Granted | Refused, now_ms: int) -> None:
        """A server has decided about a request."""
        self.since_ms[run] = min(now_ms, self.since_ms.get(run, now_ms))
        if isinstance(verdict, Refused):
            self.refused[verdict.reason] += 1
            return
        proof = (request.ext_fields or {}).get(PROOF)
        what = f"{run.name} ({request.own_address}) has admitted {request.code} of {request.peer_ip}"
        if not verdict.username:
            self._wrong(f"{what}, which nobody has signed")
        elif proof:
            self._proven(what, run, request, proof)
        elif verdict.is_member:
            self._wrong(f"{what} as a member's, without a proof")

    def _proven(self, what: str, run: Process, request: AccessRequest, proof: str) -> None:
        issued = self.issued.get(proof)
        content = content_of(request.code, request.ext_fields or {}, request.body)
        if issued is None or issued.content != content:
            self._wrong(f"{what}, which nobody of us has sent like that")
            return
        if issued.recipient not in ("", request.own_address):
            self._wrong(f"{what}, which {issued.by} had sent to {issued.recipient}")
        before = self.granted.setdefault(proof, [])
        for each in before:
            if each.run is run:
                self._wrong(f"{what} twice")
            elif each.address == request.own_address and issued.wall_ms < self.since_ms[run]:
                self._wrong(f"{what} again after its restart")
        before.append(Admission(request.own_address, run, self.since_ms[run]))

    def _wrong(self, what: str) -> None:
        if len(self.violations) < TOLD:
            self.violations.append(what)

    def raise_problem(self) -> None:
        if self.violations:
            raise Violation("; ".join(self.violations))

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Inside, every signature and every check is seen."""
        sign: Callable[[RequestSigner, RemotingCommand, str], None] = RequestSigner.__call__
        check = AccessControl.check

        def signing(signer: RequestSigner, command: RemotingCommand, address: str) -> None:
            sign(signer, command, address)
            process = PROCESS.get()
            if process is not None and not process.name.startswith(ATTACKER):
                self.signed(process.name, command, address)

        def checking(control: AccessControl, request: AccessRequest, now_ms: int) -> Granted | Refused:
            verdict = check(control, request, now_ms)
            process = PROCESS.get()
            if process is not None and process.alive and process in self.since_ms:
                self.checked(process, request, verdict, now_ms)
            return verdict

        with (
            mock.patch.object(RequestSigner, "__call__", signing),
            mock.patch.object(AccessControl, "check", checking),
        ):
            yield
