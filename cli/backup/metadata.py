"""keelmq backup metadata, keelmq restore metadata: topics, groups, offsets, users and ACLs of a broker, as
one file, without its messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from cli.backup.metadata_file import (
    FILE_BYTES_MAX,
    MetadataBackup,
    MetadataFileError,
    decode_metadata,
    encode_metadata,
    passwords_of,
)
from cli.backup.metadata_plan import Change, Ends, Offset, Plan, plan_restore
from cli.backup.shell import JsonOption, NewFile, read_file, run_requests, show
from cli.command_line import Refused, checked_addresses, write_new_private
from cli.credentials import CredentialsOption
from cli.mqadmin.commands.export import user_groups, user_topics
from cli.mqadmin.shell import DONE, REFUSED, explain
from keelmq.client.admin import AdminClient, AdminError
from keelmq.client.admin.transport import gather_some
from keelmq.health.findings import plural
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty
from keelmq.remoting.operations.auth import AclInfo, UserInfo
from keelmq.remoting.operations.broker_metadata import (
    GET_ALL_CONSUMER_OFFSET,
    ConsumerOffsets,
    SubscriptionGroupConfig,
)
from keelmq.remoting.operations.route import TopicConfig
from keelmq.runtime.clock import wall_ms

LINES_SHOWN = 40
"""Limit of printed changes, and of objects that are not restored; --json has all."""
AT_ONCE = 16
"""Limit of concurrent changes."""

T = TypeVar("T")

BrokerOption = Annotated[
    str, typer.Option("-b", "--brokerAddr", callback=checked_addresses, help="The master, host:port")
]


def backup_metadata(
    output: NewFile,
    broker_addr: BrokerOption,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="config/users.json of a replica, for the passwords, which no broker returns",
        ),
    ] = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Save topics, groups, consumer offsets, users and ACLs of a broker."""

    async def action(admin: AdminClient) -> int:
        passwords = _read(users, passwords_of) if users is not None else {}
        found = await _metadata_of(admin, broker_addr)
        named = [
            each.model_copy(update={"password": passwords.get(each.username or "")}) for each in found.users
        ]
        saved = found.model_copy(update={"users": named, "taken_ms": wall_ms()})
        data = encode_metadata(saved)
        decode_metadata(data)  # what cannot be restored is no backup
        write_new_private(output, data)
        value = {"file": str(output), "bytes": len(data), "broker": saved.broker_name, **_counted(saved)}
        lines = [f"{output}: {saved.broker_name}, {_told(saved)}"]
        if without := sorted(each.username or "" for each in named if each.password is None):
            value["withoutPassword"] = without
            lines.append(f"without a password: {', '.join(without)} (--users FILE adds them)")
        show(as_json, value, "\n".join(lines))
        return DONE

    run_requests(action, credentials)


