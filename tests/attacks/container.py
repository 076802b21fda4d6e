"""Attacks on a broker container: on its own port and on its HTTP page. Who may add a broker has the container
read a file of its host, and who may remove one takes it from its clients."""

import json
import os
from collections.abc import Mapping
from typing import Any, Final

from tests.attacks.attacker import Attacker, request_of
from tests.attacks.container_program import CONTAINER_CLUSTER
from tests.attacks.escalate import OPERATOR, acl, user
from tests.attacks.frames import Identity, Request
from tests.attacks.http_ports import WEB_PAGE, basic
from tests.attacks.judging import answered_by_http, carried_out
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import ADMIN, TOKENS
from tests.attacks.topic import by_both

ADD, REMOVE, STATUS, PLAN, MOVE, RESTART = 902, 903, 29031, 29032, 29033, 29034
BROKERS: Final = "the brokers of the container"
FILES: Final = "files of the machine"
SETTINGS: Final = "settings"
CHANGE_S: Final = 40.0
"""For a broker to be added, removed or moved."""
FIRST: Final = {"brokerClusterName": CONTAINER_CLUSTER, "brokerName": "inner-0", "brokerId": 0}
"""The broker that the container was started with."""
SERVES_S: Final = 3.0


async def brokers_of(attacker: Attacker) -> dict[str, dict[str, Any]]:
    """Returns what the container says about its brokers, by name."""
    answer = await attacker.stage.must("container", STATUS)
    return {each["brokerName"]: each for each in json.loads(answer.body)["brokers"]}


async def tidy(attacker: Attacker) -> None:
    """Puts the container back: the first broker serves there, and no other one."""
    container = attacker.stage.container
    found = await brokers_of(attacker)
    for name, broker in found.items():
        if name != FIRST["brokerName"]:
            fields = {"brokerClusterName": CONTAINER_CLUSTER, "brokerName": name, "brokerId": 0}
            assert broker["brokerClusterName"] == CONTAINER_CLUSTER, broker
            await attacker.stage.must("container", REMOVE, fields, timeout_s=CHANGE_S)
    if FIRST["brokerName"] not in found:
        path = container.brokers / f"{FIRST['brokerName']}.conf"
        await attacker.stage.must("container", ADD, {"configPath": str(path)}, timeout_s=CHANGE_S)


async def sent(
    attacker: Attacker,
    code: int,
    fields: Mapping[str, object],
    body: bytes = b"",
    *,
    by: Identity | None,
    proof: bool = False,
) -> Outcome:
    """One request to the container, which is put back afterwards."""
    await attacker.stage.open_container()
    answer = await attacker.ask("container", code, fields, body, by=by, proof=proof, timeout_s=CHANGE_S)
    if answer.code == 0 and code in (ADD, REMOVE):
        await tidy(attacker)
    return carried_out(answer)


# -- by nobody, and by a user with other rights ----------------------------------------------------------


@by_both("container/add", "adds a broker (902)", asset=BROKERS, success="902 is carried out")
async def add(attacker: Attacker, by: Identity | None) -> Outcome:
    container = await attacker.stage.open_container()
    path = container.broker_file(container.new_name())
    return await sent(attacker, ADD, {"configPath": path}, by=by)


@by_both("container/remove", "removes a broker (903)", asset=BROKERS, success="903 is carried out")
async def remove(attacker: Attacker, by: Identity | None) -> Outcome:
    return await sent(attacker, REMOVE, FIRST, by=by)


@by_both(
    "container/move",
    "moves a broker into another process, which stops it for a moment (29033)",
    asset=BROKERS,
    success="29033 is carried out",
)
async def move(attacker: Attacker, by: Identity | None) -> Outcome:
    await attacker.stage.open_container()
    worker = (await brokers_of(attacker))[str(FIRST["brokerName"])]["worker"]
    return await sent(attacker, MOVE, {**FIRST, "worker": 1 - worker}, by=by)


@by_both(
    "container/restart",
    "restarts a process, with its brokers (29034)",
    asset=BROKERS,
    success="29034 is carried out",
)
async def restart(attacker: Attacker, by: Identity | None) -> Outcome:
    await attacker.stage.open_container()
    worker = (await brokers_of(attacker))[str(FIRST["brokerName"])]["worker"]
    return await sent(attacker, RESTART, {"worker": worker}, by=by)


