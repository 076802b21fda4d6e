"""Changes that a restore of metadata would make at a broker. Nothing is deleted; changes nothing itself."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.backup.metadata_file import MetadataBackup
from keelmq.remoting.operation import Wire
from keelmq.remoting.operations.auth import AclInfo, UserInfo
from keelmq.remoting.operations.broker_metadata import SubscriptionGroupConfig
from keelmq.remoting.operations.route import TopicConfig

Ends = Mapping[tuple[str, int], tuple[int, int]]
"""(topic, queue) -> (first offset, next offset)."""


@dataclass(frozen=True, slots=True)
class Offset:
    """The offset of a group in one queue."""

    topic: str
    group: str
    queue_id: int
    offset: int


Item = TopicConfig | SubscriptionGroupConfig | Offset | UserInfo | AclInfo


@dataclass(frozen=True, slots=True)
class Change:
    """kind: topic, group, offset, user or acl. text: what changes. is_new: it does not exist yet.
    attributes: the changes of a topic's or group's, "+key" -> value, "-key" -> ""."""

    kind: str
    name: str
    text: str
    item: Item
    is_new: bool
    attributes: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """Objects of the file that are not restored, and why."""

    kind: str
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """changes: in the order in which they have to be made. equal: the number of entries that equal those of
    the file."""

    changes: Sequence[Change]
    skipped: Sequence[Skipped]
    equal: int


def plan_restore(saved: MetadataBackup, now: MetadataBackup, ends: Ends, *, moves_back: bool) -> Plan:
    """now: the state of the broker. ends: of the queues with offsets in the file, as far as they exist.
    moves_back: also set offsets that are behind those of the broker."""
    found = [
        *_topics(saved, now),
        *_groups(saved, now),
        *_offsets(saved, now, ends, moves_back=moves_back),
        *_users(saved, now),
        *_acls(saved, now),
    ]
    return Plan(
        [each for each in found if isinstance(each, Change)],
        [each for each in found if isinstance(each, Skipped)],
        found.count(None),
    )


Found = Iterator[Change | Skipped | None]


def _topics(saved: MetadataBackup, now: MetadataBackup) -> Found:
    for name, config in sorted(saved.topics.items()):
        yield _configured("topic", name, config, now.topics.get(name))


def _groups(saved: MetadataBackup, now: MetadataBackup) -> Found:
    for name, config in sorted(saved.groups.items()):
        yield _configured("group", name, config, now.groups.get(name))


def _configured(
    kind: str,
    name: str,
    config: TopicConfig | SubscriptionGroupConfig,
    present: TopicConfig | SubscriptionGroupConfig | None,
) -> Change | None:
    attributes = {f"+{key}": value for key, value in config.attributes.items()}
    if present is None:
        return Change(kind, name, "create", config, is_new=True, attributes=attributes)
    if _plain(config) == _plain(present):
        return None
    known = present.attributes
    attributes = {key: value for key, value in attributes.items() if known.get(key[1:]) != value}
    attributes |= {f"-{key}": "" for key in known.keys() - config.attributes.keys()}
    text = _difference(_plain(present), _plain(config))
    return Change(kind, name, text, config, is_new=False, attributes=attributes)


def _offsets(saved: MetadataBackup, now: MetadataBackup, ends: Ends, *, moves_back: bool) -> Found:
    is_other = saved.broker_name != now.broker_name
    for key, queues in sorted(saved.offsets.items()):
        topic, _, group = key.rpartition("@")
        for queue_id, offset in sorted(queues.items()):
            name = f"{group} in {topic}, queue {queue_id}"
            present, end = now.offsets.get(key, {}).get(queue_id), ends.get((topic, queue_id))
            if present == offset:
                yield None
            elif is_other:
                text = f"it is for the queues of {saved.broker_name}, and this is {now.broker_name}"
                yield Skipped("offset", name, text)
            elif end is None or not end[0] <= offset <= end[1]:
                there = "does not exist yet" if end is None else f"has the messages {end[0]}..{end[1]}"
                yield Skipped("offset", name, f"offset {offset}: the queue {there}")
            elif present is not None and present > offset and not moves_back:
                text = f"offset {offset} is behind {present}: --move-back repeats these messages"
                yield Skipped("offset", name, text)
            else:
                text = f"{'none' if present is None else present} -> {offset}"
                item = Offset(topic, group, queue_id, offset)
                yield Change("offset", name, text, item, is_new=present is None)


def _users(saved: MetadataBackup, now: MetadataBackup) -> Found:
    known = {each.username: each for each in now.users}
    for user in saved.users:
        name, present = user.username or "", known.get(user.username)
        if present is None and user.password is None:
            yield Skipped("user", name, "the file has no password of it: mqadmin createUser, or --users")
        elif present is None:
            yield Change("user", name, "create", user, is_new=True)
        elif (here := _without_secret(present)) != (wanted := _without_secret(user)):
            # The password of a user who is there may be newer than the file.
            yield Change(
                "user", name, _difference(here, wanted), UserInfo.model_validate(wanted), is_new=False
            )
        else:
            yield None


def _acls(saved: MetadataBackup, now: MetadataBackup) -> Found:
    known = {each.subject: each for each in now.acls}
    for acl in saved.acls:
        present, name = known.get(acl.subject), acl.subject or ""
        if present is None:
            yield Change("acl", name, "create", acl, is_new=True)
        elif _plain(present) == _plain(acl):
            yield None
        else:
            yield Change("acl", name, "add or change the entries of the file", acl, is_new=False)


def _plain(value: Wire) -> dict[str, Any]:
    return value.model_dump(mode="json", by_alias=True)


def _without_secret(user: UserInfo) -> dict[str, Any]:
    return {
        key: value if key == "username" else (value or "").lower()
        for key, value in _plain(user).items()
        if key != "password"
    }


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    changed = (key for key in after if before.get(key) != after[key])
    return ", ".join(f"{key} {before.get(key)} -> {after[key]}" for key in changed)
