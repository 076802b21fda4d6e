"""Users and ACLs that an administrator changes, what is known of them for sure, and who tries to use them.

A change whose fate is unknown may still be carried out, late: its user's name is not used any more.
"""

import asyncio
import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from keelmq.remoting.codes import RequestCode
from keelmq.remoting.operation import Ok, Operation, Outcome, Wire
from keelmq.remoting.operations.auth import (
    AUTH_CREATE_ACL,
    AUTH_CREATE_USER,
    AUTH_DELETE_ACL,
    AUTH_DELETE_USER,
    AUTH_UPDATE_ACL,
    AUTH_UPDATE_USER,
    AclInfo,
    AclRequest,
    DeleteAclRequest,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    UserRequest,
)
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, UsersAndAcls
from keelmq.security.core.acls import subject_of
from keelmq.security.core.signature import signed
from tests.sim.checkers import Violation
from tests.sim.secure.keys import ROOT
from tests.sim.whole.clients import TOPICS, Client

if TYPE_CHECKING:
    from tests.sim.secure.world import SecureGroup

NAMES = 6
PROBE_FIELDS = {"a": "P", "c": "TBW102", "d": "2", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
"""A send (310), but for its topic; the check reads no more of it."""


@dataclass(frozen=True)
class UserState:
    """password None: there is no such user. topics: those that its ACL lets it send to; None: there is no
    ACL."""

    password: str | None = None
    is_enabled: bool = True
    is_super: bool = False
    topics: frozenset[str] | None = None

    def may_send(self, topic: str) -> bool:
        rights = self.is_super or topic in (self.topics or ())
        return self.password is not None and self.is_enabled and rights


@dataclass(frozen=True)
class Known:
    """state: after the last acknowledged change. next: after one that is under way. version: how many were
    acknowledged. passwords: all that the user has ever had."""

    state: UserState = UserState()
    next: UserState | None = None
    version: int = 0
    passwords: tuple[str, ...] = ()


def state_at(users: UsersAndAcls, name: str) -> UserState:
    """What the tables of a broker say."""
    user, acl = users.user(name), users.acl(subject_of(name))
    topics = None
    if acl is not None:
        entries = acl.info()["policies"][0]["entries"]
        topics = frozenset(each["resource"].removeprefix("Topic:") for each in entries)
    if user is None:
        return UserState(topics=topics)
    return UserState(user.password, user.is_enabled, user.is_super, topics)


@dataclass
class UserJudge:
    """What must be true of users at every new master, and at every replica in the end."""

    known: dict[str, Known] = field(default_factory=dict)
    retired: set[str] = field(default_factory=set)
    acknowledged: int = 0
    probes: int = 0

    def created(self, name: str, state: UserState) -> None:
        """A user is known to be there."""
        assert state.password is not None
        self.known[name] = Known(state, None, 1, (state.password,))

    def asked(self, name: str, after: UserState) -> None:
        self.known[name] = replace(self.known.get(name, Known()), next=after)

    def answered(self, name: str, outcome: Outcome[object]) -> None:
        """Only a yes is believed: a refusal may have been that of a copy."""
        known = self.known.get(name)
        if known is None or known.next is None:
            return
        if not isinstance(outcome, Ok):
            del self.known[name]
            self.retired.add(name)
            return
        self.acknowledged += 1
        after = known.next
        passwords = known.passwords
        if after.password is not None and after.password not in passwords:
            passwords = (*passwords, after.password)
        self.known[name] = Known(after, None, known.version + 1, passwords)

    def judge(self, who: str, tables: Mapping[str, UserState]) -> None:
        """tables: what `who` has of these users."""
        for name, known in sorted(self.known.items()):
            if tables[name] not in (known.state, known.next):
                raise Violation(
                    f"{who} has user {name} as {tables[name]}, {known.state} was acknowledged"
                    + (f", {known.next} was asked for" if known.next else "")
                )

    def judge_doors(
        self, who: str, control: AccessControl, now_ms: int, names: Collection[str] | None = None
    ) -> None:
        """Asks the check whether it lets in whom it should, with each password that a user ever had."""
        for name, known in sorted(self.known.items()):
            if known.next is not None or (names is not None and name not in names):
                continue
            for version in (known.version - 1, known.version):
                for place, password in enumerate(known.passwords):
                    # Failures throttle an address; what was granted to one may be remembered.
                    address = f"10.{100 + place}.{version // 250}.{version % 250}"
                    for topic in TOPICS:
                        self.probes += 1
                        let_in = self._is_let_in(control, name, password, topic, address, now_ms)
                        may = password == known.state.password and known.state.may_send(topic)
                        if let_in != may and (let_in or version == known.version):
                            doing = "lets in" if let_in else "refuses"
                            raise Violation(f"{who} {doing} user {name} ({known.state}) with {password!r}")

    @staticmethod
    def _is_let_in(
        control: AccessControl, name: str, password: str, topic: str, address: str, now_ms: int
    ) -> bool:
        fields = signed(name, password, {**PROBE_FIELDS, "b": topic}, b"probe")
        request = AccessRequest(RequestCode.SEND_MESSAGE_V2, 455, fields, b"probe", address)
        return isinstance(control.check(request, now_ms), Granted)


class UserAdministrator(Client):
    """Creates, changes and deletes users and ACLs, one change after the other."""

    world: "SecureGroup"

    def __init__(self, world: "SecureGroup", name: str, host: str, judged: UserJudge) -> None:
        self.judged, self.changes = judged, 0
        super().__init__(world, name, host)

    async def live(self) -> None:
        while True:
            await asyncio.sleep(self.dice.uniform(0.05, 0.4))
            if not self.stopping:
                await self.change()

    async def change(self) -> None:
        """One change of one user, by dice; what suits the state that it has."""
        known, dice = self.judged.known, self.dice
        slot = dice.randrange(NAMES)
        tries = (f"u{slot}-{number}" for number in itertools.count())
        name = next(each for each in tries if each not in self.judged.retired)
        root = known.get(ROOT.access_key, Known()).state
        if root.password is not None and dice.random() < 0.3:
            await self.delete(ROOT.access_key)
        elif known.get(name, Known()).state.password is None:
            await self.create(name, is_super=dice.random() < 0.2)
        else:
            change = (self.update, self.update, self.rights, self.rights, self.no_rights, self.delete)
            await dice.choice(change)(name)

    async def create(self, name: str, *, is_super: bool = False) -> None:
        self.changes += 1
        password = f"secret-{self.changes}"
        body = UserInfo(
            username=name,
            password=password,
            user_type="Super" if is_super else "Normal",
            user_status="enable",
        )
        topics = self._state(name).topics
        after = UserState(password, is_super=is_super, topics=topics)
        await self._ask(name, after, AUTH_CREATE_USER, UserRequest(username=name), body)

    async def update(self, name: str) -> None:
        self.changes += 1
        state, dice = self._state(name), self.dice
        after = replace(
            state,
            password=f"secret-{self.changes}" if dice.random() < 0.5 else state.password,
            is_enabled=dice.random() < 0.7,
            is_super=dice.random() < 0.2,
        )
        body = UserInfo(
            username=name,
            password=after.password,
            user_type="Super" if after.is_super else "Normal",
            user_status="enable" if after.is_enabled else "disable",
        )
        await self._ask(name, after, AUTH_UPDATE_USER, UserRequest(username=name), body)

    async def delete(self, name: str) -> None:
        """Its ACL goes with it."""
        await self._ask(name, UserState(), AUTH_DELETE_USER, UserRequest(username=name))

    async def rights(self, name: str) -> None:
        """Another topic, instead of those that it has or in addition."""
        state, topic = self._state(name), self.dice.choice(TOPICS)
        entries = [PolicyEntryInfo(resource=f"Topic:{topic}", actions=["Pub"], decision="Allow")]
        body = AclInfo(subject=subject_of(name), policies=[PolicyInfo(policy_type="Custom", entries=entries)])
        header = AclRequest(subject=subject_of(name))
        if state.topics is None:
            await self._ask(name, replace(state, topics=frozenset((topic,))), AUTH_CREATE_ACL, header, body)
        else:
            await self._ask(
                name, replace(state, topics=state.topics | {topic}), AUTH_UPDATE_ACL, header, body
            )

    async def no_rights(self, name: str) -> None:
        header = DeleteAclRequest(subject=subject_of(name))
        await self._ask(name, replace(self._state(name), topics=None), AUTH_DELETE_ACL, header)

    def _state(self, name: str) -> UserState:
        return self.judged.known.get(name, Known()).state

    async def _ask(
        self, name: str, after: UserState, operation: Operation[Wire, Wire], header: Wire, body: object = None
    ) -> None:
        self.judged.asked(name, after)
        outcome = await self.ask(operation, header, body)
        self.judged.answered(name, outcome)
        if isinstance(outcome, Ok):
            self.world.user_changed(name)