@by_both(
    "container/status",
    "lists the brokers with their paths, and the processes (29031)",
    asset=SETTINGS,
    success="29031 is carried out",
)
async def status(attacker: Attacker, by: Identity | None) -> Outcome:
    return await sent(attacker, STATUS, {}, by=by)


@by_both(
    "container/plan",
    "has the container check a file of its host (29032)",
    asset=FILES,
    success="29032 is carried out",
)
async def plan(attacker: Attacker, by: Identity | None) -> Outcome:
    body = json.dumps({"configPaths": ["/etc/passwd"]}).encode()
    return await sent(attacker, PLAN, {}, body, by=by)


@by_both("container/settings", "reads the settings (26)", asset=SETTINGS, success="26 is carried out")
async def settings(attacker: Attacker, by: Identity | None) -> Outcome:
    return await sent(attacker, 26, {}, by=by)


@by_both(
    "container/change",
    "has removed brokers come back after a restart (25: persistBrokers)",
    asset=SETTINGS,
    success="25 is carried out",
)
async def change(attacker: Attacker, by: Identity | None) -> Outcome:
    return await sent(attacker, 25, {}, b"persistBrokers=true\n", by=by)


@by_both(
    "container/create-super",
    "creates a Super user at the container (3001)",
    asset="rights that it does not have",
    success="3001 is carried out",
    open=False,
)
async def create_super(attacker: Attacker, by: Identity | None) -> Outcome:
    raw = json.dumps(user("container-root", type_="Super")).encode()
    return await sent(attacker, 3001, {"username": "container-root"}, raw, by=by)


