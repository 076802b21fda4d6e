"""Which copy of a part of the log is right, and which replica may be overwritten. Pure.

Evidence, in this order: the checksums of the records; then the majority of the sound copies, if all of them
have the part in the same epoch. A role is no evidence: a damaged replica can be elected, and then it is the
master. Without evidence no replica is named as wrong, and no advice overwrites or deletes anything.

Invariant: a replica is only to be overwritten from one that is right wherever both differ, so no sound copy
is lost (may_replace).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Divergence:
    """Bytes of the log, end exclusive, that are not the same at all replicas. crcs: address -> their CRC-32.
    damaged: address -> why a record there is damaged. unchecked: address -> why its records were not checked.
    epochs: address -> the epoch of the first byte, None: no epoch covers it."""

    start: int
    end: int
    crcs: Mapping[str, int]
    damaged: Mapping[str, str]
    unchecked: Mapping[str, str]
    epochs: Mapping[str, int | None]


class Evidence(Enum):
    """The evidence that decided."""

    CHECKSUM = "checksum"
    MAJORITY = "majority"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Verdict:
    """wrong, right: addresses, sorted. A replica in neither is undecided. right is empty if no copy is known
    to be right, also where `wrong` is not: then the others' copies are sound, but not the same, or not
    checked."""

    divergence: Divergence
    evidence: Evidence
    wrong: tuple[str, ...]
    right: tuple[str, ...]

    @property
    def undecided(self) -> tuple[str, ...]:
        """Returns the addresses that are in neither."""
        return tuple(sorted(set(self.divergence.crcs) - set(self.wrong) - set(self.right)))


def judge(divergence: Divergence) -> Verdict:
    """Returns the verdict about a divergence."""
    wrong = tuple(sorted(divergence.damaged))
    left = [address for address in sorted(divergence.crcs) if address not in divergence.damaged]
    by_content: dict[int, list[str]] = defaultdict(list)
    for address in left:
        by_content[divergence.crcs[address]].append(address)
    evidence = Evidence.CHECKSUM if wrong else Evidence.NONE
    if len(by_content) == 1:
        right = () if wrong == () or set(left) & set(divergence.unchecked) else tuple(left)
        return Verdict(divergence, evidence, wrong, right)
    most = max(by_content.values(), key=len, default=[])
    same_epoch = len({divergence.epochs.get(address) for address in left}) == 1
    if len(most) < 2 or 2 * len(most) <= len(left) or not same_epoch or set(left) & set(divergence.unchecked):
        return Verdict(divergence, evidence, wrong, ())
    outvoted = sorted({*wrong, *left} - set(most))
    return Verdict(divergence, evidence if wrong else Evidence.MAJORITY, tuple(outvoted), tuple(most))


@dataclass(frozen=True, slots=True)
class Member:
    """The facts about a replica that the advice needs. is_controlled: controllers elect its group's masters.
    min_offset, end_offset: the part of the log that it has confirmed, end exclusive."""

    address: str
    broker_id: int
    is_master: bool
    is_controlled: bool
    min_offset: int = 0
    end_offset: int = 0


def may_replace(verdicts: Iterable[Verdict], replica: Member, source: Member) -> bool:
    """Whether the whole log of `replica` may be overwritten with that of `source`, which must have all that
    it has confirmed: at every place both have the same bytes, or `replica` is wrong and `source` is right."""
    has_all = source.min_offset <= replica.min_offset and replica.end_offset <= source.end_offset
    return (
        replica != source
        and has_all
        and all(
            each.divergence.crcs.get(replica.address) == each.divergence.crcs.get(source.address)
            or (replica.address in each.wrong and source.address in each.right)
            for each in verdicts
        )
    )


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one replica. overwrites: the address whose log is replaced by the step, and `source`
    the one that it is replaced from; None: nothing is overwritten."""

    text: str
    overwrites: str | None = None
    source: str | None = None


def log_steps(
    group: str, verdicts: Sequence[Verdict], members: Collection[Member], *, is_complete: bool
) -> list[Step]:
    """Returns what to do about differences of the log. is_complete: the verdicts are of all differences;
    otherwise nothing is to be overwritten."""
    if not is_complete:
        return [Step(f"{KEEP}: there are more differences than were examined; {_backups(members)}")]
    wrong = {address for each in verdicts for address in each.wrong}
    replaced = [_replacing(group, verdicts, members, each) for each in members if each.address in wrong]
    steps = [each for each in replaced if each is not None]
    done = {each.overwrites for each in steps}
    if wrong - done or any(each.undecided for each in verdicts):
        differing = {address for each in verdicts for address in (*each.wrong, *each.undecided)}
        steps.append(
            Step(f"{KEEP} ({', '.join(sorted(differing - done))}): {_why(verdicts)}; {_backups(members)}")
        )
    return steps


KEEP = "do not overwrite or delete any replica"
HEALS = "the damaged one heals itself from a sound copy, so run this again in a minute; if it does not"
"""A KeelMQ broker whose record fails its checksum."""


def _resync(replica: Member) -> str:
    """Returns the repair of a stopped replica; it asks the others whether one has a sound copy."""
    asked = "-a CONTROLLERS" if replica.is_controlled else "-n NAMESRV"
    return f"keelmq repair --store DIR --resync {asked} --yes"


def _why(verdicts: Sequence[Verdict]) -> str:
    if any(not each.right and len(each.wrong) == len(each.divergence.crcs) for each in verdicts):
        return "some records have no sound copy"
    if any(each.undecided for each in verdicts):
        return "nothing tells which copy is right"
    return "each may have the only sound copy of some records"


def _replacing(
    group: str, verdicts: Sequence[Verdict], members: Collection[Member], replica: Member
) -> Step | None:
    """Returns how to overwrite a replica from a right one; None: there is none. A replica copies its master,
    so the source has to be the master first."""
    safe = [each for each in members if may_replace(verdicts, replica, each)]
    if not safe:
        return None
    source = min(safe, key=lambda each: (not each.is_master, each.broker_id))
    right = f"{source.address} is right wherever both differ"
    address = replica.address
    if source.is_master:
        first = ""
    elif source.is_controlled:
        elect = f"mqadmin electMaster -a CONTROLLER -bn {group} -c CLUSTER -b {source.broker_id}"
        first = f"make it the master ({elect}), "
    else:
        text = (
            f"{right}, but it is not the master: stop {address} and keep its files, keelmq backup store NAME "
            f"-b {source.address}, and keelmq restore store to a new directory for {address}"
        )
        return Step(text, address, source.address)
    copies = f"stop {address}, {_resync(replica)}, and start it: it copies the log of its master"
    is_damaged = all(address in each.divergence.damaged for each in verdicts if address in each.wrong)
    waits = f"{HEALS}, " if is_damaged else ""
    return Step(f"{right}: {waits}{first}{copies}", address, source.address)


def _backups(members: Collection[Member]) -> str:
    addresses = ", ".join(sorted(each.address for each in members))
    return f"first keep a backup of each (keelmq backup store NAME -b ADDRESS: {addresses})"
