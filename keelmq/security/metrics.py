"""Metrics of security, equal in all programs: refused requests, the audit log, TLS.

Imported only when HTTP is enabled: it needs prometheus_client.
"""

from collections.abc import Iterable
from typing import get_args

from keelmq.remoting.operation import Access
from keelmq.remoting.servers.metrics import Metric, Scrape, Table
from keelmq.runtime.tls.contexts import ClientTls, ServerTls
from keelmq.security.audit.log import AuditLog
from keelmq.security.core.refusals import Reason
from keelmq.security.server_access import ServerAccess

TABLE = Table(
    "Every program: security",
    (),
    (
        Metric(
            "rocketmq_access_refusals_total",
            "requests that the access check has refused: unsigned, signature (a wrong one), user (unknown or "
            "disabled), throttled (too many failures of this address), member (for members only), proof "
            "(none, or an old one), rights, unreadable",
            ("reason",),
        ),
        Metric("rocketmq_audit_lines_total", "lines written into the audit log"),
        Metric(
            "rocketmq_audit_dropped_lines_total", "lines of the audit log lost: a full queue or a full disk"
        ),
        Metric(
            "rocketmq_audit_unwritten_refusals_total", "refused requests beyond the limit of lines per second"
        ),
        Metric("rocketmq_audit_fault", "1 while the audit log cannot be written, else 0"),
        Metric(
            "rocketmq_tls_certificate_end_seconds",
            "when the first certificate of a file expires, since 1970: server (of our ports), client (of our "
            "connections); only of files",
            ("use",),
        ),
        Metric(
            "rocketmq_tls_fault",
            "1 while changed certificate files cannot be used and the old ones are still in use, else 0",
            ("use",),
        ),
        Metric(
            "rocketmq_tls_connections_total",
            "accepted connections by outcome: handshakes, failed, timed_out, evicted (too many "
            "waited), plain_refused, tls_refused; plain connections that are served are not counted",
            ("port", "result"),
        ),
    ),
)


def scrape(
    accesses: Iterable[Access | None],
    audits: Iterable[AuditLog | None],
    server_tls: ServerTls,
    client_tls: ClientTls | None,
) -> Scrape:
    """Returns the present values of one process, summed up if it has several servers. Called in the event
    loop's thread. accesses: None of a server without a check. audits: None where it is off. client_tls None:
    our connections are plain."""
    made = Scrape(TABLE, ())
    checked = [access for access in accesses if isinstance(access, ServerAccess)]
    logs = [audit for audit in audits if audit is not None]
    if checked:
        for reason in get_args(Reason):  # also those without any: a rate needs a first value
            refused = sum(access.refusals[reason] for access in checked)
            made.add("rocketmq_access_refusals_total", refused, reason)
    if logs:
        made.add("rocketmq_audit_lines_total", sum(audit.writer.written_lines for audit in logs))
        made.add("rocketmq_audit_dropped_lines_total", sum(audit.writer.dropped_lines for audit in logs))
        made.add("rocketmq_audit_unwritten_refusals_total", sum(audit.unwritten_refusals for audit in logs))
        made.add("rocketmq_audit_fault", any(audit.writer.fault is not None for audit in logs))
    for use, tls in (("server", server_tls), ("client", client_tls)):
        if tls is not None and tls.expires is not None:
            made.add("rocketmq_tls_certificate_end_seconds", tls.expires.timestamp(), use)
            made.add("rocketmq_tls_fault", tls.fault is not None, use)
    for port, counts in sorted(server_tls.counts.items()):
        for result, count in sorted(counts.items()):
            made.add("rocketmq_tls_connections_total", count, port, result)
    return made
