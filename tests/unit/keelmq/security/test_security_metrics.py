"""/metrics of security: refusals by reason, the audit log, certificates and handshakes."""

from pathlib import Path
from typing import get_args

import pytest

from broker.app.broker import Broker
from keelmq.remoting.client import RemotingClient
from keelmq.remoting.operation import CommandError, Empty, Failed, Ok
from keelmq.remoting.operations.broker_admin import UPDATE_BROKER_CONFIG
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.audit.log import AuditLog
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.core.access import Refused
from keelmq.security.core.refusals import Reason
from keelmq.security.metrics import scrape
from keelmq.security.server_access import ServerAccess
from tests.support.raft_certificates import Authority
from tests.support.tls_parts import server_files
from tests.unit.broker.app.test_broker_app import config
from tests.unit.keelmq.security.parts import control, tables


def values(access: object, audit: object, *tls: object) -> dict[tuple[str, ...], float]:
    """(name, values of the labels) -> value."""
    made = scrape([access], [audit], *tls)  # type: ignore[list-item, arg-type]
    return {
        (sample.name, *sample.labels.values()): sample.value for family in made for sample in family.samples
    }


def test_refusals_by_reason() -> None:
    access = ServerAccess(control(tables()))
    for reason in ("rights", "rights", "signature"):
        with pytest.raises(CommandError):
            access.refuse(Refused(16, "no", reason))  # type: ignore[arg-type]
    found = values(access, None, ServerTls("disabled"), None)
    assert found == {
        ("rocketmq_access_refusals_total", reason): {"rights": 2, "signature": 1}.get(reason, 0)
        for reason in get_args(Reason)
    }


def test_the_audit_log() -> None:
    log = AuditLog(AuditConfig(), "mqbroker")
    log.writer.written_lines, log.writer.dropped_lines, log.unwritten_refusals = 3, 2, 1
    log.writer.fault = "no space"
    assert values(None, log, ServerTls("disabled"), None) == {
        ("rocketmq_audit_lines_total",): 3,
        ("rocketmq_audit_dropped_lines_total",): 2,
        ("rocketmq_audit_unwritten_refusals_total",): 1,
        ("rocketmq_audit_fault",): 1,
    }


async def test_a_broker_with_tls(tmp_path: Path) -> None:
    files = server_files(Authority(tmp_path / "ca"))
    keys = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": files.certificate,
        "tls.server.keyPath": files.key,
    }
    async with Broker(config(tmp_path, **keys)) as broker:
        for tls, kind in ((ClientTls(), Ok), (None, Failed)):
            client = RemotingClient(tls=tls)
            outcome = await client.call(broker.address, UPDATE_BROKER_CONFIG, Empty(), b"brokerPermission=6")
            assert isinstance(outcome, Ok) is (kind is Ok)
            await client.close()
        found = values(broker.operations.access, broker.audit, broker.process.tls, broker.process.client_tls)
    assert found["rocketmq_tls_connections_total", "listenPort", "handshakes"] == 1
    assert found["rocketmq_tls_connections_total", "listenPort", "plain_refused"] == 1
    end = found["rocketmq_tls_certificate_end_seconds", "server"]
    tls = broker.process.tls
    assert tls.expires is not None and end == tls.expires.timestamp()
    assert found["rocketmq_tls_fault", "server"] == 0


def test_the_brokers_of_one_process_are_summed_up() -> None:
    access = ServerAccess(control(tables()))
    access.refusals["signature"] = 2
    log = AuditLog(AuditConfig(), "mqbroker")
    log.writer.written_lines = 3
    made = scrape([access, None, access], [log, log, None], ServerTls("disabled"), None)
    found = {(each.name, *each.labels.values()): each.value for family in made for each in family.samples}
    assert found["rocketmq_access_refusals_total", "signature"] == 4
    assert found["rocketmq_audit_lines_total",] == 6
    assert found["rocketmq_audit_fault",] == 0
