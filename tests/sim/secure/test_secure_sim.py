"""Secure groups by seed, protections switched off, and bad histories for the judges."""

from collections import Counter
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import pytest

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.security.core.access import AccessControl, AccessRequest, Granted, Refused
from keelmq.security.core.access_settings import AccessSettings
from keelmq.security.core.acls import Acl
from keelmq.security.core.contexts import Role
from keelmq.security.core.users import User, UserType
from keelmq.security.signer import signer_of
from tests.sim.checkers import Violation
from tests.sim.kinds import found_seeds
from tests.sim.secure.admissions import Admissions
from tests.sim.secure.keys import MEMBER
from tests.sim.secure.mutants import MUTANTS
from tests.sim.secure.scripts import a_name_is_used_again, rights_are_taken, users_before_a_switch
from tests.sim.secure.users import UserJudge, UserState
from tests.sim.secure.world import Story, run, run_seed
from tests.sim.whole.machines import Process
from tests.support.slices import first

FAST, SLOW = range(1, 3), range(3, 200)
RARE = 8
"""A slave dials the attacker that took its master's address."""
ran = cache(run_seed)
"""For tests that look at the same seeds."""


@pytest.mark.parametrize("seed", first(2, [*found_seeds("secure"), *FAST]))
def test_no_attack_succeeds_and_every_promise_is_kept(seed: int) -> None:
    ran(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SLOW)
def test_no_attack_succeeds_in_more_weather(seed: int) -> None:
    run_seed(seed)


@pytest.mark.parametrize("script", first(1, [users_before_a_switch, a_name_is_used_again, rights_are_taken]))
def test_what_was_acknowledged_about_users_holds_after_a_switch(script: Story) -> None:
    assert run(1, script).users.acknowledged >= 4


