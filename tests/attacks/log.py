"""Attacks on a master's log and its route: retention, unclean elections, controllers, false registrations."""

import json
from functools import partial
from typing import Any, Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.http_ports import WEB_PAGE, basic
from tests.attacks.judging import admitted, answered_by_http, carried_out, one_request, seen
from tests.attacks.line import happens
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ADMIN, BROKER_NAME, CLUSTER_NAME, MALLORY, MASTER_FILE_BYTES, ORDERS
from tests.attacks.topic import NO_RIGHTS, UNSIGNED

LOG: Final = "alice's messages"
ROUTE: Final = "where clients go"
CONTROLLERS: Final = "the controllers' log"
ELECTIONS: Final = "who is the master"
EVIL: Final = "127.0.0.1:6666"
SECONDS: Final = 3.0

for suffix, by, answer in (("", None, UNSIGNED), ("-as-user", MALLORY, NO_RIGHTS)):
    one_request(
        f"log/retention{suffix}",
        "deletes messages earlier: sets deleteWhen (25)",
        "broker",
        25,
        {},
        b"deleteWhen=04\n",
        by=by,
        asset=LOG,
        answer=answer,
    )
    one_request(
        f"log/delete-files{suffix}",
        "asks the broker to delete files of its log now (329)",
        "broker",
        329,
        by=by,
        asset=LOG,
        answer=answer,
    )
    one_request(
        f"log/unclean{suffix}",
        "allows elections of replicas that lack messages (1009)",
        "controller",
        1009,
        {},
        b"enableElectUncleanMaster=false\n",
        by=by,
        asset=LOG,
        answer=answer,
    )
    one_request(
        f"log/min-replicas{suffix}",
        "makes the broker acknowledge with fewer replicas (25)",
        "broker",
        25,
        {},
        b"minInSyncReplicas=1\n",
        by=by,
        asset="what acknowledged means",
        answer=answer,
    )
    one_request(
        f"log/namesrv-settings{suffix}",
        "changes settings of the name server (318)",
        "namesrv",
        318,
        {},
        b"supportActingMaster=false\n",
        by=by,
        asset=ROUTE,
        answer=answer,
    )
    one_request(
        f"log/order-of-topics{suffix}",
        "changes which queues of an ordered topic clients use (100)",
        "namesrv",
        100,
        {"namespace": "ORDER_TOPIC_CONFIG", "key": "mallory-ordered", "value": f"{BROKER_NAME}:1"},
        by=by,
        asset=ROUTE,
        answer=answer,
    )
    one_request(
        f"log/export-state{suffix}",
        "exports the state of the controllers (29013)",
        "controller",
        29013,
        by=by,
        asset=CONTROLLERS,
        answer=answer,
    )

one_request(
    "log/unused-topics", "deletes topics that look unused (316)", "broker", 316, asset=LOG, answer=UNSIGNED
)
one_request("log/queues", "deletes files of consume queues (306)", "broker", 306, asset=LOG, answer=UNSIGNED)
one_request(
    "log/read-ahead", "switches the read-ahead of the log (2004)", "broker", 2004, {"READ_AHEAD_MODE": 0},
    asset=LOG, answer=UNSIGNED,
)  # fmt: skip


one_request(
    "log/transfer-leader",
    "moves the leadership of the controllers (29023)",
    "controller",
    29023,
    {"controllerId": "n9"},
    asset=CONTROLLERS,
    answer=UNSIGNED,
    judge=admitted,
)

for suffix, by, answer in (("", None, UNSIGNED), ("-as-user", MALLORY, NO_RIGHTS)):
    for code, id, name, fields in (
        (29042, "backup-progress", "asks where a backup is (29042)", {}),
        (29043, "cancel-backup", "ends a backup in progress (29043)", {}),
        (29044, "replica-digest", "reads epochs and versions of a replica (29044)", {}),
        (29045, "log-checksums", "reads checksums of the log (29045)", {"startOffset": 0, "endOffset": 0}),
        (29046, "queue-checksums", "reads checksums of queues (29046)", {"startOffset": 0, "endOffset": 0}),
        (
            29047,
            "log-records",
            "reads records of the log (29047)",
            {"brokerName": BROKER_NAME, "startOffset": 0, "endOffset": 0},
        ),
    ):
        one_request(f"log/{id}{suffix}", name, "broker", code, fields, by=by, asset=LOG, answer=answer)


