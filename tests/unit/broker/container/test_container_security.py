"""A closed container: its own port and those of its brokers are checked by one configuration, and audited."""

import json
from pathlib import Path
from typing import Any

from broker.container.app import ContainerServer
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Empty, Failed, Ok
from keelmq.remoting.operations.broker import GET_BROKER_CONFIG, GET_MAX_OFFSET, QueueRequest
from keelmq.remoting.operations.container import (
    ADD_BROKER,
    CONTAINER_PLAN,
    CONTAINER_STATUS,
    REMOVE_BROKER,
    AddBrokerRequest,
    ContainerStatus,
    PlanRequest,
    RemoveBrokerRequest,
)
from keelmq.security.signer import signer_of
from tests.support.secured import ADMIN, EVERYTHING_ON
from tests.unit.broker.container.parts import broker_file, container_config


def closed(tmp_path: Path, *files: Path, **changes: object) -> ContainerServer:
    users = tmp_path / "users"
    users.mkdir(mode=0o700, exist_ok=True)
    return ContainerServer(container_config(tmp_path, *files, usersPath=users, **EVERYTHING_ON, **changes))


async def test_nobody_changes_a_closed_container_without_rights(tmp_path: Path) -> None:
    anonymous, admin = RemotingClient(), RemotingClient(signer=signer_of(ADMIN, proof=True))
    new = broker_file(tmp_path, "b")
    requests = (
        (ADD_BROKER, AddBrokerRequest(config_path=str(new)), None),
        (REMOVE_BROKER, RemoveBrokerRequest(broker_cluster_name="c1", broker_name="a", broker_id=0), None),
        (CONTAINER_STATUS, Empty(), None),
        (CONTAINER_PLAN, Empty(), PlanRequest(config_paths=[str(new)])),
    )
    async with closed(tmp_path, broker_file(tmp_path, "a")) as server:
        port = server.port
        for operation, header, body in requests:
            outcome = await anonymous.call(server.address, operation, header, body)  # type: ignore[misc]
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION, operation.name
        added = await admin.call(server.address, ADD_BROKER, AddBrokerRequest(config_path=str(new)))
        assert isinstance(added, Ok), added
        outcome = await admin.call(server.address, CONTAINER_STATUS, Empty())
        assert isinstance(outcome, Ok)
        brokers = ContainerStatus.model_validate(outcome.body).brokers
        assert [each.canonical_name for each in brokers] == ["c1_a_0", "c1_b_0"]
        for broker in brokers:
            asked = QueueRequest(topic="T", queue_id=0)
            outcome = await anonymous.call(broker.address, GET_MAX_OFFSET, asked)
            assert isinstance(outcome, Failed) and outcome.code == ResponseCode.NO_PERMISSION
    await anonymous.close()
    await admin.close()
    assert [line["outcome"] for line in audited(tmp_path, ".refused.log")] == ["refused", "refused"]
    (added_line,) = audited(tmp_path, f"-{port}.log")
    assert added_line["user"] == ADMIN.access_key and added_line["fields"]["configPath"] == str(new)
    assert added_line["changes"] == {"broker c1_b_0": {"old": None, "new": str(new)}}


def audited(tmp_path: Path, suffix: str) -> list[dict[str, Any]]:
    """The lines about ADD_BROKER and REMOVE_BROKER in the container's audit log."""
    (path,) = (tmp_path / "state" / "audit").glob(f"*{suffix}")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["operation"] in ("ADD_BROKER", "REMOVE_BROKER")]


async def test_secrets_of_the_container_are_not_shown(tmp_path: Path) -> None:
    admin = RemotingClient(signer=signer_of(ADMIN, proof=True))
    async with closed(tmp_path, broker_file(tmp_path, "a")) as server:
        status = await server.container.status()
        for address in (server.address, status.brokers[0].address):
            outcome = await admin.call(address, GET_BROKER_CONFIG, Empty())
            assert isinstance(outcome, Ok)
            assert b"innerClientAuthenticationCredentials=" in outcome.body
            assert ADMIN.secret_key.encode() not in outcome.body and b"member-secret" not in outcome.body
    await admin.close()
