"""Attacks on signatures and proofs: requests that somebody else has signed, sent again, altered, elsewhere.

The attacker is given frames as if they had been captured. The stage signs them, and sends them once where a
replay needs that."""

import os
import time
from dataclasses import replace
from typing import Any, Final

from keelmq.remoting.command import RemotingCommand
from keelmq.security.signer import Credentials, signer_of
from tests.attacks.attacker import Attacker, request_of
from tests.attacks.frames import PROOF, Answer, Identity, Request, json_frame, proof_of, signature_of
from tests.attacks.judging import carried_out
from tests.attacks.model import Outcome, attack
from tests.attacks.stage import (
    ADMIN,
    ALICE,
    ALICES,
    BROKER_NAME,
    CLUSTER_NAME,
    MALLORY,
    MEMBER,
    ORDERS,
    OWN,
    OWN_GROUP,
    SECRET,
    pull_fields,
)

GROUP: Final = {"clusterName": CLUSTER_NAME, "brokerName": BROKER_NAME}
NEXT_ID: Final = request_of(1012, GROUP)
CONFIG: Final = request_of(26)
HOUR_MS: Final = 3_600_000
NEW: Final = "what only members and administrators may do"


async def sent_before(attacker: Attacker, server: str, request: Request) -> Outcome:
    """The request is carried out once for its owner, and then sent again by the attacker."""
    first = await attacker.send(server, request)
    if first.code:
        return Outcome(True, f"the owner's own request failed: {first}")
    return carried_out(await attacker.send(server, request))


@attack(
    "replay/member",
    "sends a member's captured request again",
    asset=NEW,
    success="it is carried out a second time",
    answer="the request was sent before",
)
async def member(attacker: Attacker) -> Outcome:
    return await sent_before(attacker, "controller", NEXT_ID.signed(MEMBER, proof=True))


@attack(
    "replay/administrator",
    "sends a captured request of mqadmin again",
    asset=NEW,
    success="it is carried out a second time",
    answer="the request was sent before",
)
async def administrator(attacker: Attacker) -> Outcome:
    return await sent_before(attacker, "broker", CONFIG.signed(ADMIN, proof=True))


@attack(
    "replay/same-connection",
    "sends a member's request twice on one connection, at once",
    asset=NEW,
    success="both are carried out",
    answer="the request was sent before",
)
async def same_connection(attacker: Attacker) -> Outcome:
    frame = NEXT_ID.signed(MEMBER, proof=True).frame()
    async with attacker.dial("controller") as line:
        await line.send(frame + frame)
        answers = [await line.answer(), await line.answer()]
    refused = next((each for each in answers if each.code), None)
    return Outcome(refused is None, str(refused or answers[1]))


@attack(
    "replay/other-opaque",
    "sends a member's request again with another opaque, flag and language, which nothing signs",
    asset=NEW,
    success="it is carried out a second time",
    answer="the request was sent before",
)
async def other_opaque(attacker: Attacker) -> Outcome:
    request = NEXT_ID.signed(MEMBER, proof=True)
    await attacker.send("controller", request)
    return carried_out(await attacker.send("controller", replace(request, opaque=77, version=400)))


@attack(
    "replay/other-code",
    "sends a member's request as another code with the same fields: 1012 as 1004",
    asset=NEW,
    success="the other code is carried out",
    answer="is for code 1012",
)
async def other_code(attacker: Attacker) -> Outcome:
    return carried_out(
        await attacker.send("controller", replace(NEXT_ID.signed(MEMBER, proof=True), code=1004))
    )


@attack(
    "replay/administrator-other-code",
    "turns mqadmin's request for settings (26) into a deletion of files (329)",
    asset="alice's messages",
    success="the other code is carried out",
    answer="is for code 26",
)
async def administrator_other_code(attacker: Attacker) -> Outcome:
    return carried_out(await attacker.send("broker", replace(CONFIG.signed(ADMIN, proof=True), code=329)))


@attack(
    "replay/other-server",
    "sends a member's request for one controller to another server that would carry it out, too (1005)",
    asset=NEW,
    success="the other server carries it out",
    answer="another recipient",
)
async def other_server(attacker: Attacker) -> Outcome:
    """A proof for `controller`, shown to `follower`: a proof without a recipient holds everywhere once."""
    request = request_of(1005)
    recipient = attacker.stage.addresses["controller"]
    return carried_out(await attacker.send("follower", proven(request, MEMBER, recipient=recipient)))