for id, name, by, answer in (
    ("log/backup", "has the broker copy all messages to a directory (29041)", None, UNSIGNED),
    (
        "log/backup-as-user",
        "a user with rights to topics has the broker copy all messages to a directory (29041)",
        MALLORY,
        NO_RIGHTS,
    ),
):
    fields = {"backupName": "stolen", "bytesPerSecond": 0}
    one_request(id, name, "broker", 29041, fields, by=by, asset=LOG, answer=answer, judge=admitted)
one_request(
    "log/import-state",
    "imports another state of the controllers (29014)",
    "controller",
    29014,
    {},
    b"{}",
    asset=CONTROLLERS,
    answer=UNSIGNED,
    judge=admitted,
)


@attack(
    "log/write-route",
    "writes a route for alice's topic (217)",
    asset=ROUTE,
    success="the route is another one",
    answer=UNSIGNED,
    ruins=True,
)
async def write_route(attacker: Attacker) -> Outcome:
    body = {
        "brokerDatas": [{"cluster": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerAddrs": {"0": EVIL}}],
        "queueDatas": [
            {"brokerName": BROKER_NAME, "readQueueNums": 7, "writeQueueNums": 7, "perm": 6, "topicSysFlag": 0}
        ],
    }
    answer = await attacker.ask("namesrv", 217, {"topic": ORDERS}, json.dumps(body).encode())
    queues = (await attacker.stage.route()).get("queueDatas", ())
    return seen(any(row["readQueueNums"] == 7 for row in queues), answer)


@attack(
    "log/unregister",
    "unregisters the master at the name server (104)",
    asset=ROUTE,
    success="the route has no master",
    answer=UNSIGNED,
    ruins=True,
)
async def unregister(attacker: Attacker) -> Outcome:
    master = _master(await attacker.stage.route())
    fields = {"brokerName": BROKER_NAME, "brokerAddr": master, "clusterName": CLUSTER_NAME, "brokerId": 0}
    answer = await attacker.ask("namesrv", 104, fields)
    return seen(_master(await attacker.stage.route()) != master, answer)


def _master(route: dict[str, Any]) -> str:
    return next(
        (
            row["brokerAddrs"].get("0", "")
            for row in route.get("brokerDatas", ())
            if row["brokerName"] == BROKER_NAME
        ),
        "",
    )


async def _registered(attacker: Attacker, broker_name: str) -> Outcome:
    address = f"{attacker.source}:6666"
    fields = {
        "brokerName": broker_name, "brokerAddr": address, "clusterName": CLUSTER_NAME, "haServerAddr": EVIL,
        "brokerId": 0, "compressed": False, "bodyCrc32": 0,
    }  # fmt: skip
    topics = {
        ORDERS: {
            "topicName": ORDERS,
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
        }
    }
    version = {"counter": 9, "stateVersion": 1_000, "timestamp": 2**41}
    body = {
        "topicConfigSerializeWrapper": {"topicConfigTable": topics, "dataVersion": version},
        "filterServerList": [],
    }
    async with attacker.dial("namesrv") as line:
        answer = await line.ask(request_of(103, fields, json.dumps(body).encode()))
        route = await attacker.stage.route()
    return seen(address in json.dumps(route), answer)


for id, name, broker_name in (
    ("log/false-route", "registers itself at the name server as the master of the group (103)", BROKER_NAME),
    ("log/another-broker", "registers a broker of its own for alice's topic (103)", "broker-evil"),
):
    attack(
        id,
        name,
        asset=ROUTE,
        success="clients of alice's topic are sent to the attacker",
        answer=UNSIGNED,
        ruins=True,
    )(partial(_registered, broker_name=broker_name))


@attack(
    "log/wipe-write",
    "takes the write permission of the group away (205)",
    asset=ROUTE,
    success="205 is carried out",
    answer=UNSIGNED,
    ruins=True,
)
async def wipe_write(attacker: Attacker) -> Outcome:
    answer = await attacker.ask("namesrv", 205, {"brokerName": BROKER_NAME})
    if answer.code == 0:
        await attacker.stage.must("namesrv", 327, {"brokerName": BROKER_NAME})
    return carried_out(answer)


@attack(
    "log/read-only",
    "makes the master refuse messages (25: brokerPermission)",
    asset=LOG,
    success="25 is carried out",
    answer=UNSIGNED,
    ruins=True,
)
async def read_only(attacker: Attacker) -> Outcome:
    answer = await attacker.ask("broker", 25, {}, b"brokerPermission=4\n")
    if answer.code == 0:
        await attacker.stage.must("broker", 25, {}, b"brokerPermission=6\n")
    return carried_out(answer)


@attack(
    "log/deleted",
    "deletes the log: keeps files for no time (25), then has them deleted (329)",
    asset=LOG,
    success="the log no longer begins at its first message",
    answer=UNSIGNED,
    ruins=True,
)
async def deleted(attacker: Attacker) -> Outcome:
    stage = attacker.stage
    for _ in range(4):
        await stage.send(ORDERS, b"x" * (MASTER_FILE_BYTES // 2))

    async def is_gone() -> bool:
        table = json.loads((await stage.must("broker", 28)).body)["table"]
        return int(table.get("commitLogMinOffset", 0)) > 0

    hours = ";".join(f"{hour:02d}" for hour in range(24))
    body = f"fileReservedTime=0\ndeleteWhen={hours}\ncleanResourceInterval=100\n".encode()
    answer = await attacker.ask("broker", 25, {}, body)
    if answer.code == 0:
        answer = await attacker.ask("broker", 329)
    return seen(answer.code == 0 and await happens(is_gone, SECONDS), answer)


@attack(
    "log/clean-broker",
    "makes the controller forget a replica (1011)",
    asset=ELECTIONS,
    success="1011 is carried out",
    answer=UNSIGNED,
    ruins=True,
)
async def clean_broker(attacker: Attacker) -> Outcome:
    rows = await attacker.stage.sync_state()
    other = max(row["brokerId"] for row in [*rows["inSyncReplicas"], *rows["notInSyncReplicas"]])
    fields = {
        "clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerControllerIdsToClean": other,
        "isCleanLivingBroker": True,
    }  # fmt: skip
    return carried_out(await attacker.ask("controller", 1011, fields))


one_request(
    "log/elect",
    "elects another master (1002)",
    "controller",
    1002,
    {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerId": 2, "designateElect": True},
    asset=ELECTIONS,
    answer=UNSIGNED,
    ruins=True,
    judge=admitted,
)


@attack(
    "log/elect-by-http",
    "elects another master over HTTP",
    asset=ELECTIONS,
    success="the controller lets it through",
    answer="401",
    ruins=True,
)
async def elect_by_http(attacker: Attacker) -> Outcome:
    path = f"/v1/groups/{BROKER_NAME}/elect"
    return answered_by_http(await attacker.http("controller", "POST", path, json={}))


one_request(
    "log/elect-as-user",
    "a user with rights to topics elects another master (1002)",
    "controller",
    1002,
    {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME, "brokerId": -1},
    by=MALLORY,
    asset=ELECTIONS,
    answer=NO_RIGHTS,
    ruins=True,
    judge=admitted,
)


@attack(
    "log/remove-controller",
    "removes a controller (29022)",
    asset=CONTROLLERS,
    success="29022 is carried out",
    answer=UNSIGNED,
    ruins=True,
)
async def remove_controller(attacker: Attacker) -> Outcome:
    return carried_out(await attacker.ask("controller", 29022, {"controllerId": await _follower(attacker)}))


async def _follower(attacker: Attacker) -> str:
    answer = await attacker.stage.must("follower", 1005)
    return answer.fields["selfId"]


@attack(
    "log/remove-controller-by-http",
    "removes a controller over HTTP",
    asset=CONTROLLERS,
    success="the controller lets it through",
    answer="401",
    ruins=True,
)
async def remove_controller_by_http(attacker: Attacker) -> Outcome:
    body = {"controllerId": "n9"}
    return answered_by_http(await attacker.http("controller", "POST", "/v1/removeController", json=body))


@attack(
    "log/stale-administrator",
    "a page with the administrator's password in a form posts an election as text/plain",
    asset=ELECTIONS,
    success="the controller lets it through",
    answer="403",
    open=False,
)
async def stale_administrator(attacker: Attacker) -> Outcome:
    headers = {**WEB_PAGE, **basic(ADMIN), "content-type": "text/plain"}
    path = f"/v1/groups/{BROKER_NAME}/elect"
    return answered_by_http(await attacker.http("controller", "POST", path, content=b"{}", headers=headers))
