"""Attacks of somebody who wants to be a replica of the group, or its master."""

import asyncio
import json
import struct
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from tests.attacks.attacker import Attacker
from tests.attacks.frames import ONEWAY, Answer, Request
from tests.attacks.judging import admitted, carried_out, one_request, seen
from tests.attacks.line import GONE, Line, happens
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import BROKER_NAME, CLUSTER_NAME, MALLORY, ORDERS

NOT_A_MEMBER: Final = "username cannot be null."
MEMBERSHIP: Final = "membership of the group"
LOG: Final = "the log of the master"
MASTERSHIP: Final = "who is the master"
GROUP: Final = {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}
HA_S: Final = 3.0

one_request(
    "replica/next-id",
    "asks the controller for a broker id",
    "controller",
    1012,
    GROUP,
    asset=MEMBERSHIP,
    answer=NOT_A_MEMBER,
)
one_request(
    "replica/next-id-as-user",
    "a user with rights to topics asks for a broker id",
    "controller",
    1012,
    GROUP,
    by=MALLORY,
    asset=MEMBERSHIP,
    answer="is for members of this cluster only",
)
one_request(
    "replica/apply-id",
    "takes a broker id with a check code of its own",
    "controller",
    1013,
    {**GROUP, "appliedBrokerId": 3, "registerCheckCode": "127.0.0.1:6666;1"},
    asset=MEMBERSHIP,
    answer=NOT_A_MEMBER,
    ruins=True,
)
one_request(
    "replica/stolen-id",
    "registers an address of its own under the id of a replica",
    "controller",
    1003,
    {**GROUP, "brokerId": 2, "brokerAddress": "127.0.0.1:6666"},
    asset=MEMBERSHIP,
    answer=NOT_A_MEMBER,
    open=False,  # while the owner of the id works
)
one_request(
    "replica/exchange",
    "exchanges HA information as a replica does (906)",
    "broker",
    906,
    {"masterFlushOffset": 1 << 40},
    asset=LOG,
    answer=NOT_A_MEMBER,
)
one_request(
    "replica/all-offsets",
    "reads the consumer offsets of all groups, as RocketMQ's slaves do (43)",
    "broker",
    43,
    asset="metadata",
    answer=NOT_A_MEMBER,
)
one_request(
    "replica/all-offsets-as-user",
    "a user with rights to topics reads the consumer offsets of all groups (43)",
    "broker",
    43,
    by=MALLORY,
    asset="metadata",
    answer="User:mallory has no permission to access Cluster:",
)


@attack(
    "replica/heartbeat",
    "sends the controller heartbeats as the master, with an epoch and an offset that nobody has",
    asset=MASTERSHIP,
    success="the controller takes the heartbeat (904)",
    answer=NOT_A_MEMBER,
    ruins=True,
)
async def heartbeat(attacker: Attacker) -> Outcome:
    state = await attacker.stage.sync_state()
    address = {row["brokerId"]: row["brokerAddress"] for row in state["inSyncReplicas"]}[1]
    return carried_out(await attacker.ask("controller", 904, _heartbeat(1, address)))


def _heartbeat(broker_id: int, address: str) -> dict[str, object]:
    return {
        **GROUP,
        "brokerAddr": address,
        "brokerId": broker_id,
        "epoch": 1,
        "maxOffset": 1 << 40,
        "confirmOffset": 1 << 40,
        "heartbeatTimeoutMills": 60_000,
        "electionPriority": 0,
    }


async def join(attacker: Attacker, line: Line) -> tuple[int, Answer]:
    """Goes as far as it gets: id, registration, heartbeat. Returns the id, -1 if there is none, and the last
    answer."""
    answer = await line.ask(_request(1012, GROUP))
    if answer.code:
        return -1, answer
    broker_id = int(answer.fields["nextBrokerId"])
    check_code = f"{attacker.source}:6666;{time.time_ns()}"
    fields = {**GROUP, "appliedBrokerId": broker_id, "registerCheckCode": check_code}
    answer = await line.ask(_request(1013, fields))
    if answer.code:
        return -1, answer
    address = f"{attacker.source}:6666"
    answer = await line.ask(_request(1003, {**GROUP, "brokerId": broker_id, "brokerAddress": address}))
    if answer.code:
        return -1, answer
    return broker_id, await line.ask(_request(904, _heartbeat(broker_id, address)))


