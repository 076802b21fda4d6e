"""Voters: a first change of the members is compared with what the others have in their files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from namesrv.plugins.controller.raft.api import RaftSettings
from namesrv.plugins.controller.raft.codec import MemberListNote
from namesrv.plugins.controller.raft.membership.member_list import MemberList
from namesrv.plugins.controller.raft.membership.voters import Voters

OLD = ("n0", "n1", "n2")


def voters_of(own: str, *ids: str, links: Any = None, leads: bool = False) -> Voters:
    members = dict.fromkeys(ids, ("127.0.0.1", 1))
    core: Any = SimpleNamespace(leads=leads, set_other_voters=lambda others: None)
    joining: Any = None
    settings = RaftSettings(own, members, Path(), "group", insecure=True)
    made = Voters(settings, core, joining, MemberList(members), lambda: links)
    made.apply_member_list()
    return made


def test_a_newcomer_that_counts_itself_cannot_remove_one_of_the_others() -> None:
    """It was elected after its addition had failed. {n0, n1} is a majority for the others, {n2, n3} for
    it."""
    voters = voters_of("n3", *OLD, "n3")
    assert voters.contradicts({"n1", "n2", "n3"}) is None, "nobody has said anything yet"
    voters.check_member_list("n2", MemberListNote(0, OLD))
    assert voters.contradicts({"n1", "n2", "n3"}) == "n2"
    assert voters.contradicts({*OLD, "n3"}) is None, "one more: each majority has a member in common"
    voters.check_member_list("n2", MemberListNote(7, ("n1", "n2", "n3")))
    assert voters.contradicts({"n1", "n2", "n3"}) is None, "the log decides there"
    voters.check_member_list("n2", MemberListNote(0, OLD))
    with mock.patch.object(MemberList, "index", 7):
        assert voters.contradicts({"n1", "n2", "n3"}) is None, "the log decides here"


def test_what_others_say_that_are_no_members_does_not_count() -> None:
    voters = voters_of("n0", *OLD)
    voters.check_member_list("n3", MemberListNote(0, ("n1", "n2", "n3")))
    assert voters.contradicts({*OLD, "n4"}) is None


@pytest.mark.parametrize(
    ("index", "members", "is_dropped"),
    [
        (0, OLD, False),
        (0, ("n0", "n1"), False),
        (0, ("n0", "n1", "n3"), True),
        (0, (*OLD, "n3", "n4"), True),
        (7, (*OLD, "n3", "n4"), False),
    ],
)
def test_configured_lists_with_two_differences_are_not_linked(
    index: int, members: tuple[str, ...], is_dropped: bool
) -> None:
    """There could be two majorities without a common member. 7: that member's list is from the log."""
    links = mock.Mock()
    voters_of("n0", *OLD, links=links).check_member_list("n1", MemberListNote(index, members))
    assert [call.args[0] for call in links.drop.mock_calls] == (["n1"] if is_dropped else [])


def test_only_voters_and_learners_receive_the_log() -> None:
    """A member whose removal is not committed yet is a learner that receives nothing more."""
    voters = voters_of("n0", *OLD, "n5", leads=True)
    voters.add_learner("n4", ("127.0.0.1", 1))
    with mock.patch.object(MemberList, "members", dict.fromkeys(OLD, ("127.0.0.1", 1))):
        voters.apply_member_list()
    assert voters.learners.keys() == {"n4", "n5"}
    assert [name for name in ("n1", "n4", "n5", "n6") if voters.is_replicated_to(name)] == ["n1", "n4"]
