"""A request as a line of the audit log."""

import json
from pathlib import Path
from typing import Any

import pytest

from keelmq.remoting.command import RemotingCommand
from keelmq.remoting.operation import ANYBODY, OUTCOME_UNKNOWN, Caller, Changes
from keelmq.security.audit.log import LINE_BYTES_MAX, AuditLog, make_audit
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.audit.writer import Series
from tests.unit.keelmq.security.parts import NOW_MS


class Peer:
    connection_id, address, is_tls = 1, "10.0.0.7:5000", True
    certificate_names = ("alice.example",)


class User(Caller):
    user = "alice"


class Recorder:
    """An AuditLog on a clock that stands still, and its lines."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.log = AuditLog(AuditConfig(), "mqbroker", clock=lambda: self.now_ms, wall_clock=lambda: NOW_MS)
        self.log.node = "broker-a-10.0.0.1:10911"
        self.raw: list[tuple[Series, bytes]] = []
        self.log.writer.put = lambda series, line: self.raw.append((series, line))  # type: ignore[method-assign]

    def record(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        *,
        answer: int = 0,
        remark: str = "",
        changes: Changes | None = None,
        caller: Caller = ANYBODY,
        body: bytes = b"",
    ) -> None:
        request: Any = RemotingCommand(code=code, ext_fields=fields or {}, body=body)
        peer: Any = Peer()
        self.log.record(request, peer, caller, code=answer, remark=remark, changes=changes or {})

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for _, line in self.raw]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_a_line(recorder: Recorder) -> None:
    recorder.record(
        17,
        {"topic": "orders", "perm": "6", "AccessKey": "alice", "Signature": "c2lnbmF0dXJl"},
        changes={"topic orders": (None, {"perm": 6})},
        caller=User(),
    )
    assert recorder.lines == [
        {
            "ts": "2026-01-01T00:00:00.000Z",
            "program": "mqbroker",
            "node": "broker-a-10.0.0.1:10911",
            "user": "alice",
            "address": "10.0.0.7:5000",
            "tls": True,
            "certificate": ["alice.example"],
            "code": 17,
            "operation": "UPDATE_AND_CREATE_TOPIC",
            "role": "OPERATE",
            "fields": {"perm": "6", "topic": "orders"},
            "resources": ["Topic:orders"],
            "changes": {"topic orders": {"old": None, "new": {"perm": 6}}},
            "outcome": "ok",
            "answer": 0,
        }
    ]
    assert recorder.raw[0][0] is Series.ACTS


def test_members_are_told_from_users(recorder: Recorder) -> None:
    class Member(User):
        is_member = True

    recorder.record(1009, {"forwarded": "true"}, caller=Member())
    recorder.record(1009, caller=User())
    assert [line.get("member") for line in recorder.lines] == [True, None]


def test_without_authentication_the_address_is_known(recorder: Recorder) -> None:
    recorder.record(25, body=b"x=1")
    (line,) = recorder.lines
    assert "user" not in line and line["address"] == "10.0.0.7:5000"


@pytest.mark.parametrize(
    ("answer", "outcome"), [(OUTCOME_UNKNOWN, "unknown"), (1, "failed"), (3, "failed"), (16, "refused")]
)
def test_outcomes(recorder: Recorder, answer: int, outcome: str) -> None:
    recorder.record(17, {"topic": "t"}, answer=answer, remark="why")
    (line,) = recorder.lines
    assert (line["outcome"], line["answer"], line["remark"]) == (outcome, answer, "why")


@pytest.mark.parametrize(
    "name",
    ["a\nb", 'a"},{"outcome":"ok', "\x1b[2J", "\u2028", "\ud800", "\x00", "\\", "x" * 1_000_000, "тема"],
)
def test_a_hostile_name_stays_one_line_of_ascii(recorder: Recorder, name: str) -> None:
    recorder.record(
        17, {"topic": name}, changes={f"topic {name}": (name, [name])}, remark=name, caller=User()
    )
    ((_, raw),) = recorder.raw
    assert raw.endswith(b"\n") and raw.count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in raw[:-1])
    assert len(raw) < 8_192
    assert json.loads(raw)["fields"]["topic"].startswith(name[:256])


def test_a_line_is_bounded(recorder: Recorder) -> None:
    many = {f"topic {number}": (["x" * 300] * 100, ["y" * 300] * 100) for number in range(200)}
    recorder.record(18, changes=many)  # type: ignore[arg-type]
    ((_, raw),) = recorder.raw
    assert len(raw) <= LINE_BYTES_MAX
    assert json.loads(raw)["changes"] == "(too long)"


def test_routine_and_data_are_recorded_only_if_they_are_refused(recorder: Recorder) -> None:
    for code in (103, 904, 1001, 29001, 310, 11, 15, 34):
        assert not recorder.log.wants(code)
        recorder.record(code, answer=0)
        recorder.record(code, answer=1)
    assert recorder.lines == []
    recorder.record(
        103, {"brokerName": "evil", "AccessKey": "inner"}, answer=16, remark="check signature failed."
    )
    recorder.record(310, {"b": "orders"}, answer=16, remark="username cannot be null.")
    first, second = recorder.lines
    assert (first["operation"], first["claimed"]) == ("REGISTER_BROKER", "inner")
    assert "user" not in first
    assert second["resources"] == ["Topic:orders"]
    assert [series for series, _ in recorder.raw] == [Series.REFUSED, Series.REFUSED]


def test_refusals_are_limited_and_counted(recorder: Recorder) -> None:
    for _ in range(1_000):
        recorder.record(310, {"b": "t"}, answer=16)
        recorder.record(25, answer=16)
    assert len(recorder.lines) == 21
    assert recorder.log.unwritten_refusals == 1_979
    recorder.now_ms += 1_000
    recorder.record(25, answer=16)
    recorder.record(25, answer=16)
    assert sum(line.get("unwritten", 0) for line in recorder.lines) == 1_979
    assert "unwritten" not in recorder.lines[-1]


def test_codes_that_nobody_serves_are_limited_like_refusals(recorder: Recorder) -> None:
    """Without authentication anybody can send them."""
    for _ in range(100):
        recorder.record(54_321, answer=3)
    assert len(recorder.lines) == 20
    assert {series for series, _ in recorder.raw} == {Series.REFUSED}
    assert recorder.lines[0]["outcome"] == "failed"


def test_acts_are_never_limited(recorder: Recorder) -> None:
    for _ in range(1_000):
        recorder.record(17, {"topic": "t"})
    assert len(recorder.lines) == 1_000


def test_a_bug_here_fails_no_request(recorder: Recorder, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __str__(self) -> str:
            raise ZeroDivisionError

    recorder.record(17, changes={"topic t": (Broken(), None)})
    assert recorder.lines == []
    assert recorder.log.writer.dropped_lines == 1
    assert "could not be recorded" in caplog.text


async def test_files(tmp_path: Path) -> None:
    log = AuditLog(AuditConfig(), "mqnamesrv", wall_clock=lambda: NOW_MS)
    log.start(tmp_path / "audit", node="host:9876", port=9876)
    request: Any = RemotingCommand(code=205, ext_fields={"brokerName": "b"})
    peer: Any = Peer()
    log.record(request, peer, ANYBODY, code=0, remark="", changes={})
    log.record(request, peer, ANYBODY, code=16, remark="", changes={})
    await log.close()
    acts, refused = (
        json.loads((tmp_path / "audit" / f"mqnamesrv-9876{name}.log").read_text())
        for name in ("", ".refused")
    )
    assert (acts["outcome"], refused["outcome"], acts["node"]) == ("ok", "refused", "host:9876")


def test_it_can_be_switched_off() -> None:
    assert make_audit(AuditConfig(audit_enable=False), "mqbroker") is None
    assert make_audit(AuditConfig(), "mqbroker") is not None


def test_its_settings_cannot_be_changed_by_a_request() -> None:
    from broker.config.broker_config import BrokerConfig
    from namesrv.config import NamesrvConfig

    keys = {field.alias or name for name, field in AuditConfig.model_fields.items()}
    assert keys == {"auditEnable", "auditPath", "auditFileBytes", "auditFiles"}
    for model in (BrokerConfig, NamesrvConfig):
        assert keys <= {field.alias for field in model.model_fields.values()}
        assert not keys & model.AT_RUN_TIME


def test_a_peer_that_was_refused_without_a_request(recorder: Recorder) -> None:
    """Two lines in a second, as of members; the others are counted in the next one."""
    for _ in range(5):
        recorder.log.refused("HA_LINK", address="10.0.0.9:4000", is_tls=True, remark="no credentials")
    recorder.now_ms += 1_000
    recorder.log.refused("GET /v1/routes", address="10.0.0.9:4000", is_tls=False, remark="x" * 10_000)
    first, second, third = recorder.lines
    assert (
        first
        == second
        == {
            "ts": "2026-01-01T00:00:00.000Z",
            "program": "mqbroker",
            "node": "broker-a-10.0.0.1:10911",
            "address": "10.0.0.9:4000",
            "tls": True,
            "operation": "HA_LINK",
            "outcome": "refused",
            "remark": "no credentials",
        }
    )
    assert third["unwritten"] == recorder.log.unwritten_refusals == 3
    assert third["operation"] == "GET /v1/routes" and len(third["remark"]) < 400
    assert {series for series, _ in recorder.raw} == {Series.REFUSED}