def _request(code: int, fields: Mapping[str, object], body: object = None, flag: int = 0) -> Request:
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()
    }
    return Request(code, texts, b"" if body is None else json.dumps(body).encode(), flag=flag)


@attack(
    "replica/register",
    "gets an id, registers, and sends heartbeats",
    asset=MEMBERSHIP,
    success="the controller lists the attacker as a live replica",
    answer=NOT_A_MEMBER,
    ruins=True,
)
async def register(attacker: Attacker) -> Outcome:
    async with attacker.dial("controller") as line:
        broker_id, answer = await join(attacker, line)
        return seen(broker_id in await _replicas(attacker), answer)


async def _replicas(attacker: Attacker) -> list[int]:
    state = await attacker.stage.sync_state()
    rows = [*(state.get("inSyncReplicas") or ()), *(state.get("notInSyncReplicas") or ())]
    return [row["brokerId"] for row in rows if row.get("alive")]


@attack(
    "replica/sync-state-set",
    "enters the SyncStateSet: registers, then alters the set in the name of the master (1001)",
    asset=MEMBERSHIP,
    success="the SyncStateSet contains the attacker",
    answer=NOT_A_MEMBER,
    ruins=True,
)
async def sync_state_set(attacker: Attacker) -> Outcome:
    state = await attacker.stage.sync_state()
    async with attacker.dial("controller") as line:
        broker_id, answer = await join(attacker, line)
        if broker_id < 0:
            return seen(False, answer)
        known = [row["brokerId"] for row in state["inSyncReplicas"]]
        fields = {
            "brokerName": BROKER_NAME,
            "masterBrokerId": state["masterBrokerId"],
            "masterEpoch": state["masterEpoch"],
        }
        body = {"syncStateSet": [*known, broker_id], "syncStateSetEpoch": state["syncStateSetEpoch"]}
        answer = await line.ask(_request(1001, fields, body))
        rows = (await attacker.stage.sync_state())["inSyncReplicas"]
        return seen(broker_id in [row["brokerId"] for row in rows], answer)


@attack(
    "replica/elected",
    "has itself elected: registers, then asks for an election that designates it (1002)",
    asset=MASTERSHIP,
    success="the controller elects (1002), or refuses only because the attacker is not in sync",
    answer=NOT_A_MEMBER,
    ruins=True,
)
async def elected(attacker: Attacker) -> Outcome:
    async with attacker.dial("controller") as line:
        broker_id, answer = await join(attacker, line)
        fields = {**GROUP, "brokerId": max(broker_id, 2), "designateElect": True}
        answer = await line.ask(_request(1002, fields))
        return admitted(answer)


@attack(
    "replica/metadata",
    "reads all tables of the master, with users and their secrets (29001)",
    asset="users and their secrets",
    success="the master answers with its tables",
    answer=NOT_A_MEMBER,
)
async def metadata(attacker: Attacker) -> Outcome:
    return carried_out(await attacker.ask("broker", 29001, await _metadata_fields(attacker), b"{}"))


async def _metadata_fields(attacker: Attacker) -> dict[str, object]:
    epoch = (await attacker.stage.sync_state())["masterEpoch"]
    return {"brokerName": BROKER_NAME, "brokerId": 2, "masterEpoch": epoch}


@attack(
    "replica/metadata-as-user",
    "a user with rights to topics reads all tables of the master (29001)",
    asset="users and their secrets",
    success="the master answers with its tables",
    answer="is for members of this cluster only",
)
async def metadata_as_user(attacker: Attacker) -> Outcome:
    return carried_out(
        await attacker.ask("broker", 29001, await _metadata_fields(attacker), b"{}", by=MALLORY)
    )


@attack(
    "replica/hand-over",
    "tells the master to hand over to replica 2 (29005, oneway)",
    asset=MASTERSHIP,
    success="another broker is master",
    open=False,
)
async def hand_over(attacker: Attacker) -> Outcome:
    before = await attacker.stage.sync_state()
    others = [
        row["brokerId"] for row in before["inSyncReplicas"] if row["brokerId"] != before["masterBrokerId"]
    ]
    fields = {"brokerName": BROKER_NAME, "masterEpoch": before["masterEpoch"], "brokerId": [*others, 2][0]}

    async def changed() -> bool:
        return bool((await attacker.stage.sync_state())["masterEpoch"] != before["masterEpoch"])

    return await _oneway(attacker, _request(29005, fields, flag=ONEWAY), changed, "another master")


