"""AuditLog: the Audit of a program's operation tables. It makes a line of a request, for the writer.

    {"ts": "2026-03-01T12:00:00.123Z", "program": "mqbroker", "node": "broker-a", "user": "alice", "claimed":
     "alice", "address": "10.0.0.7:50312", "tls": true, "certificate": ["alice"], "code": 17, "operation":
     "UPDATE_AND_CREATE_TOPIC", "role": "OPERATE", "fields": {"topic": "orders"}, "resources":
     ["Topic:orders"], "changes": {"topic orders": {"old": null, "new": {"perm": 6}}}, "outcome": "ok",
     "answer": 0, "remark": ""}

Members without a value are left out. `user` is verified, `claimed` is what a refused request claims. Requests
can be refused faster than an operator reads: REFUSED_PER_S of them have a line, the others are counted, in
the next line of a refusal (`unwritten`) and in /metrics."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from keelmq.remoting.codes import ResponseCode
from keelmq.remoting.operation import Caller, Changes, Peer, Request
from keelmq.runtime.clock import now_ms, wall_ms
from keelmq.security.audit.settings import AuditConfig
from keelmq.security.audit.writer import AuditWriter, Series
from keelmq.security.core.audited import (
    NO_ACTS,
    Kind,
    Outcome,
    changes_of,
    fields_of,
    is_without_effect,
    kind_of,
    name_of,
    outcome_of,
    remark_of,
    resources_of,
    short,
)
from keelmq.security.core.rules import rule_of
from keelmq.security.core.signature import ACCESS_KEY

logger = logging.getLogger(__name__)

LINE_BYTES_MAX: Final = 65_536
REFUSED_PER_S: Final = {Kind.ACT: 20, Kind.ROUTINE: 2, Kind.DATA: 1}
"""Lines of refused requests in a second, by kind; what has no request code counts as routine."""
NOT_SERVED: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_BUSY)
"""Answers to what no handler has seen: any peer may cause them, so they count as refused here."""
NAMES_MAX: Final = 8
LOST: Final = "AUDIT_LINES_LOST"
"""The operation of the line that says how many lines are lost, in `unwritten`."""


def make_audit(config: AuditConfig, program: str) -> "AuditLog | None":
    """Returns the audit log of a program; None: it has none (auditEnable)."""
    return AuditLog(config, program) if config.audit_enable else None


class AuditLog:
    """One for each program; its ports share it. Called in the event loop's thread; the writer has its own."""

    def __init__(
        self,
        config: AuditConfig,
        program: str,
        *,
        clock: Callable[[], int] = now_ms,
        wall_clock: Callable[[], int] = wall_ms,
    ) -> None:
        self.program, self.node = program, ""
        self.directory: Path | None = None
        """Where its files are; None before start()."""
        self.unwritten_refusals = 0
        """Refused requests that were only counted."""
        self.writer = AuditWriter(
            bytes_max=config.audit_file_bytes, files=config.audit_files, lost_line=self._lost_line
        )
        self._clock, self._wall_clock = clock, wall_clock
        self._second = -1
        self._left = dict(REFUSED_PER_S)
        self._untold = 0

    def start(self, directory: Path, *, node: str, port: int) -> None:
        """Starts to write. node: the name of this process in its cluster. port: the one that it serves, since
        programs of one host may share the directory."""
        self.node, self.directory = node, directory
        self.writer.start(directory, f"{self.program}-{port}")

    async def close(self) -> None:
        """Writes what is queued. Safe to repeat."""
        await self.writer.close()

    def wants(self, code: int) -> bool:
        """Whether requests of this code are recorded, whatever their outcome."""
        return code not in NO_ACTS

    def record(
        self, request: Request, peer: Peer, caller: Caller, *, code: int, remark: str, changes: Changes
    ) -> None:
        """Records an act, or a refused request of any kind; nothing else. Never blocks, never raises."""
        try:
            self._record(request, peer, caller, code, remark, changes)
        except Exception:
            self.writer.dropped_lines += 1
            logger.exception("a request of code %d could not be recorded in the audit log", request.code)

    def _record(
        self, request: Request, peer: Peer, caller: Caller, answer: int, remark: str, changes: Changes
    ) -> None:
        kind, outcome = kind_of(request.code), outcome_of(answer)
        fields = request.ext_fields or {}
        more: dict[str, object] = {}
        is_refused = outcome is Outcome.REFUSED or (kind is Kind.ACT and answer in NOT_SERVED)
        if is_refused:
            if not self._may_write(kind):
                return
            if self._untold:
                more["unwritten"], self._untold = self._untold, 0
            claimed = fields.get(ACCESS_KEY)
            if claimed and claimed != caller.user:
                more["claimed"] = short(claimed)
        elif kind is not Kind.ACT or is_without_effect(request.code, fields, changes):
            return
        line = {
            "ts": _iso(self._wall_clock()),
            "program": self.program,
            "node": self.node,
            "user": short(caller.user),
            "address": short(peer.address),
            "tls": peer.is_tls,
            "certificate": [short(name) for name in peer.certificate_names[:NAMES_MAX]],
            "code": request.code,
            "operation": name_of(request.code),
            "role": rule_of(request.code).role.name,
            "fields": fields_of(fields),
            "resources": resources_of(request.code, fields, request.body),
            "changes": changes_of(request.code, changes),
            "outcome": outcome,
            "answer": answer,
            "remark": remark_of(request.code, remark, request.body),
            "member": caller.is_member or "",
            **more,
        }
        series = Series.REFUSED if is_refused else Series.ACTS
        self.writer.put(series, _encoded(line))

    def refused(self, what: str, *, address: str, is_tls: bool, remark: str) -> None:
        """Records a refusal of something without a request code: a replica's link, an HTTP page."""
        if not self._may_write(Kind.ROUTINE):
            return
        line = {
            "ts": _iso(self._wall_clock()),
            "program": self.program,
            "node": self.node,
            "address": short(address),
            "tls": is_tls,
            "operation": short(what),
            "outcome": Outcome.REFUSED,
            "remark": short(remark),
        }
        if self._untold:
            line["unwritten"], self._untold = self._untold, 0
        self.writer.put(Series.REFUSED, _encoded(line))

    def _may_write(self, kind: Kind) -> bool:
        second = self._clock() // 1_000
        if second != self._second:
            self._second, self._left = second, dict(REFUSED_PER_S)
        if not self._left[kind]:
            self._untold += 1
            self.unwritten_refusals += 1
            return False
        self._left[kind] -= 1
        return True

    def _lost_line(self, count: int) -> bytes:
        """Called in the writer's thread."""
        line = {"ts": _iso(self._wall_clock()), "program": self.program, "node": self.node}
        return _encoded({**line, "operation": LOST, "unwritten": count})


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(line: Mapping[str, object]) -> bytes:
    """ASCII, so no character of a name can end the line or move a terminal's cursor."""
    kept = {name: value for name, value in line.items() if value not in ("", [], {})}
    for name in ("", "changes", "resources", "fields"):
        if name in kept:
            kept[name] = "(too long)"
        encoded = json.dumps(kept, separators=(",", ":")).encode()
        if len(encoded) < LINE_BYTES_MAX:
            break
    return encoded + b"\n"
