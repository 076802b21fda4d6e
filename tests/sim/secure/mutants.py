"""Protections of a secure cluster, each switched off: what the checkers must notice. Test the testers."""

import hmac
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

from broker.ha.core import hello
from broker.ha.security import HaSecurity
from broker.metadata import broker_users, service
from broker.metadata.service import Metadata
from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Caller
from keelmq.security.core import access, member_proof
from keelmq.security.core.access import AccessControl
from keelmq.security.core.member_proof import OTHER_RECIPIENT, MemberProofs
from keelmq.security.server_access import ServerAccess
from tests.sim.secure.keys import ADMIN
from tests.sim.secure.scripts import a_name_is_used_again, rights_are_taken, users_before_a_switch
from tests.sim.secure.world import Story, story
from tests.sim.whole.programs import BROKER_PORT, CONTROLLER_PORT, NAMESRV_PORT

PUSHED = (RequestCode.NOTIFY_BROKER_ROLE_CHANGED, 29005)
EVERYBODY = [f"10.0.0.{n}:{port}" for n in (1, 2, 3) for port in (CONTROLLER_PORT, NAMESRV_PORT)]
EVERYBODY += [f"10.0.1.{n}:{BROKER_PORT}" for n in (1, 2, 3, 4, 5)]


@dataclass(frozen=True)
class Mutant:
    """`found`: what the violation says (a regular expression); `seeds`: enough of them, when this was written
    the first one."""

    found: str
    patches: tuple[tuple[Any, str, Any], ...]
    script: Story = story
    seeds: range = range(1, 20)

    @contextmanager
    def installed(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, value in self.patches:
                stack.enter_context(mock.patch.object(owner, name, value))
            yield


_check = MemberProofs.check


def _for_anybody(
    proofs: MemberProofs,
    code: int,
    ext_fields: Any,
    body: bytes,
    now_ms: int,
    own_address: str = "",
    *,
    user: str = "",
) -> str | None:
    why: str | None = OTHER_RECIPIENT
    for address in (own_address, *EVERYBODY):
        if why == OTHER_RECIPIENT:
            why = _check(proofs, code, ext_fields, body, now_ms, address, user=user)
    return why


_admit = ServerAccess.admit


def _pushes_unchecked(server: ServerAccess, request: Any, peer: Any) -> Caller:
    return Caller() if request.code in PUSHED else _admit(server, request, peer)


_replicated: Callable[..., Any] = Metadata.replicated


async def _users_at_once(metadata: Metadata, table: Any, version: Any) -> None:
    if table not in (metadata.users, metadata.acls):
        await _replicated(metadata, table, version)


_begin_term = Metadata.begin_term


async def _without_users(metadata: Metadata, *arguments: Any, **named: Any) -> None:
    is_founded = ADMIN.access_key in metadata.users.table.rows
    await _begin_term(metadata, *arguments, **named)
    if not is_founded:
        return
    for table in (metadata.users, metadata.acls):
        table.change({}, dict.fromkeys(table.table.rows, 0))  # type: ignore[attr-defined]


def _first_users_again(wanted: Any, users: Any, _acls: Any) -> None:
    known = {name for name, user in users.table.rows.items() if not user.is_deleted}
    users.change({user.username: user for user, _ in wanted if user.username not in known})


def _nothing(*_: object) -> None: ...


UNCOMPARED = SimpleNamespace(digest=hmac.digest, compare_digest=lambda *_: True)

MUTANTS = {
    "a proof holds again": Mutant("twice", ((member_proof._Sender, "use", _nothing),)),
    "a proof is for every server": Mutant("had sent to", ((MemberProofs, "check", _for_anybody),)),
    "a proof is for every content": Mutant(
        "has sent like that|had sent to", ((member_proof, "hmac", UNCOMPARED),)
    ),
    "a restart forgets what was used": Mutant(
        "again after its restart", ((MemberProofs, "_is_before", lambda *_: False),)
    ),
    "signatures are not compared": Mutant(
        "attacker's|sent like that", ((access, "verify", lambda *_: True),)
    ),
    "pushes are not checked": Mutant("attacker's port", ((ServerAccess, "admit", _pushes_unchecked),)),
    "anybody replicates": Mutant("HA port of", ((HaSecurity, "admits_plain", lambda *_: True),)),
    "hellos are not compared": Mutant("HA port of|false master", ((hello, "hmac", UNCOMPARED),)),
    "users are answered at once": Mutant(
        "has user", ((Metadata, "replicated", _users_at_once),), users_before_a_switch
    ),
    "a promotion drops the users": Mutant("has user", ((Metadata, "begin_term", _without_users),)),
    "the first user comes back": Mutant("user root", ((service, "create_first", _first_users_again),)),
    "rights outlive their user": Mutant(
        "has user|lets in user",
        ((broker_users, "subject_of", lambda name: f"User:not {name}"),),
        a_name_is_used_again,
    ),
    "what was allowed stays allowed": Mutant(
        "lets in user", ((AccessControl, "_forget", _nothing),), rights_are_taken
    ),
}