@pytest.mark.parametrize("name", first(1, list(MUTANTS)))
def test_without_this_protection_a_promise_is_broken(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.installed(), pytest.raises(Violation, match=mutant.found):
        for seed in mutant.seeds:
            run(seed, mutant.script)


def test_the_same_seed_gives_the_same_run() -> None:
    seed = found_seeds("secure")[0]
    one, other = ran(seed), run_seed(seed)
    assert one.notes == other.notes
    assert list(one.admissions.granted) == list(other.admissions.granted)
    assert one.attacker.counts == other.attacker.counts
    assert one.users.known == other.users.known


@pytest.mark.slow
def test_the_worlds_have_attacks_in_them() -> None:
    """A quiet attacker proves nothing."""
    worlds = [ran(seed) for seed in [*FAST, RARE, *found_seeds("secure")]]
    attacks = sum((each.attacker.counts + each.on_path.counts for each in worlds), start=Counter())
    assert attacks.keys() >= {
        *("forged", "replayed", "pushed", "pushed as a server", "took an address", "challenged a slave"),
        *("replicated by plain", "replicated by guess", "replicated by replay"),
        *("twice", "late", "swapped", "again"),
    }
    refused = sum((each.admissions.refused for each in worlds), start=Counter())
    assert refused.keys() >= {"proof", "signature", "unsigned", "user"}
    assert sum(each.users.acknowledged for each in worlds) > 20
    assert sum(each.users.probes for each in worlds) > 200


class TestTheAdmissions:
    """The judge must reject each admission that is wrong in the way it looks for."""

    HERE, ELSEWHERE = "10.0.0.1:9878", "10.0.0.2:9878"
    NOW_MS = 5_000_000_000_000  # after every time stamp of the real clock

    def judged(self, change: Callable[[RemotingCommand], object] = id, *, address: str = HERE) -> Admissions:
        """A request that a member signs, changed on its way, and admitted at `address`."""
        judge = Admissions()
        self.run = Process(SimpleNamespace(), "n0", "10.0.0.1")  # type: ignore[arg-type]
        judge.started(self.run, 0)
        command = RemotingCommand(1001, ext_fields={"brokerName": "broker-a"}, body=b"body")
        signer_of(MEMBER, proof=True)(command, self.HERE)
        judge.signed("b1", command, self.HERE)
        change(command)
        self.admit(judge, command, address)
        self.command = command
        return judge

    def admit(
        self, judge: Admissions, command: RemotingCommand, address: str, run: Process | None = None
    ) -> None:
        request = AccessRequest(
            command.code,
            command.version,
            command.ext_fields,
            command.body,
            "10.0.1.1",
            own_address=address,
        )
        granted = Granted(MEMBER.access_key, Role.ADMINISTER, is_member=True)
        judge.checked(run or self.run, request, granted, self.NOW_MS)

    def test_a_request_that_arrives_as_it_was_signed(self) -> None:
        self.judged().raise_problem()

    def test_a_request_that_was_altered(self) -> None:
        for change in (
            lambda command: setattr(command, "body", b"other"),
            lambda command: setattr(command, "code", 1002),
            lambda command: command.ext_fields.update(brokerName="broker-b"),
        ):
            with pytest.raises(Violation, match="nobody of us has sent like that"):
                self.judged(change).raise_problem()

    def test_a_request_without_a_proof_or_a_user(self) -> None:
        judge = self.judged(lambda command: command.ext_fields.clear())
        with pytest.raises(Violation, match="without a proof"):
            judge.raise_problem()
        judge = Admissions()
        judge.started(self.run, 0)
        request = AccessRequest(1001, 455, {}, b"", "10.6.6.6")
        judge.checked(self.run, request, Refused(16, "no", "unsigned"), 0)
        judge.raise_problem()
        judge.checked(self.run, request, Granted("", Role.ADMINISTER), 0)
        with pytest.raises(Violation, match="which nobody has signed"):
            judge.raise_problem()

    def test_a_request_for_another_server(self) -> None:
        with pytest.raises(Violation, match=f"which b1 had sent to {self.HERE}"):
            self.judged(address=self.ELSEWHERE).raise_problem()

    def test_a_request_that_is_admitted_twice(self) -> None:
        judge = self.judged()
        self.admit(judge, self.command, self.HERE)
        with pytest.raises(Violation, match="twice"):
            judge.raise_problem()

    def test_a_request_that_is_admitted_again_after_a_restart(self) -> None:
        judge = self.judged()
        later = Process(SimpleNamespace(), "n0", "10.0.0.1")  # type: ignore[arg-type]
        judge.started(later, self.NOW_MS)
        self.admit(judge, self.command, self.HERE, later)
        with pytest.raises(Violation, match="again after its restart"):
            judge.raise_problem()


class Tables:
    """Users and ACLs of one broker."""

    generation = 0

    def __init__(self, *users: User) -> None:
        self.users = {user.username: user for user in users}

    def user(self, username: str) -> User | None:
        return self.users.get(username)

    def acl(self, subject: str) -> Acl | None:
        return None


class TestTheUserJudge:
    BEFORE, AFTER = UserState("one", is_super=True), UserState("two", is_super=True)
    NO = Failed(ResponseCode.NO_PERMISSION, "")
    YES = Ok(Empty(), b"")

    def judge(self) -> UserJudge:
        judge = UserJudge()
        judge.created("carol", self.BEFORE)
        return judge

    def test_what_was_acknowledged_is_there(self) -> None:
        judge = self.judge()
        judge.judge("b1", {"carol": self.BEFORE})
        with pytest.raises(Violation, match="b1 has user carol"):
            judge.judge("b1", {"carol": UserState()})

    def test_a_change_that_is_under_way_may_be_there(self) -> None:
        judge = self.judge()
        judge.asked("carol", self.AFTER)
        for state in (self.BEFORE, self.AFTER):
            judge.judge("b1", {"carol": state})
        judge.answered("carol", self.YES)
        judge.judge("b1", {"carol": self.AFTER})
        with pytest.raises(Violation, match="has user carol"):
            judge.judge("b1", {"carol": self.BEFORE})

    def test_a_user_that_is_deleted_stays_deleted(self) -> None:
        judge = self.judge()
        judge.asked("carol", UserState())
        judge.answered("carol", self.YES)
        with pytest.raises(Violation, match="has user carol"):
            judge.judge("b2", {"carol": self.BEFORE})

    def test_a_change_that_was_not_acknowledged_is_not_judged(self) -> None:
        judge = self.judge()
        judge.asked("carol", self.AFTER)
        judge.answered("carol", self.NO)
        assert judge.retired == {"carol"}
        judge.judge("b1", {})

    def test_doors(self) -> None:
        """The old password opens nothing, the new one does; disabled, nothing does."""
        judge, on = self.judge(), AccessSettings(authentication_enabled=True, authorization_enabled=True)
        judge.asked("carol", self.AFTER)
        judge.answered("carol", self.YES)
        two = AccessControl(Tables(User("carol", "two", UserType.SUPER)), on)
        judge.judge_doors("b1", two, 0)
        with pytest.raises(Violation, match=r"lets in user carol .* with 'one'"):
            judge.judge_doors("b1", AccessControl(Tables(User("carol", "one", UserType.SUPER)), on), 0)
        with pytest.raises(Violation, match=r"refuses user carol .* with 'two'"):
            judge.judge_doors("b1", AccessControl(Tables(), on), 0)
        judge.asked("carol", UserState("two", is_enabled=False, is_super=True))
        judge.answered("carol", self.YES)
        with pytest.raises(Violation, match="lets in user carol"):
            judge.judge_doors("b1", two, 0)
