"""keelmq backup metadata and keelmq restore metadata: the plan, the file, and brokers of this process."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from broker.app.broker import Broker
from cli.backup.metadata_file import (
    MetadataBackup,
    MetadataFileError,
    decode_metadata,
    encode_metadata,
    passwords_of,
)
from cli.backup.metadata_plan import Change, Plan, plan_restore
from cli.keelmq import app
from keelmq.client.admin import AdminClient
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import Ok
from keelmq.remoting.operations.auth import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from keelmq.remoting.operations.broker_metadata import (
    UPDATE_CONSUMER_OFFSET,
    SubscriptionGroupConfig,
    UpdateConsumerOffsetRequest,
)
from keelmq.remoting.operations.route import TopicConfig
from tests.unit.broker.app.test_broker_app import config, send

ENDS = {("T", 0): (0, 100), ("T", 1): (50, 100)}
ALICE = UserInfo(username="alice", user_type="Normal", user_status="enable")


def made(**fields: Any) -> MetadataBackup:
    return MetadataBackup(**{"cluster_name": "c", "broker_name": "a", **fields})


def planned(saved: MetadataBackup, now: MetadataBackup, *, moves_back: bool = False) -> Plan:
    return plan_restore(saved, now, ENDS, moves_back=moves_back)


def told(changes: Any) -> list[str]:
    return [f"{each.kind} {each.name}: {each.text}" for each in changes]


# -- the plan ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("saved", "present", "moves_back", "change", "skipped"),
    [
        (40, None, False, "none -> 40", ""),
        (40, 30, False, "30 -> 40", ""),
        (40, 40, False, "", ""),
        (40, 60, False, "", "offset 40 is behind 60: --move-back"),
        (40, 60, True, "60 -> 40", ""),
        (101, 60, True, "", "offset 101: the queue has the messages 0..100"),
    ],
)
def test_offsets_go_only_forward(
    saved: int, present: int | None, moves_back: bool, change: str, skipped: str
) -> None:
    here = {} if present is None else {"T@g": {0: present}}
    plan = planned(made(offsets={"T@g": {0: saved}}), made(offsets=here), moves_back=moves_back)
    assert [each.text for each in plan.changes] == [change][: bool(change)]
    assert [skipped in each.reason for each in plan.skipped] == [True][: bool(skipped)]
    assert plan.equal == (saved == present)


def test_offsets_belong_to_the_queues_of_one_broker() -> None:
    offsets = {"T@g": {0: 40, 1: 49}, "gone@g": {0: 7}}
    other = planned(made(offsets=offsets), made(broker_name="b"))
    assert not other.changes and "the queues of a, and this is b" in other.skipped[0].reason
    same = planned(made(offsets=offsets), made())
    assert [each.reason for each in same.skipped] == [
        "offset 49: the queue has the messages 50..100",
        "offset 7: the queue does not exist yet",
    ]


def test_what_is_equal_is_left_alone_and_what_is_newer_stays() -> None:
    topic = TopicConfig(topic_name="T", attributes={"message.type": "FIFO"})
    saved = made(topics={"T": topic}, groups={"g": SubscriptionGroupConfig(group_name="g")}, users=[ALICE])
    assert planned(saved, saved).changes == [] and planned(saved, saved).equal == 3
    now = made(
        topics={"T": topic.model_copy(update={"perm": 4, "attributes": {"a": "b"}}), "newer": topic},
        users=[ALICE.model_copy(update={"user_status": "disable"}), UserInfo(username="bob")],
    )
    plan = planned(saved, now)
    assert told(plan.changes) == [
        "topic T: perm 4 -> 6, attributes {'a': 'b'} -> {'message.type': 'FIFO'}",
        "group g: create",
        "user alice: userStatus disable -> enable",
    ]
    assert plan.changes[0].attributes == {"+message.type": "FIFO", "-a": ""}


def test_users_without_a_password_are_not_created() -> None:
    known = ALICE.model_copy(update={"password": "secret"})
    (skipped,) = planned(made(users=[ALICE]), made()).skipped
    assert "no password" in skipped.reason
    (change,) = planned(made(users=[known]), made()).changes
    assert isinstance(change, Change) and change.is_new
    newer = planned(made(users=[known]), made(users=[ALICE]))
    assert newer.equal == 1 and not newer.changes, "a password that is there may be newer"


# -- the file ----------------------------------------------------------------------------------------------


def test_a_damaged_file_is_refused() -> None:
    data = encode_metadata(made(topics={"T": TopicConfig(topic_name="T")}))
    assert decode_metadata(data).topics["T"].perm == 6
    for bad, says in (
        (data[:-9], "cut short"),
        (data.replace(b'"T"', b'"U"'), "damaged"),
        (b"{}", "not a backup"),
        (data.replace(b"backup 1", b"backup 2"), "version"),
    ):
        with pytest.raises(MetadataFileError, match=says):
            decode_metadata(bad)


def test_passwords_are_read_of_both_kinds_of_users_files() -> None:
    stored = {"username": "alice", "password": "s3cret", "userType": "Normal", "userStatus": "enable"}
    for users in ({"alice": stored}, [stored]):
        assert passwords_of(json.dumps({"users": users}).encode()) == {"alice": "s3cret"}
    for bad in (b"", b"[]", b'{"users": 3}', b'{"users": [{"username": "a", "password": ""}]}'):
        with pytest.raises(MetadataFileError) as found:
            passwords_of(bad)
        assert "s3cret" not in str(found.value)


# -- brokers -----------------------------------------------------------------------------------------------


async def keelmq(*arguments: object, code: int = 0) -> str:
    result: Result = await asyncio.to_thread(CliRunner().invoke, app, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


async def commit(broker: Broker, offset: int) -> None:
    client = RemotingClient()
    header = UpdateConsumerOffsetRequest(consumer_group="g", topic="T", queue_id=0, commit_offset=offset)
    assert isinstance(await client.call(broker.address, UPDATE_CONSUMER_OFFSET, header), Ok)
    await client.close()


async def fill(broker: Broker) -> None:
    client = RemotingClient()
    for number in range(5):
        assert isinstance(await send(client, broker, b"%d" % number), Ok)
    await client.close()


async def test_there_and_back(tmp_path: Path) -> None:
    """What is deleted after the backup is there again, also at a broker that never had it; the rest stays."""
    saved = tmp_path / "saved"
    entry = PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Allow")
    acl = AclInfo(subject="User:alice", policies=[PolicyInfo(policy_type="Custom", entries=[entry])])
    async with Broker(config(tmp_path / "one")) as one, AdminClient() as admin:
        at = one.address
        await fill(one)
        await admin.brokers.update_topic(at, TopicConfig(topic_name="U", perm=4), "+message.type=FIFO")
        await admin.groups.update_group(at, SubscriptionGroupConfig(group_name="g", retry_max_times=3))
        await commit(one, 2)
        await admin.auth.create_user(at, ALICE.model_copy(update={"password": "s3cret"}))
        await admin.auth.create_acl(at, acl)
        assert "without a password: alice" in await keelmq("backup", "metadata", saved, "-b", at)
        again = await keelmq("backup", "metadata", saved, "-b", at, code=1)
        assert "choose another name" in again and saved.stat().st_mode & 0o777 == 0o600
        assert b"s3cret" not in saved.read_bytes()
        users = one.metadata.users.path
        await keelmq("backup", "metadata", tmp_path / "whole", "-b", at, "--users", users)

        await admin.brokers.delete_topic_in_broker(at, "U")
        await admin.groups.delete_group(at, "g")
        await commit(one, 4)
        shown = await keelmq("restore", "metadata", saved, "-b", at)
        assert (
            "topic U: create" in shown
            and "group g: retryMaxTimes 16 -> 3" in shown
            and "--yes makes them" in shown
        )
        assert "offset 2 is behind 4: --move-back repeats these messages" in shown
        assert "U" not in await admin.brokers.topics(at), "only shown"
        assert "2 of 2 changes made" in await keelmq("restore", "metadata", saved, "-b", at, "--yes")
        topic, group = (await admin.brokers.topics(at))["U"], (await admin.groups.list_groups(at))["g"]
        assert (topic.perm, topic.attributes) == (4, {"message.type": "FIFO"})
        assert group.retry_max_times == 3
        assert one.metadata.offsets.query("g", "T", 0) == 4
        await keelmq("restore", "metadata", saved, "-b", at, "--yes", "--move-back")
        assert one.metadata.offsets.query("g", "T", 0) == 2

    async with Broker(config(tmp_path / "two")) as two:
        await fill(two)
        shown = await keelmq("restore", "metadata", saved, "-b", two.address)
        assert "user alice: the file has no password of it" in shown
        told = json.loads(
            await keelmq("restore", "metadata", tmp_path / "whole", "-b", two.address, "--yes", "--json")
        )
        assert told["failures"] == [] and "s3cret" not in json.dumps(told)
        assert {each["kind"] for each in told["changes"]} == {"topic", "group", "offset", "user", "acl"}
        assert two.metadata.users.table.rows["alice"].password == "s3cret"
        assert two.metadata.offsets.query("g", "T", 0) == 2
        nothing = await keelmq("restore", "metadata", tmp_path / "whole", "-b", two.address, "--yes")
        assert "0 of 0 changes made" in nothing


async def test_refusals_say_what_to_do(tmp_path: Path) -> None:
    assert "no such" in (await keelmq("restore", "metadata", tmp_path / "x", "-b", "h:1", code=1)).lower()
    (tmp_path / "bad").write_bytes(b"no backup")
    assert "nothing was changed" in await keelmq("restore", "metadata", tmp_path / "bad", "-b", "h:1", code=1)
    await keelmq("backup", "metadata", tmp_path / "new", code=2)
    await keelmq("backup", "metadata", tmp_path / "new", "-b", "127.0.0.1:1", code=3)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "command",
    [
        "backup metadata -b 127.0.0.1:1",
        "backup controllers -a 127.0.0.1:1",
        "backup store x --from-dir x --epoch-file",
        "restore store x y --epoch-file",
        "repair --store x --epoch-file",
    ],
)
def test_a_file_without_a_name(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), ""])
    assert result.exit_code == 2 and "'.' is not a file name" in result.stderr, result.output