@attack(
    "replay/both-servers",
    "sends a second server a captured request to the first one, as our programs sign it (1005)",
    asset=NEW,
    success="the second server carries it out",
    answer="another recipient",
)
async def both_servers(attacker: Attacker) -> Outcome:
    command = RemotingCommand(1005)
    sign = signer_of(Credentials(MEMBER.name, MEMBER.secret), proof=True)
    sign(command, attacker.stage.addresses["controller"])
    request = Request(1005, command.ext_fields)
    first = await attacker.send("controller", request)
    if first.code:
        return Outcome(True, f"the owner's own request failed: {first}")
    return carried_out(await attacker.send("follower", request))


def proven(request: Request, by: Identity, **parts: Any) -> Request:
    """Returns the request with a proof of these parts (see proof_of), signed."""
    proof = proof_of(request.code, request.fields, request.body, **parts)
    fields = {**request.fields, PROOF: proof, "AccessKey": by.name}
    return replace(request, fields={**fields, "Signature": signature_of(by.secret, fields, request.body)})


@attack(
    "replay/stale",
    "sends a member's request of an hour ago, which the server never saw",
    asset=NEW,
    success="it is carried out",
    answer="by the clock of this server",
)
async def stale(attacker: Attacker) -> Outcome:
    at_ms = int(time.time() * 1_000) - HOUR_MS
    return carried_out(await attacker.send("controller", proven(NEXT_ID, MEMBER, at_ms=at_ms)))


@attack(
    "replay/future",
    "sends a member's request with a time an hour ahead, to use it then",
    asset=NEW,
    success="it is carried out",
    answer="by the clock of this server",
)
async def future(attacker: Attacker) -> Outcome:
    at_ms = int(time.time() * 1_000) + HOUR_MS
    return carried_out(await attacker.send("controller", proven(NEXT_ID, MEMBER, at_ms=at_ms)))


LATER: Final = (
    ("later-stale", "an hour before its first one", -HOUR_MS, 1),
    ("later-future", "an hour after its first one, to use it then", HOUR_MS, 1),
    ("later-number", "a number that was used, and with other times", 5_000, 0),
    ("earlier-number", "a number long before its first one", 0, -2_000),
)

for name, title, shift_ms, step in LATER:

    @attack(
        f"replay/{name}",
        f"has a known sender send {title}",
        asset=NEW,
        success="it is carried out",
    )
    async def later(attacker: Attacker, shift_ms: int = shift_ms, step: int = step) -> Outcome:
        """Of later requests only the monotonic clock counts, compared with the first one."""
        sender, uptime_ms, number = os.urandom(8).hex(), 10 * HOUR_MS, 10_000
        first = proven(NEXT_ID, MEMBER, sender=sender, uptime_ms=uptime_ms, number=number)
        answer = await attacker.send("controller", first)
        if answer.code:
            return Outcome(True, f"the owner's own request failed: {answer}")
        second = proven(NEXT_ID, MEMBER, sender=sender, uptime_ms=uptime_ms + shift_ms, number=number + step)
        return carried_out(await attacker.send("controller", second))


async def altered(attacker: Attacker, request: Request, body: bytes | None = None, **fields: str) -> Outcome:
    """A captured request with other fields or another body, and its old signature."""
    changed = replace(request, fields={**request.fields, **fields})
    return carried_out(
        await attacker.send("broker", changed if body is None else replace(changed, body=body))
    )


@attack(
    "replay/body",
    "puts other settings into a captured request of mqadmin (25)",
    asset="settings",
    success="it is carried out",
    answer="check signature failed.",
)
async def other_body(attacker: Attacker) -> Outcome:
    request = request_of(25, {}, b"deleteWhen=04\n").signed(ADMIN, proof=True)
    return await altered(attacker, request, b"deleteWhen=05\n")


@attack(
    "replay/topic",
    "puts another topic into a captured deletion of mqadmin (215)",
    asset="alice's messages",
    success="it is carried out",
    answer="check signature failed.",
)
async def other_topic(attacker: Attacker) -> Outcome:
    request = request_of(215, {"topic": "a-topic-to-delete"}).signed(ADMIN, proof=True)
    return await altered(attacker, request, topic="alice-not-to-delete")


@attack(
    "replay/cut",
    "cuts the values of a captured request differently: the signature is over all of them in a row",
    asset=NEW,
    success="the other request is carried out",
    answer="other fields",
)
async def cut(attacker: Attacker) -> Outcome:
    """brokerName=broker-a, clusterName=KeelCluster and brokerName=broker-aKeel, clusterName=Cluster have the
    same signed bytes."""
    request = NEXT_ID.signed(MEMBER, proof=True)
    fields = {**request.fields, "brokerName": BROKER_NAME + "Keel", "clusterName": "Cluster"}
    return carried_out(await attacker.send("controller", replace(request, fields=fields)))