def restore_metadata(
    backup: Annotated[Path, typer.Argument(metavar="FILE", help="File that keelmq backup metadata wrote")],
    broker_addr: BrokerOption,
    yes: Annotated[bool, typer.Option("--yes", help="Make the changes; without it they are shown")] = False,
    moves_back: Annotated[
        bool,
        typer.Option("--move-back", help="Also set offsets below the present ones: messages are redelivered"),
    ] = False,
    users: Annotated[
        Path | None,
        typer.Option("--users", metavar="FILE", help="users.json with the passwords of new users"),
    ] = None,
    credentials: CredentialsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create or change the objects of a metadata backup, at a running master. Nothing is deleted."""

    async def action(admin: AdminClient) -> int:
        saved = _read(backup, decode_metadata)
        if users is not None:
            saved = _with_passwords(saved, _read(users, passwords_of))
        now = await _metadata_of(admin, broker_addr)
        if why := (await admin.brokers.runtime_info(broker_addr)).get("notWritable"):
            raise Refused(f"{broker_addr} takes no changes: {why}; is it the master (mqadmin clusterList)?")
        plan = plan_restore(saved, now, await _ends(admin, broker_addr, saved, now), moves_back=moves_back)
        failures = await _carried_out(admin, broker_addr, plan) if yes else []
        of = f"{saved.broker_name}, {_told(saved)}; {plan.equal} of them as in the file"
        lines = [of, *_lines(plan)]
        if yes:
            lines += [f"FAILED: {each}" for each in failures]
            lines.append(f"{len(plan.changes) - len(failures)} of {plural(len(plan.changes), 'change')} made")
        else:
            lines.append(f"{plural(len(plan.changes), 'change')}; nothing was changed: --yes makes them")
        value = {"broker": now.broker_name, "madeChanges": yes, "failures": failures, **_value(plan)}
        show(as_json, value, "\n".join(lines))
        return REFUSED if failures else DONE

    run_requests(action, credentials)


def _read(path: Path, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(read_file(path, FILE_BYTES_MAX))
    except MetadataFileError as error:
        raise Refused(f"{path}: {error}; nothing was changed") from None


async def _metadata_of(admin: AdminClient, address: str) -> MetadataBackup:
    settings = await admin.brokers.broker_config(address)
    topics = await user_topics(admin, address, special=True)
    groups = await user_groups(admin, address)
    answer = await admin.ask(address, GET_ALL_CONSUMER_OFFSET, Empty())
    body = answer.body if isinstance(answer.body, ConsumerOffsets) else ConsumerOffsets()
    offsets = {}
    for key, queues in sorted(body.offset_table.items()):
        topic, _, group = key.rpartition("@")
        if topic in topics and group in groups:
            offsets[key] = queues
    try:
        users, acls = await admin.auth.list_users(address), await admin.auth.list_acls(address)
    except AdminError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # a broker of RocketMQ before 5.3
            raise
        users, acls = [], []
    return MetadataBackup(
        cluster_name=settings.get("brokerClusterName", ""),
        broker_name=settings.get("brokerName", ""),
        topics=topics,
        groups=groups,
        offsets=offsets,
        users=users,
        acls=acls,
    )


async def _ends(admin: AdminClient, address: str, saved: MetadataBackup, now: MetadataBackup) -> Ends:
    names = sorted({key.rpartition("@")[0] for key in saved.offsets} & now.topics.keys())
    stats = await gather_some([admin.brokers.topic_stats(address, name) for name in names])
    return {
        (key.topic, key.queue_id): (row.min_offset, row.max_offset)
        for each in stats
        for key, row in each.queues.items()
    }


def _with_passwords(saved: MetadataBackup, passwords: dict[str, str]) -> MetadataBackup:
    users = [
        each.model_copy(update={"password": each.password or passwords.get(each.username or "")})
        for each in saved.users
    ]
    return saved.model_copy(update={"users": users})


async def _carried_out(admin: AdminClient, address: str, plan: Plan) -> list[str]:
    """Makes the changes, one kind after the other: offsets need their topics and groups, ACLs their users.
    Returns what went wrong."""
    failures = list[str | None]()
    for kind in dict.fromkeys(each.kind for each in plan.changes):
        steps = [_attempt(admin, address, each) for each in plan.changes if each.kind == kind]
        failures += await gather_some(steps, AT_ONCE)
    return [each for each in failures if each is not None]


async def _attempt(admin: AdminClient, address: str, change: Change) -> str | None:
    """Makes one change. Returns what went wrong."""
    try:
        await _carry_out(admin, address, change)
    except AdminError as error:
        return f"{change.kind} {change.name}: {explain(error)}"
    return None


async def _carry_out(admin: AdminClient, address: str, change: Change) -> None:
    match change.item:
        case TopicConfig() as config:
            parts = [f"{key}={value}" if value else key for key, value in (change.attributes or {}).items()]
            await admin.brokers.update_topic(address, config, ",".join(parts) or None)
        case SubscriptionGroupConfig() as config:
            attributes = dict(change.attributes or {})
            await admin.groups.update_group(address, config.model_copy(update={"attributes": attributes}))
        case Offset(topic, group, queue_id, offset):
            await admin.groups.reset_offset(
                address, group, topic, timestamp=0, queue_id=queue_id, offset=offset
            )
        case UserInfo() as user:
            await (admin.auth.create_user if change.is_new else admin.auth.update_user)(address, user)
        case AclInfo() as acl:
            await (admin.auth.create_acl if change.is_new else admin.auth.update_acl)(address, acl)


def _lines(plan: Plan) -> list[str]:
    changes = [f"{each.kind} {each.name}: {each.text}" for each in plan.changes]
    skipped = [f"not restored: {each.kind} {each.name}: {each.reason}" for each in plan.skipped]
    return [*_some(changes), *_some(skipped)]


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - LINES_SHOWN
    return lines if more <= 0 else [*lines[:LINES_SHOWN], f"... and {more} more (--json has all)"]


def _value(plan: Plan) -> dict[str, Any]:
    """Without the entries themselves, which may have passwords."""
    return {
        "changes": [{"kind": each.kind, "name": each.name, "text": each.text} for each in plan.changes],
        "notRestored": [
            {"kind": each.kind, "name": each.name, "reason": each.reason} for each in plan.skipped
        ],
        "asInTheFile": plan.equal,
    }


def _counted(saved: MetadataBackup) -> dict[str, int]:
    return {
        "topics": len(saved.topics),
        "groups": len(saved.groups),
        "offsets": sum(map(len, saved.offsets.values())),
        "users": len(saved.users),
        "acls": len(saved.acls),
    }


def _told(saved: MetadataBackup) -> str:
    nouns = {"topics": "topic", "groups": "group", "offsets": "offset", "users": "user", "acls": "ACL"}
    return ", ".join(plural(count, nouns[name]) for name, count in _counted(saved).items())