@attack(
    "container/operator-become-super",
    "an operator, who may change the cluster but is no Super user, becomes one at the container (3002)",
    asset="rights that it does not have",
    success="3002 is carried out",
    open=False,
)
async def operator_become_super(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    if attacker.stage.is_closed:
        info, rights = user(OPERATOR.name, OPERATOR.secret), acl(OPERATOR.name, "Cluster:*")
        await attacker.stage.ask("container", 3001, {"username": OPERATOR.name}, info)
        await attacker.stage.ask("container", 3006, {"subject": f"User:{OPERATOR.name}"}, rights)
        known = await attacker.ask("container", STATUS, by=OPERATOR)
        assert known.code == 0, str(known)
    raw = json.dumps({"userType": "Super"}).encode()
    return await sent(attacker, 3002, {"username": OPERATOR.name}, raw, by=OPERATOR)


# -- captured requests -----------------------------------------------------------------------------------


async def replayed(attacker: Attacker, captured: Request) -> Outcome:
    """Sends the request, has it undone, and sends it again."""
    first = await attacker.send("container", captured, timeout_s=CHANGE_S)
    assert first.code == 0, str(first)
    await tidy(attacker)
    answer = await attacker.send("container", captured, timeout_s=CHANGE_S)
    await tidy(attacker)
    return carried_out(answer)


@attack(
    "container/replayed-add",
    "sends a captured 902 again, after its broker was removed",
    asset=BROKERS,
    success="the broker is there again",
    answer="the request was sent before",
)
async def replayed_add(attacker: Attacker) -> Outcome:
    container = await attacker.stage.open_container()
    path = container.broker_file(container.new_name())
    captured = request_of(ADD, {"configPath": path}).signed(ADMIN, proof=True)
    return await replayed(attacker, captured)


@attack(
    "container/replayed-remove",
    "sends a captured 903 again, after its broker was added again",
    asset=BROKERS,
    success="the broker is removed once more",
    answer="the request was sent before",
)
async def replayed_remove(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    captured = request_of(REMOVE, FIRST).signed(ADMIN, proof=True)
    return await replayed(attacker, captured)


@attack(
    "container/altered-add",
    "names another file in a captured 902",
    asset=BROKERS,
    success="the container adds the attacker's file",
    answer="check signature failed.",
)
async def altered_add(attacker: Attacker) -> Outcome:
    container = await attacker.stage.open_container()
    wanted, others = (container.broker_file(container.new_name()) for _ in range(2))
    captured = request_of(ADD, {"configPath": wanted}).signed(ADMIN, proof=True)
    fields = {**captured.fields, "configPath": str(others)}
    answer = await attacker.send("container", request_of(ADD, fields), timeout_s=CHANGE_S)
    await tidy(attacker)
    return carried_out(answer)


# -- HTTP ------------------------------------------------------------------------------------------------


def by_http(
    id: str, name: str, path: str, body: Any, *, answer: str = "401", open: bool = True, **options: Any
) -> None:
    """Declares an attack of one POST to the container's HTTP port; body None: the path of a broker's file."""

    @attack(
        f"container/{id}",
        f"{name} (POST {path})",
        asset=BROKERS,
        success="the server answers anything but a refusal",
        answer=answer,
        open=open,
    )
    async def how(attacker: Attacker) -> Outcome:
        container = await attacker.stage.open_container()
        headers = dict(options.get("headers", {}))
        if "host" in headers:
            headers["host"] = f"{headers['host']}:{container.http_address.rpartition(':')[2]}"
            headers["origin"] = f"{'https' if attacker.stage.is_closed else 'http'}://{headers['host']}"
        sent = {"configPath": str(container.broker_file(container.new_name()))} if body is None else body
        got = await attacker.http(
            "container", "POST", path, content=json.dumps(sent), headers={"content-type": JSON, **headers}
        )
        await tidy(attacker)
        return answered_by_http(got)


JSON: Final = "application/json"
by_http("http-add", "adds a broker over HTTP", "/v1/addBroker", None)
by_http("http-remove", "removes a broker over HTTP", "/v1/removeBroker", FIRST)
by_http("http-status", "lists the brokers over HTTP", "/v1/containerStatus", {})
by_http("http-plan", "has a file checked over HTTP", "/v1/containerPlan", {"configPaths": ["/etc/passwd"]})
by_http("http-restart", "restarts a process over HTTP", "/v1/restartWorker", {"worker": 1})
by_http(
    "http-read-token",
    "adds a broker with a token that may read",
    "/v1/addBroker",
    None,
    headers={"authorization": f"Bearer {TOKENS['read']}"},
    answer="403",
)
by_http(
    "http-operate-token",
    "adds a broker with a token that may change topics",
    "/v1/addBroker",
    None,
    headers={"authorization": f"Bearer {TOKENS['operate']}"},
    answer="403",
)
by_http(
    "http-cross-origin",
    "a web page of another site adds a broker with the administrator's stored Basic credentials",
    "/v1/addBroker",
    None,
    headers={**WEB_PAGE, **basic(ADMIN), "content-type": "text/plain"},
    answer="403",
    open=False,
)
by_http(
    "http-rebinding",
    "DNS rebinding: a page of evil.example, which now has our address, adds a broker",
    "/v1/addBroker",
    None,
    headers={"host": "evil.example", "sec-fetch-site": "same-origin", **basic(ADMIN)},
    answer="403",
    open=False,
)


@attack(
    "container/http-metrics",
    "reads the metrics of all brokers of the container",
    asset="topics and groups",
    success="the server answers anything but a refusal",
    answer="401",
)
async def metrics(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    return answered_by_http(await attacker.http("container", "GET", "/metrics"))


# -- garbage ---------------------------------------------------------------------------------------------

GARBAGE: Final = (
    os.urandom(4_096),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\xff\xff\xff\xff" * 64,
    b"\x7f\xff\xff\xff\x00\x00\x00\x10",
    b"\x00\x00\x00\x08\x00\xff\xff\xff" + b"{" * 4,
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
    b"",
)


@attack(
    "container/garbage",
    "sends random bytes, HTTP, a PROXY header and wrong lengths to the container's own port",
    asset="the service for others",
    success=f"others are not served within {SERVES_S:g} s",
    open=False,
)
async def garbage(attacker: Attacker) -> Outcome:
    await attacker.stage.open_container()
    for data in GARBAGE:
        await attacker.send("container", data, timeout_s=0.2)
    for _ in range(50):
        await attacker.send("container", os.urandom(64), timeout_s=0.01)
    answer = await attacker.stage.ask("container", STATUS, timeout_s=SERVES_S)
    return Outcome(answer.code != 0, f"others: {answer.code}")