@attack(
    "replay/cut-into-body",
    "moves the end of the last value of a captured request into its body",
    asset=NEW,
    success="the other request is carried out",
    answer="other fields",
)
async def cut_into_body(attacker: Attacker) -> Outcome:
    request = request_of(1012, {**GROUP, "brokerName": "cut-group"}).signed(MEMBER, proof=True)
    fields = {**request.fields, "clusterName": CLUSTER_NAME[:4]}
    changed = replace(request, fields=fields, body=CLUSTER_NAME[4:].encode())
    return carried_out(await attacker.send("controller", changed))


@attack(
    "replay/renamed",
    "renames the fields of a captured request: the signature is over the values only",
    asset=NEW,
    success="the other request is carried out",
    answer="other fields",
)
async def renamed(attacker: Attacker) -> Outcome:
    request = request_of(1012, {"brokerNamf": BROKER_NAME, "clusterNamf": CLUSTER_NAME}).signed(
        MEMBER, proof=True
    )
    fields = dict(request.fields)
    fields["brokerName"], fields["clusterName"] = fields.pop("brokerNamf"), fields.pop("clusterNamf")
    return carried_out(await attacker.send("controller", replace(request, fields=fields)))


@attack(
    "replay/no-proof",
    "takes the proof out of a captured request of mqadmin, and signs nothing anew",
    asset=NEW,
    success="it is carried out",
    answer="check signature failed.",
)
async def no_proof(attacker: Attacker) -> Outcome:
    request = CONFIG.signed(ADMIN, proof=True)
    fields = {name: value for name, value in request.fields.items() if name != PROOF}
    return carried_out(await attacker.send("broker", replace(request, fields=fields)))


@attack(
    "replay/hidden-proof",
    "adds a field whose name sorts before the proof, so that the proof is not where the signed bytes begin",
    asset=NEW,
    success="it is carried out",
    answer="malformed",
)
async def hidden_proof(attacker: Attacker) -> Outcome:
    """Signed by a member that an anonymous client has talked into signing a field of any name."""
    request = request_of(1012, {**GROUP, "0": "x"})
    return carried_out(await attacker.send("controller", proven(request, MEMBER)))


@attack(
    "replay/proof-of-another",
    "puts the proof of one captured request into another one of the same member",
    asset=NEW,
    success="it is carried out",
    answer="check signature failed.",
)
async def proof_of_another(attacker: Attacker) -> Outcome:
    taken = request_of(1012, GROUP).signed(MEMBER, proof=True)
    request = NEXT_ID.signed(MEMBER, proof=True)
    changed = replace(request, fields={**request.fields, PROOF: taken.fields[PROOF]})
    return carried_out(await attacker.send("controller", changed))


@attack(
    "replay/plain-capture",
    "listens on the network, captures a request of alice without TLS, and sends it again",
    asset="what is in alice's topic",
    success="the request, sent without TLS, is carried out",
    answer="closed",
)
async def plain_capture(attacker: Attacker) -> Outcome:
    fields = {"consumerGroup": ALICES, "topic": ORDERS, "queueId": 0, "commitOffset": 0}
    request = request_of(15, fields).signed(ALICE)
    await attacker.send("broker", request)
    return carried_out(await attacker.send("broker", request, tls=None))


@attack(
    "replay/duplicate-fields",
    "writes a field twice into the JSON header, so that the check and the handler might read different ones",
    asset="alice's messages",
    success="the answer has alice's messages",
    answer="User:mallory has no permission to access Topic:orders",
)
async def duplicate_fields(attacker: Attacker) -> Outcome:
    shown = Answer(0)
    for first, second in ((OWN, ORDERS), (ORDERS, OWN)):
        request = request_of(11, pull_fields(second, OWN_GROUP)).signed(MALLORY)
        header = request.frame()[8:]
        twice = header.replace(b'"topic":"%s"' % second.encode(), b'"topic":"%s","topic":"%s"' % (
            first.encode(), second.encode(),
        ))  # fmt: skip
        answer = await attacker.send("broker", json_frame(twice))
        if SECRET in answer.body:
            return Outcome(True, "alice's messages")
        if second == ORDERS:
            shown = answer
    return Outcome(False, str(shown))