async def _oneway(
    attacker: Attacker, request: Request, changed: Callable[[], Coroutine[Any, Any, bool]], effect: str
) -> Outcome:
    """Sends the broker a oneway request. Nothing answers it: what counts is its effect."""
    try:
        async with attacker.dial("broker") as line:
            await line.send(request.frame())
            succeeded = await happens(changed, HA_S)
    except (*GONE, TimeoutError):
        return Outcome(False, "connection closed")
    return Outcome(succeeded, effect if succeeded else "no effect")


@attack(
    "replica/role-changed",
    "tells the master that another broker is master now, with a higher epoch (1008, oneway)",
    asset=MASTERSHIP,
    success="the master refuses messages",
    open=False,
)
async def role_changed(attacker: Attacker) -> Outcome:
    epoch = (await attacker.stage.sync_state())["masterEpoch"]
    fields = {
        "masterAddress": "127.0.0.1:6666",
        "masterEpoch": epoch + 1_000,
        "syncStateSetEpoch": 1_000,
        "masterBrokerId": 66,
        "brokerName": BROKER_NAME,
    }
    request = _request(1008, fields, {"syncStateSet": [66], "syncStateSetEpoch": 1_000}, flag=ONEWAY)

    async def demoted() -> bool:
        status = await attacker.stage.ask("broker", 907)
        return status.code != 0 or not json.loads(status.body)["master"]

    return await _oneway(attacker, request, demoted, "it is a slave now")


@attack(
    "replica/controller",
    "adds a controller at an address of its own (29021)",
    asset="the controllers' log",
    success="the controller connects to the attacker's address",
    answer=NOT_A_MEMBER,
)
async def controller(attacker: Attacker) -> Outcome:
    connected = asyncio.Event()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    server = await asyncio.start_server(accept, attacker.source, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        fields = {"controllerId": "n9", "controllerAddress": f"{attacker.source}:{port}"}
        answer = await attacker.ask("controller", 29021, fields)
        return seen(connected.is_set(), answer)


@attack(
    "replica/raft-port",
    "speaks to the raft port: a pickle, garbage, nothing",
    asset="the controllers' log",
    success="the port talks on after that",
    open=False,
)
async def raft_port(attacker: Attacker) -> Outcome:
    peers = attacker.stage.cluster.name_servers[0].settings["controllerRaftPeers"]
    attacker.stage.addresses["raft"] = peers.split(";")[0].partition("-")[2]
    pickled = b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93."
    for data in (struct.pack("!I", len(pickled)) + pickled, b"\x16\x03\x01" + b"\0" * 100):
        try:
            async with attacker.dial("raft", tls=None) as line:
                await line.send(data)
                while await line.is_open(HA_S):
                    await line.read(64, HA_S)
        except GONE:
            continue
        except TimeoutError:
            return Outcome(True, "the connection stays open")
    return Outcome(False, "connection closed")


one_request(
    "replica/route-of-master",
    "reads where the master is from the controller (1004)",
    "controller",
    1004,
    {"brokerName": BROKER_NAME},
    asset=MASTERSHIP,
    answer=NOT_A_MEMBER,
)
one_request(
    "replica/min-id",
    "tells the broker that the lowest broker id has changed (905)",
    "broker",
    905,
    {"minBrokerId": 0, "brokerName": BROKER_NAME, "minBrokerAddr": "127.0.0.1:6666"},
    asset=LOG,
    answer=NOT_A_MEMBER,
)
one_request(
    "replica/epochs",
    "reads the epochs of the log (1007)",
    "broker",
    1007,
    {"brokerName": BROKER_NAME},
    asset=LOG,
    answer=NOT_A_MEMBER,
)


@attack(
    "replica/max-offset",
    "watches the group: offsets and connections of every replica (907, 28)",
    asset=LOG,
    success="one of them is answered",
    answer=NOT_A_MEMBER,
)
async def watches(attacker: Attacker) -> Outcome:
    for code in (907, 28):
        answer = await attacker.ask("broker", code, {"topic": ORDERS})
        if answer.code == 0:
            break
    return carried_out(answer)
